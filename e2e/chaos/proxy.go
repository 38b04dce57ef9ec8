package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// proxy is a network between clients and NATS that can fail: cut connections,
// stand still, or swallow what is sent until the connections end.
type proxy struct {
	listener net.Listener
	upstream string
	serving  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
	open  chan struct{} // closed while bytes pass
	lossy bool
}

func newProxy(listen, upstream string) (*proxy, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, upstream: upstream, conns: map[*net.TCPConn]struct{}{}, open: make(chan struct{})}
	close(p.open)
	p.serving.Go(p.accept)
	return p, nil
}

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.serving.Go(func() { p.serve(conn.(*net.TCPConn)) })
	}
}

// serve joins a client to the server until either ends.
func (p *proxy) serve(client *net.TCPConn) {
	defer p.drop(client)
	p.keep(client)
	up, err := net.DialTimeout("tcp", p.upstream, time.Second)
	if err != nil {
		return // the client sees what it would without us
	}
	server := up.(*net.TCPConn)
	defer p.drop(server)
	p.keep(server)
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
		both.Go(func() {
			p.copy(way[0], way[1])
			_, _ = way[0].Close(), way[1].Close() // ends the other way
		})
	}
	both.Wait()
}

func (p *proxy) copy(from, to *net.TCPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		open, lossy := p.open, p.lossy
		p.mu.Unlock()
		<-open
		if n > 0 && !lossy {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) keep(c *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
}

func (p *proxy) drop(c *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close() // may be closed already
}

// cut resets every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.SetLinger(0) // a reset, not an orderly end
		_ = c.Close()
	}
}

// stall lets nothing pass for a while; what was sent passes then.
func (p *proxy) stall(ctx context.Context, d time.Duration) {
	p.mu.Lock()
	open := make(chan struct{})
	before := p.open
	p.open = open
	p.mu.Unlock()
	<-before // one stall at a time
	wait(ctx, d)
	close(open)
}

// lose swallows all bytes for a while and then cuts the connections, as a network
// does that comes back with new routes.
func (p *proxy) lose(ctx context.Context, d time.Duration) {
	p.setLossy(true)
	wait(ctx, d)
	p.cut()
	p.setLossy(false)
}

func (p *proxy) setLossy(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lossy = on
}

func (p *proxy) close() {
	_ = p.listener.Close() // nothing else can be done about it
	p.cut()
	p.serving.Wait()
}

// wait waits for d, the length of a fault, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
