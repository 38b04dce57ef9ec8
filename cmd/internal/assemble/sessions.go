package assemble

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sheaf-rl/sheaf/internal/worker"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/session"
	"github.com/sheaf-rl/sheaf/pkg/session/server"
)

// sessions is a worker's session server and its agent. A nil one is direct mode.
type sessions struct {
	store  *session.Store
	http   *http.Server
	served chan error
	client *http.Client
	worker *worker.Sessions
}

// openSessions starts what session mode needs.
func openSessions(spec rollout.RunSpec, model *chat.Model, opt Options) (*sessions, error) {
	if spec.Mode != rollout.ModeSession || spec.Session == nil {
		return nil, nil
	}
	family, err := model.Family(spec.Model.Family)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", spec.Session.Listen)
	if err != nil {
		return nil, fmt.Errorf("session server: %w", err)
	}
	s := &sessions{store: session.NewStore(), served: make(chan error, 1), client: &http.Client{}}
	s.http = &http.Server{
		Handler: server.New(server.Config{
			Store: s.store, Model: spec.Run, Log: opt.Log.With("part", "sessions"),
		}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { s.served <- s.http.Serve(listener) }()
	base := strings.TrimRight(spec.Session.Advertise, "/")
	if base == "" {
		base = "http://" + listener.Addr().String()
	}
	s.worker = &worker.Sessions{Store: s.store, Family: family, BaseURL: base, Model: spec.Run, Agent: s.agent(spec.Session, opt)}
	return s, nil
}

// agent is the program that plays the episodes.
func (s *sessions) agent(spec *rollout.SessionSpec, opt Options) worker.Agent {
	if spec.AgentHTTP != "" {
		return worker.HTTPAgent{URL: spec.AgentHTTP, Client: s.client}
	}
	env := slices.Clone(opt.AgentEnv)
	for _, name := range spec.AgentEnv {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return worker.ExecAgent{Args: spec.AgentExec, Env: env}
}

func (s *sessions) forWorker() *worker.Sessions {
	if s == nil {
		return nil
	}
	return s.worker
}

// close ends the sessions and the server. No episode runs.
func (s *sessions) close() error {
	if s == nil {
		return nil
	}
	s.store.Close()
	s.client.CloseIdleConnections()
	err := s.http.Close()
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
