package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// observer writes a run's log down while the run goes on, since the log is
// compacted. It reaches NATS by a way of its own, which no fault touches.
type observer struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	run  string
	out  *os.File
	bell chan struct{}

	mu     sync.Mutex
	live   context.Context // ends with the connection
	lost   context.CancelFunc
	ledger jetstream.Stream // once it exists
	// published is what was published behind the last entry read, in order.
	published [][]byte

	stop    context.CancelFunc
	stopped sync.WaitGroup
	first   chan struct{} // closed with the first entry
	err     error         // of the file; read after close
}

// glance is how often the observer looks without being rung for: the bell may be
// lost with a connection.
const glance = 20 * time.Millisecond

func observe(url, run, path string) (*observer, error) {
	o := &observer{run: run, bell: make(chan struct{}, 1), first: make(chan struct{})}
	o.live, o.lost = context.WithCancel(context.Background())
	// It is back before any controller is, which could compact what nobody has read.
	var err error
	o.nc, err = nats.Connect(url, nats.Name("chaos observer"), nats.MaxReconnects(-1), nats.ReconnectWait(2*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ReconnectBufSize(-1), nats.RetryOnFailedConnect(true), nats.PingInterval(time.Second),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { o.disconnected() }), nats.ReconnectHandler(func(*nats.Conn) { o.ring() }))
	if err != nil {
		return nil, err
	}
	if o.js, err = jetstream.New(o.nc, jetstream.WithDefaultTimeout(time.Second)); err != nil {
		return nil, err
	}
	if o.out, err = os.Create(path); err != nil {
		return nil, err
	}
	// What is published may be refused, so it only rings, and is a witness for what
	// is compacted before it was read: the stream has the truth.
	_, err = o.nc.Subscribe(o.log(), func(m *nats.Msg) {
		o.mu.Lock()
		o.published = append(o.published, m.Data)
		o.mu.Unlock()
		o.ring()
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.stop = cancel
	o.stopped.Go(func() { o.err = o.follow(ctx) })
	return o, nil
}

func (o *observer) ring() {
	select {
	case o.bell <- struct{}{}:
	default:
	}
}

// disconnected ends the call in flight: its answer will not come.
func (o *observer) disconnected() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost()
	o.live, o.lost = context.WithCancel(context.Background())
}

func (o *observer) log() string { return "sheaf." + o.run + ".led.log" }

// follow reads the log entry by entry.
func (o *observer) follow(ctx context.Context) error {
	var last uint64
	for hot := 0; ctx.Err() == nil; {
		raw, err := o.next(ctx, last+1)
		if err != nil { // not there yet, or NATS is down
			pause := glance
			if hot > 0 { // it rang: an entry is on its way into the stream
				hot--
				pause = time.Millisecond
			}
			select {
			case <-o.bell:
				hot = 50
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		if last == 0 {
			close(o.first)
		}
		missed := o.witnesses(raw.Data)
		if uint64(len(missed)) == raw.Sequence-last-1 {
			for i, data := range missed {
				if err := o.note(last+1+uint64(i), raw.Time, data); err != nil {
					return err
				}
			}
		}
		if err := o.note(raw.Sequence, raw.Time, raw.Data); err != nil {
			return err
		}
		last = raw.Sequence
	}
	return nil
}

// witnesses returns, once each, the entries that were published before one that
// was now read, and behind the one read before that.
func (o *observer) witnesses(entry []byte) [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	same := func(a []byte) func([]byte) bool { return func(b []byte) bool { return bytes.Equal(a, b) } }
	at := slices.IndexFunc(o.published, same(entry))
	if at < 0 {
		return nil
	}
	var before [][]byte
	for _, data := range o.published[:at] {
		if !slices.ContainsFunc(before, same(data)) {
			before = append(before, data)
		}
	}
	// What was published again because its answer was lost is no later entry.
	o.published = slices.DeleteFunc(o.published[at:], same(entry))
	return before
}

// note writes one entry down.
func (o *observer) note(seq uint64, at time.Time, data []byte) error {
	line, err := json.Marshal(map[string]any{"seq": seq, "time": at, "data": base64.StdEncoding.EncodeToString(data)})
	if err != nil {
		return err
	}
	_, err = o.out.Write(append(line, '\n'))
	return err
}

func (o *observer) next(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	o.mu.Lock()
	defer context.AfterFunc(o.live, cancel)()
	o.mu.Unlock()
	if o.ledger == nil {
		var err error
		if o.ledger, err = o.js.Stream(ctx, "SHEAF_LEDGER_"+o.run); err != nil {
			return nil, err
		}
	}
	return o.ledger.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(o.log()))
}

// left names what a finished run has left in its streams beside fence marks and
// waste: nothing, if all was trimmed for good.
func (o *observer) left(ctx context.Context) ([]string, error) {
	var out []string
	for _, part := range []struct{ stream, subjects string }{{"SHEAF_JOBS_", "jobs.*.*"}, {"SHEAF_RESULTS_", "res.*.*.*"}} {
		s, err := o.js.Stream(ctx, part.stream+o.run)
		if err != nil {
			return nil, fmt.Errorf("look for what is left: %w", err)
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter("sheaf."+o.run+"."+part.subjects))
		if err != nil {
			return nil, fmt.Errorf("look for what is left: %w", err)
		}
		for subject := range info.State.Subjects {
			out = append(out, strings.TrimPrefix(subject, "sheaf."+o.run+"."))
		}
	}
	return out, nil
}

func (o *observer) close() error {
	o.stop()
	o.stopped.Wait()
	o.nc.Close()
	return errors.Join(o.err, o.out.Close())
}
