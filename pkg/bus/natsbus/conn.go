package natsbus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/internal/failpoint"
	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// Config says how to reach the bus.
type Config struct {
	// Server is the embedded server to use; nil means URLs.
	Server *Server
	URLs   []string
	// Name is shown in the server's connection list.
	Name string
	// Token, CredsFile or NKeyFile authenticate; at most one is set.
	Token     string
	CredsFile string
	NKeyFile  string
	// CAFile, CertFile and KeyFile are PEM files for TLS.
	CAFile   string
	CertFile string
	KeyFile  string
	// Replicas of every stream, 1 or 3.
	Replicas int
	// ConnectWait bounds the first connection; 10 s when zero.
	ConnectWait time.Duration
	// Waiting is called, when set, each time the server was looked for in vain.
	Waiting func(error)
	// Trouble is called, when set, with what goes wrong on the connection beside
	// any call.
	Trouble func(error)
}

// Conn is a connection to the bus.
type Conn struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	codec *wire.Codec
	cfg   Config

	mu   sync.Mutex
	live context.Context // ends when the connection is lost
	lost context.CancelCauseFunc
	// since is when the connection was lost; zero while there is one. outages
	// counts the losses.
	since   time.Time
	outages int
}

var errDisconnected = errors.New("connection to NATS lost")

const (
	callTimeout = 5 * time.Second
	tryTimeout  = 2 * time.Second
)

// Connect dials the bus and checks that JetStream answers.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if cfg.Replicas == 0 {
		cfg.Replicas = 1
	}
	if cfg.ConnectWait == 0 {
		cfg.ConnectWait = 10 * time.Second
	}
	if err := checkURLs(cfg); err != nil {
		return nil, err
	}
	codec, err := wire.New()
	if err != nil {
		return nil, err
	}
	c := &Conn{codec: codec, cfg: cfg}
	c.live, c.lost = context.WithCancelCause(context.Background())
	opts, err := c.options()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectWait)
	defer cancel()
	if err := c.dial(ctx, strings.Join(cfg.URLs, ","), opts); err != nil {
		return nil, err
	}
	if c.js, err = jetstream.New(c.nc, jetstream.WithDefaultTimeout(callTimeout), jetstream.WithPublishAsyncTimeout(callTimeout)); err != nil {
		c.Close()
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	err = c.retry(ctx, "ask NATS at "+c.where()+" for JetStream", func(ctx context.Context) error {
		_, err := c.js.AccountInfo(ctx)
		return err
	})
	if err != nil {
		c.Close()
	}
	switch {
	case errors.Is(err, bus.ErrUnavailable):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("NATS at %s has no JetStream for this account (%w): start it with -js", c.where(), err)
	}
	return c, nil
}

// checkURLs refuses what no waiting will make an address.
func checkURLs(cfg Config) error {
	if cfg.Server != nil {
		return nil
	}
	for _, raw := range cfg.URLs {
		u, err := url.Parse(raw)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return fmt.Errorf("%q is no address of a NATS server: write nats://host:port", redacted(raw))
		}
	}
	if len(cfg.URLs) == 0 {
		return errors.New("no NATS server is named: write nats://host:port")
	}
	return nil
}

// redacted is a URL without credentials.
func redacted(raw string) string {
	if _, host, ok := strings.Cut(raw, "@"); ok {
		return host
	}
	return raw
}

// dial tries until ctx ends, because a worker may well be started before its
// server.
func (c *Conn) dial(ctx context.Context, urls string, opts []nats.Option) error {
	for {
		nc, err := nats.Connect(urls, opts...)
		if err == nil {
			c.nc = nc
			return nil
		}
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) {
			return fmt.Errorf("NATS at %s refuses the credentials: %w", c.where(), err)
		}
		if c.cfg.Waiting != nil {
			c.cfg.Waiting(err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: no NATS server at %s after %s (%w): start it, or correct the address", bus.ErrUnavailable, c.where(), c.cfg.ConnectWait, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *Conn) options() ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(c.cfg.Name), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(20*time.Millisecond, 20*time.Millisecond),
		// A write that waits in a buffer for a reconnect comes after its fence was
		// checked by nobody: fail it now and let the caller repeat it.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(time.Second), nats.MaxPingsOutstanding(3), nats.Timeout(2 * time.Second),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { c.disconnected() }),
		nats.ReconnectHandler(func(*nats.Conn) { c.reconnected() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if c.cfg.Trouble != nil {
				c.cfg.Trouble(err)
			}
		}),
		nats.ClosedHandler(func(*nats.Conn) { c.disconnected() }),
	}
	switch {
	case c.cfg.Server != nil:
		opts = append(opts, nats.InProcessServer(c.cfg.Server.ns))
		if c.cfg.Server.token != "" {
			opts = append(opts, nats.Token(c.cfg.Server.token))
		}
	case c.cfg.Token != "":
		opts = append(opts, nats.Token(c.cfg.Token))
	case c.cfg.CredsFile != "":
		if _, err := os.Stat(c.cfg.CredsFile); err != nil {
			return nil, fmt.Errorf("NATS credentials: %w", err)
		}
		opts = append(opts, nats.UserCredentials(c.cfg.CredsFile))
	case c.cfg.NKeyFile != "":
		opt, err := nats.NkeyOptionFromSeed(c.cfg.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("nats.nkey: %w", err)
		}
		opts = append(opts, opt)
	}
	if c.cfg.CAFile == "" && c.cfg.CertFile == "" {
		return opts, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.cfg.CAFile != "" {
		pem, err := os.ReadFile(c.cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("nats.tls.ca: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("nats.tls.ca: no certificate in %s", c.cfg.CAFile)
		}
	}
	if c.cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.cfg.CertFile, c.cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("nats.tls.cert: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return append(opts, nats.Secure(conf)), nil
}

// where names the server for messages, without credentials in the URL.
func (c *Conn) where() string {
	if c.cfg.Server != nil {
		return "the embedded server"
	}
	shown := make([]string, len(c.cfg.URLs))
	for i, u := range c.cfg.URLs {
		shown[i] = redacted(u)
	}
	return strings.Join(shown, ", ")
}

// disconnected ends every call in flight: their answers will not come.
func (c *Conn) disconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost(errDisconnected)
	c.live, c.lost = context.WithCancelCause(context.Background())
	if c.since.IsZero() {
		c.since = time.Now()
		c.outages++
	}
}

// alive is a context that ends when the connection is lost the next time.
func (c *Conn) alive() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live
}

func (c *Conn) reconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Time{}
}

// outage is for how long there has been no connection, and how many there were.
func (c *Conn) outage() (time.Duration, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return 0, c.outages
	}
	return time.Since(c.since), c.outages
}

// bound returns ctx bounded by d and by the life of the current connection.
func (c *Conn) bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	live := c.alive()
	ctx, cancelCause := context.WithCancelCause(ctx)
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(live, func() { cancelCause(errDisconnected) })
	return ctx, func() { stop(); cancel(); cancelCause(nil) }
}

// MaxRecord is the size up to which a record travels in one message: what the
// server takes, less room for headers.
func (c *Conn) MaxRecord() int { return int(c.nc.MaxPayload()) - headroom }

// Close ends the connection.
func (c *Conn) Close() { c.nc.Close() }

// try calls f once, bounded in time and by the life of the connection.
func (c *Conn) try(ctx context.Context, op string, f func(ctx context.Context) error) error {
	try, cancel := c.bound(ctx, tryTimeout)
	defer cancel()
	err := f(try)
	if cause := context.Cause(try); err != nil && ctx.Err() == nil && errors.Is(err, context.Canceled) && cause != nil {
		err = cause
	}
	return classify(op, err)
}

// retry repeats f, each try bounded, while its error is a passing one and ctx
// lives.
func (c *Conn) retry(ctx context.Context, op string, f func(ctx context.Context) error) error {
	wait := 20 * time.Millisecond
	for {
		err := c.try(ctx, op, f)
		if !passing(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (gave up: %w)", err, context.Cause(ctx))
		case <-time.After(wait):
		}
		wait = min(2*wait, time.Second)
	}
}

// publish stores one message, repeating the same bytes while the broker does not
// answer. A message with an expectation that was stored by a try whose answer
// was lost comes back as ErrFenced; the caller looks who wrote it.
func (c *Conn) publish(ctx context.Context, op string, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	var ack *jetstream.PubAck
	tries := 0
	err := c.retry(ctx, op, func(ctx context.Context) error {
		tries++
		var err error
		ack, err = c.js.PublishMsg(ctx, msg, append(opts, jetstream.WithRetryAttempts(0))...)
		if err == nil && failpoint.Hit("answer") {
			err = errDisconnected
		}
		return err
	})
	if tries > 1 && errors.Is(err, bus.ErrFenced) {
		err = fmt.Errorf("%w: %w", bus.ErrMaybeStored, err)
	}
	return ack, err
}
