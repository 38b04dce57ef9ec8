package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestSeedFixesSchedule: a round can be replayed, and seeds differ.
func TestSeedFixesSchedule(t *testing.T) {
	kinds := map[kind]bool{}
	for seed := range int64(200) {
		s := newSchedule(seed)
		if !reflect.DeepEqual(s, newSchedule(seed)) {
			t.Fatalf("seed %d gives two schedules", seed)
		}
		if reflect.DeepEqual(s.faults, newSchedule(seed+1).faults) {
			t.Errorf("seeds %d and %d give one schedule", seed, seed+1)
		}
		for _, f := range s.faults {
			kinds[f.kind] = true
			if f.at < 0 || f.at >= window || f.length > 4*time.Second {
				t.Errorf("seed %d: %v", seed, f)
			}
		}
	}
	if len(kinds) != len(menuKinds()) {
		t.Errorf("200 seeds have the kinds %v only", kinds)
	}
}

func menuKinds() map[kind]bool {
	kinds := map[kind]bool{}
	for _, d := range menu() {
		kinds[d.kind] = true
	}
	return kinds
}

// TestProxy: it passes bytes on, holds them up, swallows them, and resets.
func TestProxy(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn) // until the proxy cuts it
				_ = conn.Close()
			}()
		}
	}()
	p, err := newProxy("127.0.0.1:0", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", p.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	echo := func(conn net.Conn) error {
		if _, err := conn.Write([]byte("ping")); err != nil {
			return err
		}
		got := make([]byte, 4)
		_, err := io.ReadFull(conn, got)
		if err == nil && !bytes.Equal(got, []byte("ping")) {
			return errors.New("other bytes came back")
		}
		return err
	}
	conn := dial()
	if err := echo(conn); err != nil {
		t.Fatal(err)
	}
	const hold = 100 * time.Millisecond
	stalled := make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(stalled)
		p.stall(context.Background(), hold)
	}()
	for { // until the stall has begun
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		select {
		case <-open:
			continue
		default:
		}
		break
	}
	if err := echo(conn); err != nil || time.Since(begun) < hold {
		t.Errorf("through a stall of %s: %v after %s", hold, err, time.Since(begun))
	}
	<-stalled
	p.cut()
	if err := echo(conn); err == nil {
		t.Error("a connection outlived the cut")
	}
	_ = conn.Close()
	conn = dial()
	defer func() { _ = conn.Close() }()
	if err := echo(conn); err != nil {
		t.Fatal(err)
	}
	lost := make(chan struct{})
	p.setLossy(true)
	go func() {
		defer close(lost)
		p.lose(context.Background(), hold)
	}()
	if err := echo(conn); err == nil {
		t.Error("lossy, and yet an echo")
	}
	<-lost
}
