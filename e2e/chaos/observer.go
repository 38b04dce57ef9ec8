package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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

	ledger  jetstream.Stream // once it exists
	stop    context.CancelFunc
	stopped sync.WaitGroup
	first   chan struct{} // closed with the first entry
	err     error         // of the file; read after close
}

// glance is how often the observer looks without being rung for: the bell may be
// lost with a connection.
const glance = 20 * time.Millisecond

func observe(url, run, path string) (*observer, error) {
	nc, err := nats.Connect(url, nats.Name("chaos observer"), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.RetryOnFailedConnect(true), nats.PingInterval(time.Second))
	if err != nil {
		return nil, err
	}
	o := &observer{nc: nc, run: run, bell: make(chan struct{}, 1), first: make(chan struct{})}
	if o.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(time.Second)); err != nil {
		return nil, err
	}
	if o.out, err = os.Create(path); err != nil {
		return nil, err
	}
	// What is published may be refused, so it only rings: the stream has the truth.
	_, err = nc.Subscribe(o.log(), func(*nats.Msg) {
		select {
		case o.bell <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.stop = cancel
	o.stopped.Go(func() { o.err = o.follow(ctx) })
	return o, nil
}

func (o *observer) log() string { return "sheaf." + o.run + ".led.log" }

// follow reads the log entry by entry.
func (o *observer) follow(ctx context.Context) error {
	var last uint64
	for ctx.Err() == nil {
		raw, err := o.next(ctx, last+1)
		if err != nil { // not there yet, or NATS is down
			select {
			case <-o.bell:
			case <-ctx.Done():
			case <-time.After(glance):
			}
			continue
		}
		if last == 0 {
			close(o.first)
		}
		last = raw.Sequence
		line, err := json.Marshal(map[string]any{"seq": raw.Sequence, "time": raw.Time, "data": base64.StdEncoding.EncodeToString(raw.Data)})
		if err != nil {
			return err
		}
		if _, err := o.out.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

func (o *observer) next(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
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
