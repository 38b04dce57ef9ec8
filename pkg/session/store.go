package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"
)

// Store holds the open sessions of a process.
type Store struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	closed   bool
	sessions map[string]*Session
	expiring sync.WaitGroup
	expired  int
}

// NewStore returns a store without sessions.
func NewStore() *Store {
	st := &Store{sessions: map[string]*Session{}}
	st.ctx, st.cancel = context.WithCancel(context.Background())
	return st
}

// Open makes a session.
func (st *Store) Open(cfg Config) (*Session, error) {
	if cfg.Matcher == "" {
		cfg.Matcher = Strict
	}
	id := newID()
	s := newSession(st.ctx, id, cfg)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		s.cancel()
		return nil, fmt.Errorf("open a session: %w", ErrClosed)
	}
	st.sessions[id] = s
	if cfg.TTL > 0 {
		s.mu.Lock()
		s.idle = time.AfterFunc(cfg.TTL, func() { st.expire(s) })
		s.mu.Unlock()
	}
	return s, nil
}

// rearm starts the idle time anew. It is called with the session's lock held.
func (s *Session) rearm() {
	if s.idle != nil && !s.closed && s.running == 0 {
		s.idle.Reset(s.cfg.TTL)
	}
}

// expire closes a session that lay idle for its time.
func (st *Store) expire(s *Session) {
	st.mu.Lock()
	s.mu.Lock()
	idle := s.running == 0 && !s.closed && !st.closed
	s.mu.Unlock()
	if idle {
		delete(st.sessions, s.id)
		st.expired++
		st.expiring.Add(1)
	}
	st.mu.Unlock()
	if idle {
		defer st.expiring.Done()
		s.Close()
	}
}

// Get returns an open session.
func (st *Store) Get(id string) (*Session, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.sessions[id]
	if s == nil {
		return nil, ErrUnknown
	}
	return s, nil
}

// Has tells whether a text is the id of an open session.
func (st *Store) Has(id string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.sessions[id] != nil
}

// Delete closes a session and forgets it.
func (st *Store) Delete(id string) error {
	st.mu.Lock()
	s := st.sessions[id]
	delete(st.sessions, id)
	st.mu.Unlock()
	if s == nil {
		return ErrUnknown
	}
	s.Close()
	return nil
}

// Len counts the open sessions, Expired those that ended by their idle time.
func (st *Store) Len() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.sessions)
}

// Expired counts the sessions that ended because they lay idle.
func (st *Store) Expired() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.expired
}

// Close closes every session.
func (st *Store) Close() {
	st.mu.Lock()
	st.closed = true
	all := st.sessions
	st.sessions = map[string]*Session{}
	st.mu.Unlock()
	st.cancel()
	for _, s := range all {
		s.Close()
	}
	st.expiring.Wait()
}

// newID is 128 random bits: who knows it may use the session.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}
