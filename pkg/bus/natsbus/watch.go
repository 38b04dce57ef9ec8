package natsbus

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// watch returns the rows of the run table that match keys, as they are, then nil,
// then every change, until ctx ends. It begins anew whenever the connection was
// lost: the client's own watcher notices only after some 20 s that the server has
// forgotten it.
func (m *Member) watch(ctx context.Context, keys string) (<-chan jetstream.KeyValueEntry, error) {
	live := m.c.alive()
	w, err := m.table.Watch(ctx, keys)
	if err != nil {
		return nil, classify("watch "+keys, err)
	}
	out := make(chan jetstream.KeyValueEntry)
	go func() {
		defer close(out)
		for forward(ctx, live, w, out) {
			live = m.c.alive()
			err := m.c.retry(ctx, "watch "+keys, func(context.Context) (err error) {
				w, err = m.table.Watch(ctx, keys)
				return err
			})
			if err != nil {
				return // ctx has ended, or the run was removed
			}
		}
	}()
	return out, nil
}

// forward passes updates on; true when the connection was lost.
func forward(ctx, live context.Context, w jetstream.KeyWatcher, out chan<- jetstream.KeyValueEntry) bool {
	defer func() { _ = w.Stop() }() // the server forgets it by itself as well
	for {
		select {
		case <-ctx.Done():
			return false
		case <-live.Done():
			return true
		case update, ok := <-w.Updates():
			if !ok {
				return ctx.Err() == nil
			}
			select {
			case out <- update:
			case <-ctx.Done():
				return false
			}
		}
	}
}
