package natsbus

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sheaf-rl/sheaf/pkg/bus"
)

// ServerConfig configures the embedded server.
type ServerConfig struct {
	// Dir holds the store.
	Dir string
	// Listen is host:port for clients outside the process; "" opens no socket.
	Listen string
	// Token is required of every client when set, in-process ones included.
	Token string
	// SyncAlways syncs every write to disk: safe against power loss, and about
	// ten times slower.
	SyncAlways bool
}

// Server is an embedded NATS server with JetStream.
type Server struct {
	ns    *server.Server
	token string
	dir   string
}

// minRoom is what the store's disk must have free: a result and what surrounds
// it. Without room the server stops answering instead of refusing.
const minRoom = 16 << 20

// Broken is an error when the server can no longer store: it has to be started
// anew, after what the error says was mended.
func (s *Server) Broken() error {
	if err := checkRoom(s.dir, syscall.Statfs); err != nil {
		return err
	}
	if !s.ns.JetStreamEnabled() {
		return fmt.Errorf("%w: the embedded NATS server has given up its store in %s: look at that disk, and start the run again", bus.ErrFull, s.dir)
	}
	return nil
}

func checkRoom(dir string, statfs func(string, *syscall.Statfs_t) error) error {
	var st syscall.Statfs_t
	if err := statfs(dir, &st); err != nil {
		return fmt.Errorf("the embedded store's folder %s is gone or cannot be read (%w): start the run again with --fresh, or bring it back", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minRoom {
		return fmt.Errorf("%w: only %d KiB are free on the disk of %s, and the store needs %d MiB: free some space and start the run again", bus.ErrFull, free>>10, dir, minRoom>>20)
	}
	return nil
}

// maxPayload lets a result of 8 MiB travel in one message with its headers.
const maxPayload = 8<<20 + 64<<10

const serverReady = 20 * time.Second

// StartServer starts a server and waits until it is ready.
func StartServer(cfg ServerConfig) (*Server, error) {
	opts := &server.Options{
		ServerName: "sheaf", DontListen: cfg.Listen == "", NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: cfg.Dir, SyncAlways: cfg.SyncAlways,
		MaxPayload: maxPayload, Authorization: cfg.Token, DisableJetStreamBanner: true,
	}
	if cfg.Listen != "" {
		host, port, err := net.SplitHostPort(cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("nats.listen %q: %w: write host:port", cfg.Listen, err)
		}
		opts.Host = host
		if opts.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("nats.listen %q: port: %w", cfg.Listen, err)
		}
		if opts.Port == 0 {
			opts.Port = server.RANDOM_PORT
		}
		// The server logs a taken port and goes on trying; a try of our own gives
		// the user a sentence at once.
		l, err := net.Listen("tcp", cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("nats.listen: %w: free the address or choose another", err)
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("nats.listen %q: %w", cfg.Listen, err)
		}
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("embedded store: %w", err)
	}
	if err := checkRoom(cfg.Dir, syscall.Statfs); err != nil {
		return nil, err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	ns.Start()
	if !ns.ReadyForConnections(serverReady) {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, fmt.Errorf("embedded NATS server on %s is not ready after %s: is %s writable, is there room on its disk?", cfg.Listen, serverReady, filepath.Clean(cfg.Dir))
	}
	if !ns.JetStreamEnabled() {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, errors.New("embedded NATS server has no JetStream: is " + filepath.Clean(cfg.Dir) + " writable, is there room on its disk?")
	}
	return &Server{ns: ns, token: cfg.Token, dir: cfg.Dir}, nil
}

// URL is the address for clients outside the process, "" when it does not listen.
func (s *Server) URL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Close stops the server and waits for it.
func (s *Server) Close() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}
