package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/fxamacker/cbor/v2"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Schema is the version of the encoding. It grows by one with each change that
// an older reader cannot take.
//
//	1  2026-11-30  first
//	2  2026-11-30  EngineMeta.Implausible, and the run's session mode
const Schema = 2

// kind is the second byte of a record.
type kind byte

const (
	kindJob     kind = 'j'
	kindEpisode kind = 'e'
	kindGroup   kind = 'g'
	kindEntry   kind = 'l'
	kindMark    kind = 'm'
	kindWaste   kind = 'w'
)

// Errors of decoding.
var (
	// ErrSchema reports a record of another schema version.
	ErrSchema = errors.New("written by another schema version")
	// ErrFormat reports bytes that are no record of the kind asked for.
	ErrFormat = errors.New("malformed record")
)

// Codec encodes and decodes records. It is safe for concurrent use; make one
// with [New] and hand it on.
type Codec struct {
	enc cbor.UserBufferEncMode
	dec cbor.DecMode
	// buffers are records in the making: a record grows to many kilobytes, and
	// each size on the way there would be another allocation.
	buffers sync.Pool
}

// New returns a codec.
func New() (*Codec, error) {
	enc, err := cbor.EncOptions{}.UserBufferEncMode()
	if err != nil {
		return nil, fmt.Errorf("cbor encoder: %w", err)
	}
	dec, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		MaxArrayElements:  1 << 24,
		MaxMapPairs:       1 << 20,
		// Text comes from engines and agents; a stray byte in it must not make a
		// stored result unreadable.
		UTF8: cbor.UTF8DecodeInvalid,
	}.DecMode()
	if err != nil {
		return nil, fmt.Errorf("cbor decoder: %w", err)
	}
	return &Codec{enc: enc, dec: dec, buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }}}, nil
}

// LeaseMark is the record that a lease leaves in the result stream. Results are
// fenced by its stream sequence.
type LeaseMark struct {
	// Attempt is 0 in the mark that the controller writes with the job, and the
	// previous mark's + 1 in a lease's.
	Attempt int
	Worker  string
	// Nonce tells two leases of one worker apart when a write's answer was lost.
	Nonce string
}

// sample is a sample on the wire: its state without the per-token arrays, which
// follow packed.
type sample struct {
	State    rollout.SampleState
	Tokens   []byte
	LogProbs []byte
}

// episode is an episode on the wire.
type episode struct {
	Episode rollout.Episode
	Samples []sample
}

// group is a group on the wire.
type group struct {
	Group    rollout.Group
	Episodes []episode
}

// EncodeJob encodes a job.
func (c *Codec) EncodeJob(j rollout.Job) ([]byte, error) { return c.encode(kindJob, j) }

// DecodeJob decodes a job.
func (c *Codec) DecodeJob(data []byte) (rollout.Job, error) {
	var j rollout.Job
	err := c.decode(kindJob, data, &j)
	return j, err
}

// EncodeMark encodes a lease mark.
func (c *Codec) EncodeMark(m LeaseMark) ([]byte, error) { return c.encode(kindMark, m) }

// DecodeMark decodes a lease mark.
func (c *Codec) DecodeMark(data []byte) (LeaseMark, error) {
	var m LeaseMark
	err := c.decode(kindMark, data, &m)
	return m, err
}

// EncodeWaste encodes a waste record.
func (c *Codec) EncodeWaste(w rollout.Waste) ([]byte, error) { return c.encode(kindWaste, w) }

// DecodeWaste decodes a waste record.
func (c *Codec) DecodeWaste(data []byte) (rollout.Waste, error) {
	var w rollout.Waste
	err := c.decode(kindWaste, data, &w)
	return w, err
}

// EncodeEntry encodes a ledger entry.
func (c *Codec) EncodeEntry(e rollout.LedgerEntry) ([]byte, error) { return c.encode(kindEntry, e) }

// DecodeEntry decodes a ledger entry.
func (c *Codec) DecodeEntry(data []byte) (rollout.LedgerEntry, error) {
	var e rollout.LedgerEntry
	err := c.decode(kindEntry, data, &e)
	return e, err
}

// EncodeEpisode encodes a result.
func (c *Codec) EncodeEpisode(e *rollout.Episode) ([]byte, error) {
	return c.encode(kindEpisode, packEpisode(e))
}

// DecodeEpisode decodes a result and checks its samples.
func (c *Codec) DecodeEpisode(data []byte) (*rollout.Episode, error) {
	var w episode
	if err := c.decode(kindEpisode, data, &w); err != nil {
		return nil, err
	}
	return unpackEpisode(w)
}

// EncodeGroup encodes a disposed group.
func (c *Codec) EncodeGroup(g *rollout.Group) ([]byte, error) {
	return c.encode(kindGroup, packGroup(g))
}

// DecodeGroup decodes a disposed group and checks its samples.
func (c *Codec) DecodeGroup(data []byte) (*rollout.Group, error) {
	var w group
	if err := c.decode(kindGroup, data, &w); err != nil {
		return nil, err
	}
	g := w.Group
	for _, we := range w.Episodes {
		e, err := unpackEpisode(we)
		if err != nil {
			return nil, err
		}
		g.Episodes = append(g.Episodes, *e)
	}
	return &g, nil
}

func (c *Codec) encode(k kind, v any) ([]byte, error) {
	var rec []byte
	err := c.with(k, v, func(b []byte) error {
		rec = slices.Clone(b)
		return nil
	})
	return rec, err
}

// with encodes a record and hands it to f, which must not keep it.
func (c *Codec) with(k kind, v any, f func(rec []byte) error) error {
	buf := c.buffers.Get().(*bytes.Buffer)
	defer c.buffers.Put(buf)
	buf.Reset()
	buf.Write([]byte{Schema, byte(k)})
	if err := c.enc.MarshalToBuffer(v, buf); err != nil {
		return fmt.Errorf("encode record %q: %w", k, err)
	}
	return f(buf.Bytes())
}

func (c *Codec) decode(k kind, data []byte, v any) error {
	if len(data) < 2 {
		return fmt.Errorf("decode record %q: %w: %d bytes", k, ErrFormat, len(data))
	}
	if data[0] != Schema {
		return fmt.Errorf("decode record %q: %w: %d, this binary reads %d: run controller and workers of one version", k, ErrSchema, data[0], Schema)
	}
	if kind(data[1]) != k {
		return fmt.Errorf("decode record %q: %w: it is a %q", k, ErrFormat, data[1])
	}
	if err := c.dec.Unmarshal(data[2:], v); err != nil {
		return fmt.Errorf("decode record %q: %w: %w", k, ErrFormat, err)
	}
	return nil
}

func packGroup(g *rollout.Group) group {
	w := group{Group: *g, Episodes: make([]episode, len(g.Episodes))}
	w.Group.Episodes = nil
	for i := range g.Episodes {
		w.Episodes[i] = packEpisode(&g.Episodes[i])
	}
	return w
}

func packEpisode(e *rollout.Episode) episode {
	w := episode{Episode: *e, Samples: make([]sample, len(e.Samples))}
	w.Episode.Samples = nil
	for i, s := range e.Samples {
		st := s.State()
		w.Samples[i] = sample{Tokens: packInt32(st.Tokens), LogProbs: packFloat32(st.LogProbs)}
		st.Tokens, st.LogProbs = nil, nil
		w.Samples[i].State = st
	}
	return w
}

func unpackEpisode(w episode) (*rollout.Episode, error) {
	e := w.Episode
	for i, ws := range w.Samples {
		st := ws.State
		var err error
		if st.Tokens, err = unpackInt32(ws.Tokens); err != nil {
			return nil, fmt.Errorf("tokens of sample %d: %w", i, err)
		}
		if st.LogProbs, err = unpackFloat32(ws.LogProbs); err != nil {
			return nil, fmt.Errorf("log-probs of sample %d: %w", i, err)
		}
		s, err := rollout.RestoreSample(st)
		if err != nil {
			return nil, fmt.Errorf("%w: sample %d: %w", ErrFormat, i, err)
		}
		e.Samples = append(e.Samples, s)
	}
	return &e, nil
}

func packInt32(v []int32) []byte {
	out := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], uint32(x))
	}
	return out
}

func unpackInt32(b []byte) ([]int32, error) {
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("%w: %d bytes for 4-byte values", ErrFormat, len(b))
	}
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out, nil
}

func packFloat32(v []float32) []byte {
	out := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(x))
	}
	return out
}

func unpackFloat32(b []byte) ([]float32, error) {
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("%w: %d bytes for 4-byte values", ErrFormat, len(b))
	}
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out, nil
}
