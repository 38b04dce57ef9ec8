package rollout

import (
	"errors"
	"fmt"
)

// EntryKind is the kind of a ledger entry.
type EntryKind string

// Ledger entries, in the order in which a step writes them.
const (
	// EntryOpen: a controller took over the run under a new epoch.
	EntryOpen EntryKind = "open"
	// EntryPlan: a wave exists; its jobs may be published from now on.
	EntryPlan EntryKind = "plan"
	// EntryManifest: a step is committed. The entry is commit and announcement
	// in one.
	EntryManifest EntryKind = "manifest"
	// EntryTrimmed: the results and jobs of all waves below State.Trimmed are gone.
	EntryTrimmed EntryKind = "trimmed"
	// EntryClosed: the run is finished.
	EntryClosed EntryKind = "closed"
)

// LedgerEntry is one record of a run's log. Every entry carries the whole state
// after it, so that the log can be shortened from the front at any entry.
type LedgerEntry struct {
	Kind EntryKind
	// Nonce tells two writers' entries apart when an append's answer was lost.
	Nonce    string
	State    RunState
	Plan     *Plan
	Manifest *Manifest
}

// RunState is where a run stands.
type RunState struct {
	// Epoch counts controllers that opened the run.
	Epoch uint64
	// NextStep is the first step not committed, NextWave and NextGroup the first
	// numbers not planned, Cursor the first prompt position not planned.
	NextStep  int64
	NextWave  int64
	NextGroup int64
	Cursor    int64
	// Trimmed is the first wave whose results may still be stored.
	Trimmed int64
	Closed  bool
	// WasteSeen is the stream sequence of the last waste record that a committed
	// step has counted.
	WasteSeen uint64
	// Fingerprint of the config that the run was started with.
	Fingerprint string
}

// Plan is a wave: the groups that were planned together.
type Plan struct {
	Wave int64
	Step int64
	// Groups are numbered from FirstGroup; group FirstGroup+i asks the prompt at
	// position FirstPosition+i.
	FirstGroup    int64
	FirstPosition int64
	Groups        int
	// Episodes is the number of episodes of each group.
	Episodes int
	// Retry makes this a wave that runs episodes of earlier groups again; Groups is
	// 0 then.
	Retry []RetryGroup
}

// RetryGroup names episodes of an earlier group that run again.
type RetryGroup struct {
	Group    int64
	Position int64
	Episodes []int
}

// Manifest lists the stored results that a step is made of.
type Manifest struct {
	Step  int64
	Items []ManifestItem
	// SHA256 digests of the step's files, by name.
	Files []FileDigest
	// WasteSeen is the stream sequence of the last waste record counted in the step
	// or before.
	WasteSeen uint64
}

// ManifestItem names one stored result. The digest decides, not the sequence: a
// damaged store can use a sequence again.
type ManifestItem struct {
	Episode  EpisodeID
	Sequence uint64
	SHA256   [32]byte
}

// FileDigest is the SHA-256 of a file of the step.
type FileDigest struct {
	Name   string
	SHA256 [32]byte
}

// ErrLedger reports a log that no correct controller can have written.
var ErrLedger = errors.New("ledger contradicts itself")

// Replay reads a run's log from its first kept entry. It returns the state and
// the plans of waves that are not trimmed.
func Replay(entries []LedgerEntry) (RunState, []Plan, error) {
	var state RunState
	var plans []Plan
	for i, e := range entries {
		if i > 0 {
			if err := checkNext(state, e); err != nil {
				return RunState{}, nil, fmt.Errorf("entry %d (%s): %w: %w", i, e.Kind, ErrLedger, err)
			}
		}
		if e.Kind == EntryPlan {
			if e.Plan == nil {
				return RunState{}, nil, fmt.Errorf("entry %d: %w: plan entry without a plan", i, ErrLedger)
			}
			plans = append(plans, *e.Plan)
		}
		state = e.State
	}
	open := plans[:0]
	for _, p := range plans {
		if p.Wave >= state.Trimmed {
			open = append(open, p)
		}
	}
	return state, open, nil
}

// checkNext says what is wrong with e coming after state, nil for nothing.
func checkNext(state RunState, e LedgerEntry) error {
	want := state
	switch e.Kind {
	case EntryOpen:
		want.Epoch++
		want.Closed = false
	case EntryPlan:
		if e.Plan == nil {
			return errors.New("no plan")
		}
		want = state.Planned(*e.Plan)
		if e.Plan.Wave != state.NextWave || e.Plan.FirstGroup != state.NextGroup || e.Plan.FirstPosition != state.Cursor {
			return fmt.Errorf("wave %d from group %d, position %d does not follow wave %d, group %d, position %d",
				e.Plan.Wave, e.Plan.FirstGroup, e.Plan.FirstPosition, state.NextWave-1, state.NextGroup, state.Cursor)
		}
	case EntryManifest:
		if e.Manifest == nil || e.Manifest.Step != state.NextStep {
			return fmt.Errorf("it does not commit step %d", state.NextStep)
		}
		if e.State.WasteSeen < state.WasteSeen {
			return fmt.Errorf("waste seen to %d, before to %d", e.State.WasteSeen, state.WasteSeen)
		}
		want.NextStep++
		want.WasteSeen = e.State.WasteSeen
	case EntryTrimmed:
		if e.State.Trimmed < state.Trimmed || e.State.Trimmed > state.NextWave {
			return fmt.Errorf("trimmed to wave %d of %d to %d", e.State.Trimmed, state.Trimmed, state.NextWave)
		}
		want.Trimmed = e.State.Trimmed
	case EntryClosed:
		want.Closed = true
	default:
		return errors.New("unknown kind")
	}
	if e.State != want {
		return fmt.Errorf("state %+v instead of %+v", e.State, want)
	}
	return nil
}

// Planned is the state after p was written.
func (s RunState) Planned(p Plan) RunState {
	s.NextWave = p.Wave + 1
	s.NextGroup = p.FirstGroup + int64(p.Groups)
	s.Cursor = p.FirstPosition + int64(p.Groups)
	return s
}
