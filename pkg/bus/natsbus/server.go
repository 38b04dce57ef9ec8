package natsbus

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
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
	return &Server{ns: ns, token: cfg.Token}, nil
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
