package main

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// watcher follows the result stream: who leases what, and what is stored, by the
// server's clock, which is that of this machine.
type watcher struct {
	codec *wire.Codec
	root  string
	stop  func()

	mu      sync.Mutex
	groups  map[groupKey]*watched
	wave    int64 // the newest
	stored  []time.Time
	changed chan struct{}
}

type groupKey struct{ wave, group int64 }

// watched is what is known of a group.
type watched struct {
	marks   []mark
	results map[string]time.Time
}

type mark struct {
	worker string
	at     time.Time
}

// watch begins once the run exists.
func (o *observer) watch(ctx context.Context) (*watcher, error) {
	codec, err := wire.New()
	if err != nil {
		return nil, err
	}
	w := &watcher{codec: codec, root: "sheaf." + o.run + ".res.", groups: map[groupKey]*watched{}, changed: make(chan struct{})}
	c, err := o.js.OrderedConsumer(ctx, "SHEAF_RESULTS_"+o.run, jetstream.OrderedConsumerConfig{FilterSubjects: []string{w.root + "*.*.*"}})
	if err != nil {
		return nil, err
	}
	consuming, err := c.Consume(w.take)
	if err != nil {
		return nil, err
	}
	w.stop = consuming.Stop
	return w, nil
}

func (w *watcher) take(m jetstream.Msg) {
	meta, err := m.Metadata()
	parts := strings.Split(strings.TrimPrefix(m.Subject(), w.root), ".")
	if err != nil || len(parts) != 3 {
		return
	}
	wave, err1 := strconv.ParseInt(parts[0], 10, 64)
	group, err2 := strconv.ParseInt(parts[1], 10, 64)
	if err1 != nil || err2 != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := groupKey{wave, group}
	g := w.groups[key]
	if g == nil {
		g = &watched{results: map[string]time.Time{}}
		w.groups[key] = g
	}
	w.wave = max(w.wave, wave)
	if parts[2] != "L" {
		g.results[parts[2]] = meta.Timestamp
		w.stored = append(w.stored, meta.Timestamp)
	} else if l, err := w.codec.DecodeMark(m.Data()); err == nil && l.Worker != "" {
		g.marks = append(g.marks, mark{l.Worker, meta.Timestamp})
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits until f, which may read the watcher, says so.
func (w *watcher) until(ctx context.Context, f func() bool) bool {
	for {
		w.mu.Lock()
		ok, changed := f(), w.changed
		w.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// resultsOf counts a wave's results stored up to a time.
func (w *watcher) resultsOf(wave int64, until time.Time) int {
	n := 0
	for key, g := range w.groups {
		if key.wave != wave {
			continue
		}
		for _, at := range g.results {
			if !at.After(until) {
				n++
			}
		}
	}
	return n
}
