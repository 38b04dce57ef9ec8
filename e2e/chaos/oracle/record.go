package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/fxamacker/cbor/v2"
)

// A record is a schema byte, a kind byte and one CBOR item with the fields of
// pkg/rollout under their own names. The types here name the fields that the
// oracle judges by; others are left unread.

type entry struct {
	Kind  string
	Nonce string
	State struct {
		Epoch                       uint64
		NextStep, NextWave, Trimmed int64
		NextGroup, Cursor           int64
		Closed                      bool
	}
	Plan     *plan
	Manifest *manifest
}

type plan struct {
	Wave, Step                int64
	FirstGroup, FirstPosition int64
	Groups, Episodes          int
	Retry                     []struct { // episodes of earlier groups that run again
		Group    int64
		Episodes []int
	}
}

// ids are the episodes that a plan brings into being.
func (p *plan) ids() []episodeID {
	var out []episodeID
	for g := range int64(p.Groups) {
		for k := range p.Episodes {
			out = append(out, episodeID{p.Wave, p.FirstGroup + g, k})
		}
	}
	for _, r := range p.Retry {
		for _, k := range r.Episodes {
			out = append(out, episodeID{p.Wave, r.Group, k})
		}
	}
	return out
}

type manifest struct {
	Step  int64
	Items []item
	Files []struct {
		Name   string
		SHA256 [32]byte
	}
}

// item names a stored result.
type item struct {
	Episode  episodeID
	Sequence uint64
	SHA256   [32]byte
}

type episodeID struct {
	Wave, Group int64
	Index       int
}

// slot is an episode of a group, whichever wave tries it.
type slot struct {
	group int64
	index int
}

func (id episodeID) slot() slot { return slot{id.Group, id.Index} }

type group struct {
	Wave, Index  int64
	Want         int
	Dispositions []struct{ Verdict, Reason string }
	Episodes     []episode `cbor:"-"`
}

type episode struct {
	ID          episodeID
	RolloutID   int64
	Attempt     int
	Worker      string
	Outcome     string
	Failure     *struct{ Boundary, Reason string }
	Generations []generation
	Samples     []sample `cbor:"-"`
	raw         []byte   // the stored record's body
}

type generation struct {
	ID                   string
	Engine               string
	PromptLen, OutputLen int
	Fate                 string
	Untrainable          string
	Meta                 struct {
		CompletionTokens *int64
		CachedTokens     *int64
		WeightVersion    *string
		Spec             struct{ Verify, Correct, Proposed *int64 }
		Finish           struct{ Type string }
	}
}

// completion is what a call counts for in the books.
func (g *generation) completion() int64 {
	if g.Meta.CompletionTokens != nil {
		return *g.Meta.CompletionTokens
	}
	return int64(g.OutputLen)
}

type sample struct {
	State struct {
		Info struct {
			GroupIndex, Index, RolloutID int64
			Reward                       *float64
			Remove                       bool
		}
		PromptLen   int
		LossMask    []byte
		Versions    []versionSpan
		Status      string
		Untrainable string
		Generations []string
	}
	Tokens   []byte
	LogProbs []byte
}

type versionSpan struct {
	Version    string
	Start, End int64
}

func (s *sample) tokens() []int32 {
	out := make([]int32, len(s.Tokens)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(s.Tokens[4*i:]))
	}
	return out
}

func (s *sample) logProbs() []float32 {
	out := make([]float32, len(s.LogProbs)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(s.LogProbs[4*i:]))
	}
	return out
}

var errRecord = errors.New("not a record of this kind")

func decodeRecord(data []byte, kind byte, v any) error {
	if len(data) < 2 || data[1] != kind {
		return fmt.Errorf("%w %q", errRecord, kind)
	}
	return cbor.Unmarshal(data[2:], v)
}

// readGroups reads a groups.cbor: byte strings with a 4-byte length, a group's
// record in each. A group's episodes stand in it as they were stored, each
// without its head.
func readGroups(path string) ([]group, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var groups []group
	for len(data) > 0 {
		if len(data) < 5 || data[0] != 0x5a {
			return nil, fmt.Errorf("%w: group %d", errRecord, len(groups))
		}
		n := int(binary.BigEndian.Uint32(data[1:]))
		if len(data) < 5+n {
			return nil, fmt.Errorf("%w: group %d is cut", errRecord, len(groups))
		}
		g, err := decodeGroup(data[5 : 5+n])
		if err != nil {
			return nil, fmt.Errorf("group %d: %w", len(groups), err)
		}
		groups = append(groups, g)
		data = data[5+n:]
	}
	return groups, nil
}

func decodeGroup(rec []byte) (group, error) {
	var packed struct {
		Group    group
		Episodes []cbor.RawMessage
	}
	if err := decodeRecord(rec, 'g', &packed); err != nil {
		return group{}, err
	}
	g := packed.Group
	for _, raw := range packed.Episodes {
		var p struct {
			Episode episode
			Samples []sample
		}
		if err := cbor.Unmarshal(raw, &p); err != nil {
			return group{}, err
		}
		e := p.Episode
		e.Samples, e.raw = p.Samples, append([]byte{rec[0], 'e'}, raw...)
		g.Episodes = append(g.Episodes, e)
	}
	return g, nil
}
