package sglang

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
)

// Config says which engine a client speaks to, and how. Only URL is required.
type Config struct {
	// ID names the engine in errors and records; the URL where empty.
	ID string
	// URL is the engine's address: "http://host:30000".
	URL string
	// APIKey is sent as a bearer token, where not empty.
	APIKey string
	// ControlTimeout bounds each call that is not a generation; 10 s where 0.
	// An engine's own health check takes a second or more.
	ControlTimeout time.Duration
	// MaxReply bounds the body of a reply in bytes; 256 MiB where 0.
	MaxReply int64
	// MaxIdle is how many idle connections are kept; 512 where 0.
	MaxIdle int
}

// Client is one engine. It is safe for concurrent use, and implements
// [engine.Generator], [engine.Admin] and [engine.Tokenizer].
type Client struct {
	id       string
	base     string
	apiKey   string
	control  time.Duration
	maxReply int64
	http     *http.Client
	// staleAfter is how long a kept connection must have been idle for its end to
	// count as the server's idle timeout.
	staleAfter time.Duration

	replies sync.Pool // of *reply
	// aborts are the requests that Abort sends on its own for calls that ended
	// before their answer came.
	aborts sync.WaitGroup
}

var (
	_ engine.Generator = (*Client)(nil)
	_ engine.Streamer  = (*Client)(nil)
	_ engine.Admin     = (*Client)(nil)
	_ engine.Tokenizer = (*Client)(nil)
)

const (
	// idleTimeout is below the 5 s after which the engine's server closes an idle
	// connection, so that we do not send on one that is being closed (hazard 16).
	idleTimeout = 3 * time.Second
	dialTimeout = 5 * time.Second
	// maxErrorBody bounds what is read of an error's body.
	maxErrorBody = 16 << 10
)

// New returns a client. It does not connect.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("engine URL: must be http://host:port or https://host:port")
	}
	if u.User != nil { // errors and tables would show it
		return nil, errors.New("engine URL: must not hold a user name or a password")
	}
	c := &Client{
		id: cfg.ID, base: strings.TrimRight(cfg.URL, "/"), apiKey: cfg.APIKey,
		control: cfg.ControlTimeout, maxReply: cfg.MaxReply,
		staleAfter: time.Second,
		replies:    sync.Pool{New: func() any { return new(reply) }},
	}
	if c.id == "" {
		c.id = u.Host
	}
	if c.control == 0 {
		c.control = 10 * time.Second
	}
	if c.maxReply == 0 {
		c.maxReply = 256 << 20
	}
	idle := cfg.MaxIdle
	if idle == 0 {
		idle = 512
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	c.http = &http.Client{
		Transport: &http.Transport{
			// Engines are neighbours: a proxy meant for the internet is not asked.
			Proxy: nil,
			DialContext: (&net.Dialer{
				Timeout: dialTimeout,
				// A generation sends nothing for minutes. This finds a host that
				// lost its power within half a minute.
				KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
			}).DialContext,
			MaxIdleConnsPerHost:    idle,
			IdleConnTimeout:        idleTimeout,
			TLSHandshakeTimeout:    dialTimeout,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
			ReadBufferSize:         32 << 10,
			// A prompt of a few thousand tokens goes out in one write.
			WriteBufferSize: 16 << 10,
			Protocols:       protocols,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close waits for the abort requests still on their way, each bounded by the
// control timeout, and closes idle connections. Generate must not be called
// after it.
func (c *Client) Close() {
	c.aborts.Wait()
	c.http.CloseIdleConnections()
}

// trace is what is known of one exchange beside its result. The transport
// writes it from goroutines of its own.
type trace struct {
	wrote, answered atomic.Bool
	// idle is for how long the connection was kept without use; negative for a new
	// one.
	idle atomic.Int64
}

func (t *trace) with(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			t.idle.Store(-1)
			if i.Reused && i.WasIdle {
				t.idle.Store(int64(i.IdleTime))
			}
		},
		WroteHeaders:         func() { t.wrote.Store(true) },
		GotFirstResponseByte: func() { t.answered.Store(true) },
	})
}

// send makes one exchange. The caller closes the body. An error of the exchange,
// and every status but 200, is a fault.
func (c *Client) send(ctx context.Context, t *trace, method, path string, body []byte, header http.Header) (*http.Response, *engine.Error) {
	var payload io.Reader
	if body != nil {
		payload = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.with(ctx), method, c.base+path, payload)
	if err != nil {
		return nil, c.fail(engine.Rejected, 0, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.apiKey)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.exchangeError(ctx, t, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		if err != nil && ctx.Err() != nil {
			return nil, c.exchangeError(ctx, t, err)
		}
		message := errorText(text)
		if message == "" {
			message = http.StatusText(resp.StatusCode)
		}
		return nil, c.fail(reasonOfStatus(resp.StatusCode, engine.BadReply), resp.StatusCode, errors.New(message))
	}
	return resp, nil
}

func (c *Client) fail(reason engine.Reason, status int, err error) *engine.Error {
	return &engine.Error{Reason: reason, Engine: c.id, Status: status, Err: err}
}

// exchangeError classifies an exchange that ended without a status.
func (c *Client) exchangeError(ctx context.Context, t *trace, err error) *engine.Error {
	// The URL is known, and the client's error repeats it.
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return c.fail(engine.Timeout, 0, errors.New("no reply before the deadline of the call"))
	case ctx.Err() != nil:
		return c.fail(engine.Canceled, 0, fmt.Errorf("the call was given up: %w", context.Cause(ctx)))
	case !t.wrote.Load():
		return c.fail(engine.Unreachable, 0, fmt.Errorf("cannot connect to %s: %w", c.base, err))
	case t.answered.Load() && !isBroken(err):
		return c.fail(engine.BadReply, 0, fmt.Errorf("not an HTTP reply: %w", err))
	default:
		return c.fail(engine.Reset, 0, fmt.Errorf("the connection broke before the reply: %w", err))
	}
}

// isBroken tells a connection's end from a reply that we cannot read.
func isBroken(err error) bool {
	var netErr net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &netErr)
}

// bodyError classifies the end of reading a body.
func (c *Client) bodyError(ctx context.Context, err error) *engine.Error {
	switch {
	case errors.Is(err, errTooLarge):
		return c.fail(engine.TooLarge, http.StatusOK, fmt.Errorf("%w of %d bytes", err, c.maxReply))
	case errors.Is(err, errSyntax), errors.Is(err, errTokenID):
		return c.fail(engine.BadReply, http.StatusOK, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return c.fail(engine.Timeout, http.StatusOK, errors.New("the reply was not complete before the deadline of the call"))
	case ctx.Err() != nil:
		return c.fail(engine.Canceled, http.StatusOK, fmt.Errorf("the call was given up: %w", context.Cause(ctx)))
	case isBroken(err):
		return c.fail(engine.Reset, http.StatusOK, fmt.Errorf("the connection broke within the reply: %w", err))
	default:
		return c.fail(engine.BadReply, http.StatusOK, err)
	}
}

// reasonOfStatus is the reason of an HTTP status; other is for one that is no
// error or none at all.
func reasonOfStatus(status int, other engine.Reason) engine.Reason {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return engine.Overloaded
	case status >= 400 && status < 500:
		return engine.Rejected
	case status >= 500 && status < 600:
		return engine.Faulty
	default:
		return other
	}
}
