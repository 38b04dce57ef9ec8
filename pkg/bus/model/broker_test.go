package model

import (
	"errors"
	"fmt"
	"slices"
)

// errUnavailable: no answer; the request was executed or not. errFenced: an
// expectation did not hold.
var (
	errUnavailable = errors.New("unavailable")
	errFenced      = errors.New("fenced")
)

// kind of a subject.
type kind byte

const (
	logEntry kind = iota
	jobFence
	resFence
	job
	mark
	result
	waste
)

func (k kind) String() string {
	return [...]string{"log", "jobs.fence", "res.fence", "job", "mark", "result", "waste"}[k]
}

// subject is a subject of a stream, taken apart.
type subject struct {
	kind                 kind
	wave, group, episode int
}

func (s subject) String() string {
	switch s.kind {
	case job, mark:
		return fmt.Sprintf("%s %d.%d", s.kind, s.wave, s.group)
	case result:
		return fmt.Sprintf("result %d.%d.%d", s.wave, s.group, s.episode)
	default:
		return s.kind.String()
	}
}

func (s subject) ofWave() bool { return s.kind == job || s.kind == mark || s.kind == result }

// message is a stored message. What it carries depends on its subject.
type message struct {
	seq     int
	subject subject
	id      string // for deduplication; "" for none

	entry    *entry  // of the log
	attempt  int     // of a lease mark
	nonce    int     // of a fence or a lease mark
	digest   int     // of a result: which run of the episode it is
	failed   bool    // of a result
	episodes []int   // of a job
	pending  bool    // a job that somebody is thought to hold
	holder   *worker // who that is
	tries    int     // deliveries as the broker counts them
}

// expectation is what a write expects: the last sequence of a subject.
type expectation struct {
	subject subject
	last    int
}

// stream is a JetStream stream with the weaknesses that were measured: what was
// purged may come back after a crash, delivery records are lost, a damaged block
// drops the tail and its sequences are used again.
type stream struct {
	name string
	last int
	msgs []*message // by sequence
	gone []*message // purged lately; a crash may undo it
	ids  map[string]int
}

const remembered = 24 // purged messages that may come back

func (s *stream) lastOf(sub subject) *message {
	for _, m := range slices.Backward(s.msgs) {
		if m.subject == sub {
			return m
		}
	}
	return nil
}

func (s *stream) lastSeq(sub subject) int {
	if m := s.lastOf(sub); m != nil {
		return m.seq
	}
	return 0
}

// publish checks the expectation first and the id second, as the server does.
func (s *stream) publish(m message, want *expectation) (seq int, stored bool, err error) {
	if want != nil && s.lastSeq(want.subject) != want.last {
		return 0, false, errFenced
	}
	if m.id != "" && s.ids[m.id] > 0 {
		return s.ids[m.id], false, nil
	}
	s.last++
	m.seq = s.last
	s.msgs = append(s.msgs, &m)
	if m.id != "" {
		s.ids[m.id] = m.seq
	}
	return m.seq, true, nil
}

func (s *stream) at(seq int) *message {
	i, ok := slices.BinarySearchFunc(s.msgs, seq, func(m *message, seq int) int { return m.seq - seq })
	if !ok {
		return nil
	}
	return s.msgs[i]
}

// next is the first message behind a sequence.
func (s *stream) next(behind int) *message {
	i, _ := slices.BinarySearchFunc(s.msgs, behind+1, func(m *message, seq int) int { return m.seq - seq })
	if i == len(s.msgs) {
		return nil
	}
	return s.msgs[i]
}

// purge removes what matches and returns it.
func (s *stream) purge(match func(*message) bool) (removed []*message) {
	s.msgs = slices.DeleteFunc(s.msgs, func(m *message) bool {
		if match(m) {
			removed = append(removed, m)
			return true
		}
		return false
	})
	s.gone = append(s.gone, removed...)
	s.gone = s.gone[max(0, len(s.gone)-remembered):]
	return removed
}

// restore undoes the removal of some messages.
func (s *stream) restore(chosen func() bool) (n int) {
	s.gone = slices.DeleteFunc(s.gone, func(m *message) bool {
		if m.seq >= s.last || !chosen() {
			return false
		}
		m.pending = false
		s.msgs = append(s.msgs, m)
		n++
		return true
	})
	slices.SortFunc(s.msgs, func(a, b *message) int { return a.seq - b.seq })
	return n
}

// cut drops the last n messages; their sequences are used again.
func (s *stream) cut(n int) {
	n = min(n, len(s.msgs))
	s.msgs = s.msgs[:len(s.msgs)-n]
	s.last = 0
	if len(s.msgs) > 0 {
		s.last = s.msgs[len(s.msgs)-1].seq
	}
	s.gone = slices.DeleteFunc(s.gone, func(m *message) bool { return m.seq >= s.last })
}

// restart rebuilds what the server holds in memory.
func (s *stream) restart() {
	clear(s.ids)
	for _, m := range s.msgs {
		if m.id != "" {
			s.ids[m.id] = m.seq
		}
	}
}
