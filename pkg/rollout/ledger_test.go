package rollout_test

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// history writes a log as a correct controller does, one random lawful entry at a
// time, and keeps the plans that must be open.
type history struct {
	entries []rollout.LedgerEntry
	state   rollout.RunState
	open    []rollout.Plan
}

func (h *history) add(e rollout.LedgerEntry) {
	h.entries = append(h.entries, e)
	h.state = e.State
}

func (h *history) grow(t *rapid.T) {
	s := h.state
	switch rapid.IntRange(0, 4).Draw(t, "entry") {
	case 0:
		s.Epoch++
		s.Closed = false
		h.add(rollout.LedgerEntry{Kind: rollout.EntryOpen, State: s})
	case 1:
		p := rollout.Plan{Wave: s.NextWave, Step: s.NextStep, FirstGroup: s.NextGroup, FirstPosition: s.Cursor, Groups: rapid.IntRange(1, 4).Draw(t, "groups"), Episodes: 2}
		h.add(rollout.LedgerEntry{Kind: rollout.EntryPlan, State: s.Planned(p), Plan: &p})
		h.open = append(h.open, p)
	case 2:
		m := rollout.Manifest{Step: s.NextStep}
		s.NextStep++
		h.add(rollout.LedgerEntry{Kind: rollout.EntryManifest, State: s, Manifest: &m})
	case 3:
		s.Trimmed = rapid.Int64Range(s.Trimmed, s.NextWave).Draw(t, "trimmed")
		h.add(rollout.LedgerEntry{Kind: rollout.EntryTrimmed, State: s})
		var open []rollout.Plan
		for _, p := range h.open {
			if p.Wave >= s.Trimmed {
				open = append(open, p)
			}
		}
		h.open = open
	case 4:
		s.Closed = true
		h.add(rollout.LedgerEntry{Kind: rollout.EntryClosed, State: s})
	}
}

func newHistory() *history {
	h := &history{}
	h.add(rollout.LedgerEntry{Kind: rollout.EntryOpen, State: rollout.RunState{Epoch: 1, Fingerprint: "f"}})
	return h
}

func TestReplayFindsStateAndOpenPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		for range rapid.IntRange(0, 30).Draw(t, "entries") {
			h.grow(t)
		}
		state, open, err := rollout.Replay(h.entries)
		if err != nil {
			t.Fatal(err)
		}
		if state != h.state {
			t.Errorf("state %+v, want %+v", state, h.state)
		}
		if len(open) != len(h.open) || len(open) > 0 && !reflect.DeepEqual(open, h.open) {
			t.Errorf("open %+v, want %+v", open, h.open)
		}
	})
}

// TestReplayOfACompactedLog: the log may lose its front up to any entry before
// the first open plan, and still says the same.
func TestReplayOfACompactedLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		for range rapid.IntRange(0, 30).Draw(t, "entries") {
			h.grow(t)
		}
		first := len(h.entries) - 1
		for i, e := range h.entries {
			if e.Plan != nil && e.Plan.Wave >= h.state.Trimmed {
				first = i
				break
			}
		}
		state, open, err := rollout.Replay(h.entries[first:])
		if err != nil {
			t.Fatal(err)
		}
		if state != h.state || len(open) != len(h.open) {
			t.Errorf("state %+v with %d open plans, want %+v with %d", state, len(open), h.state, len(h.open))
		}
	})
}

func TestReplayRefuses(t *testing.T) {
	open := rollout.LedgerEntry{Kind: rollout.EntryOpen, State: rollout.RunState{Epoch: 1}}
	plan := rollout.Plan{Groups: 2, Episodes: 1}
	planned := rollout.LedgerEntry{Kind: rollout.EntryPlan, Plan: &plan, State: open.State.Planned(plan)}
	with := func(e rollout.LedgerEntry, change func(*rollout.LedgerEntry)) rollout.LedgerEntry {
		change(&e)
		return e
	}
	cases := []struct {
		name string
		next rollout.LedgerEntry
	}{
		{"a plan entry without a plan", rollout.LedgerEntry{Kind: rollout.EntryPlan, State: planned.State}},
		{"a wave planned twice", planned},
		{"a manifest of a later step", rollout.LedgerEntry{Kind: rollout.EntryManifest, Manifest: &rollout.Manifest{Step: 1}, State: planned.State}},
		{"a manifest that commits nothing", rollout.LedgerEntry{Kind: rollout.EntryManifest, State: planned.State}},
		{"trimmed beyond what was planned", rollout.LedgerEntry{Kind: rollout.EntryTrimmed, State: with(planned, func(e *rollout.LedgerEntry) { e.State.Trimmed = 2 }).State}},
		{"an epoch skipped", rollout.LedgerEntry{Kind: rollout.EntryOpen, State: with(planned, func(e *rollout.LedgerEntry) { e.State.Epoch = 3 }).State}},
		{"another fingerprint", rollout.LedgerEntry{Kind: rollout.EntryClosed, State: with(planned, func(e *rollout.LedgerEntry) { e.State.Closed, e.State.Fingerprint = true, "x" }).State}},
		{"an unknown kind", rollout.LedgerEntry{Kind: "melted", State: planned.State}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := rollout.Replay([]rollout.LedgerEntry{open, planned, tc.next}); !errors.Is(err, rollout.ErrLedger) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMessageKeepsItsJSON(t *testing.T) {
	raw := `{"content":"<b>","role":"user","z":1,"a":{"k":[1.0,1e3]}}`
	var m rollout.Message
	if err := m.UnmarshalJSON([]byte(raw)); err != nil {
		t.Fatal(err)
	}
	out, err := m.MarshalJSON()
	if err != nil || string(out) != raw || m.Role != "user" {
		t.Errorf("got %s %v (role %q)", out, err, m.Role)
	}
	for _, bad := range []string{`{"content":"x"}`, `[]`, `{"role":1}`, `nope`} {
		if err := m.UnmarshalJSON([]byte(bad)); !errors.Is(err, rollout.ErrNotMessage) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if got := rollout.NewMessage("user", "a\"<é\n"); string(got.Raw) != `{"role":"user","content":"a\"<é\n"}` {
		t.Errorf("got %s", got.Raw)
	}
}
