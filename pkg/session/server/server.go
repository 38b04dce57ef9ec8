// Package server is the HTTP face of package session: OpenAI chat completions under
// a path per session, and the sessions themselves.
//
//	POST   /sessions                          opens one, where the server allows it
//	GET    /sessions/{id}                     its tree
//	DELETE /sessions/{id}                     closes it
//	POST   /sessions/{id}/v1/chat/completions a turn
//	GET    /sessions/{id}/v1/models           the one model
//	POST   /sessions/{id}/samples             what can be trained on
//	GET    /health
//
// A path can be left out by clients that cannot have one: then the API key is the
// session's id. What a client must not try again is answered with a status on which
// no known client does, and with x-should-retry: false.
package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/session"
)

// Config makes a server. Store is required.
type Config struct {
	Store *session.Store
	// Open returns the config of a session that a client opens; nil refuses them.
	Open func() (session.Config, error)
	// Token must be the bearer token of requests to open a session, where not empty.
	Token string
	// Model is the name that the model list shows.
	Model string
	// MaxBody bounds a request's body in bytes, decompressed; 64 MiB where 0.
	MaxBody int64
	// KeepAlive is the time between comments in a stream that has nothing to say;
	// 5 s where 0. HeaderWait is how long a stream waits for its first piece before
	// it sends its status, which nothing can change any more; 500 ms where 0.
	KeepAlive, HeaderWait time.Duration
	// BodyWait bounds the time to receive a body; 1 min where 0.
	BodyWait time.Duration
	Log      *slog.Logger
}

// Server serves sessions. It is an [http.Handler].
type Server struct {
	cfg    Config
	mux    *http.ServeMux
	bodies sync.Pool // of *[]byte
	// overridden makes one log line of all clients that set sampling parameters.
	overridden sync.Once
}

// New returns a server.
func New(cfg Config) *Server {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 64 << 20
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = 5 * time.Second
	}
	if cfg.HeaderWait == 0 {
		cfg.HeaderWait = 500 * time.Millisecond
	}
	if cfg.BodyWait == 0 {
		cfg.BodyWait = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.HandleFunc("POST /sessions", s.open)
	s.mux.HandleFunc("GET /sessions/{id}", s.show)
	s.mux.HandleFunc("DELETE /sessions/{id}", s.delete)
	s.mux.HandleFunc("POST /sessions/{id}/samples", s.samples)
	for _, base := range []string{"/sessions/{id}", ""} {
		s.mux.HandleFunc("POST "+base+"/v1/chat/completions", s.chat)
		// Clients that append /v1 to a base that has it are common.
		s.mux.HandleFunc("POST "+base+"/v1/v1/chat/completions", s.chat)
		s.mux.HandleFunc("GET "+base+"/v1/models", s.models)
		s.mux.HandleFunc("GET "+base+"/v1/models/{model...}", s.models)
		s.mux.HandleFunc("GET "+base+"/api/hello", s.hello)
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "not_found", "there is no "+r.Method+" of this path")
	})
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"status": "ok", "sessions": s.cfg.Store.Len(), "expired": s.cfg.Store.Expired()})
}

// hello answers the greetings that some clients send before they begin.
func (s *Server) hello(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("model")
	model := map[string]any{"id": s.cfg.Model, "object": "model", "created": 0, "owned_by": "sheaf"}
	if name != "" {
		model["id"] = name
		writeJSON(w, http.StatusOK, model)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{model}})
}

func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Open == nil {
		refuse(w, http.StatusForbidden, "sessions_closed", "this server opens no sessions for clients")
		return
	}
	if s.cfg.Token != "" && !equalSecret(bearer(r), s.cfg.Token) {
		refuse(w, http.StatusForbidden, "forbidden", "the token is missing or wrong")
		return
	}
	cfg, err := s.cfg.Open()
	if err != nil {
		s.fail(w, err)
		return
	}
	sess, err := s.cfg.Store.Open(cfg)
	if err != nil {
		s.fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"session_id": sess.ID()})
}

func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	sess, err := s.cfg.Store.Get(r.PathValue("id"))
	if err != nil {
		refuse(w, http.StatusNotFound, "session_not_found", err.Error())
		return
	}
	stats := sess.Stats()
	writeJSON(w, http.StatusOK, map[string]any{
		"session_id": sess.ID(),
		"metadata": map[string]any{
			"accumulated_token_ids": sess.Tokens(), "tree": map[string]any{"nodes": sess.Nodes()},
			"turns": stats.Turns, "calls": stats.Calls, "roots": stats.Roots, "options_changed": stats.OptionsChanged,
			"joined": stats.Joined, "replayed": stats.Replayed,
		},
	})
}

func (s *Server) delete(w http.ResponseWriter, r *http.Request) {
	if err := s.cfg.Store.Delete(r.PathValue("id")); err != nil {
		refuse(w, http.StatusNotFound, "session_not_found", err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// errForeignKey reports an API key that is the id of another session.
var errForeignKey = errors.New("the API key belongs to another session")

// session finds the session of a request: by its path, else by its key. The key is
// ignored where the path says it, unless it names another session.
func (s *Server) session(r *http.Request) (*session.Session, error) {
	id := r.PathValue("id")
	for _, key := range []string{bearer(r), r.Header.Get("X-Api-Key")} {
		if key == "" || !s.cfg.Store.Has(key) {
			continue
		}
		if id == "" {
			id = key
		}
		if id != key {
			return nil, errForeignKey
		}
	}
	if id == "" {
		return nil, fmt.Errorf("%w: the request names none", session.ErrUnknown)
	}
	return s.cfg.Store.Get(id)
}

func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
