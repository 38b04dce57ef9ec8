package worker

import (
	"context"
	"sync"
)

// slots bounds the episodes that run at once. An episode that was leased waits
// for a slot in line; no job is leased while one waits. So a worker holds at most
// one job more than it can run, and the others are left to other workers.
type slots struct {
	mu    sync.Mutex
	size  int
	busy  int             // episodes running
	due   int             // episodes leased and not running yet
	line  []chan struct{} // those that wait for a slot, first come first served
	space chan struct{}   // closed at the next change that may make room
}

func newSlots(size int) *slots { return &slots{size: size, space: make(chan struct{})} }

// room waits until another job may be leased; false when ctx ended first.
func (s *slots) room(ctx context.Context) bool {
	for {
		s.mu.Lock()
		free, space := s.busy+s.due < s.size, s.space
		s.mu.Unlock()
		if free {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-space:
		}
	}
}

// add says that n more episodes were leased; each is then taken or dropped.
func (s *slots) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due += n
}

// drop says that n leased episodes will not run.
func (s *slots) drop(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due -= n
	s.changed()
}

// take waits for a slot for a leased episode; false when ctx ended first.
func (s *slots) take(ctx context.Context) bool {
	s.mu.Lock()
	if s.busy < s.size {
		s.busy++
		s.due--
		s.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	s.line = append(s.line, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range s.line {
		if c == turn {
			s.line = append(s.line[:i], s.line[i+1:]...)
			return false
		}
	}
	return true // the slot came at the same moment
}

// release frees a slot, for the first in line.
func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line) > 0 {
		close(s.line[0])
		s.line = s.line[1:]
		s.due--
		return
	}
	s.busy--
	s.changed()
}

func (s *slots) changed() {
	close(s.space)
	s.space = make(chan struct{})
}
