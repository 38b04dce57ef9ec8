package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// ErrNotFinite reports a NaN or an infinity where JSON must hold a number.
var ErrNotFinite = errors.New("not a finite number")

// WriteSamples writes samples as JSON lines, in the order given, with the field
// names that slime and miles use. Keys have a fixed order; log-probs are the
// shortest decimals that read back as the same float32; what is not known is
// null. loss_mask and reward are the sample's own, before exclusion and
// normalisation. weight_versions are the versions of the response's spans.
//
// It calls w.Write about once per megabyte.
func WriteSamples(w io.Writer, samples []*rollout.Sample) error {
	const flush = 1 << 20
	buf := make([]byte, 0, flush+flush/4)
	for i, s := range samples {
		var err error
		if buf, err = appendSample(buf, s); err != nil {
			return fmt.Errorf("write sample %d of group %d: %w", s.Index, s.GroupIndex, err)
		}
		if len(buf) >= flush || i == len(samples)-1 {
			if _, err := w.Write(buf); err != nil {
				return fmt.Errorf("write samples: %w", err)
			}
			buf = buf[:0]
		}
	}
	return nil
}

// appendSample appends one line.
func appendSample(dst []byte, s *rollout.Sample) ([]byte, error) {
	line := encoder{buf: dst, first: true}
	line.int("group_index", s.GroupIndex)
	line.int("index", s.Index)
	line.int("rollout_id", s.RolloutID)
	line.string("prompt", s.Prompt)
	line.ints("tokens", s.Tokens())
	line.string("response", s.Response)
	line.int("response_length", int64(s.ResponseLen()))
	line.raw("label", s.Label, "null")
	line.reward(s)
	line.mask("loss_mask", s.LossMask())
	line.versions("weight_versions", s.Versions())
	line.floats("rollout_log_probs", s.LogProbs())
	line.string("status", string(s.Status()))
	line.raw("metadata", s.Metadata, "{}")

	spec, prefix := s.Spec(), s.Prefix()
	line.open("spec_info")
	line.count("spec_accept_token_num", spec.Correct)
	line.count("spec_draft_token_num", spec.Proposed)
	line.count("spec_verify_ct", spec.Verify)
	line.count("completion_token_num", spec.Completion)
	line.close()
	line.open("prefix_cache_info")
	line.count("cached_tokens", prefix.Cached)
	line.count("total_prompt_tokens", prefix.Prompt)
	line.close()

	line.float("non_generation_time", s.NonGenerationTime)
	line.bool("remove_sample", s.Remove)
	line.raw("train_metadata", s.TrainMetadata, "null")
	line.buf = append(line.buf, '}', '\n')
	return line.buf, line.err
}

// encoder appends the members of one JSON object. It keeps the first error.
type encoder struct {
	buf   []byte
	first bool
	err   error
}

func (e *encoder) key(name string) {
	if e.first {
		e.buf = append(e.buf, '{')
		e.first = false
	} else {
		e.buf = append(e.buf, ',')
	}
	e.buf = append(e.buf, '"')
	e.buf = append(e.buf, name...)
	e.buf = append(e.buf, '"', ':')
}

// open starts a member that is an object; close ends it.
func (e *encoder) open(name string) {
	e.key(name)
	e.first = true
}

func (e *encoder) close() { e.buf = append(e.buf, '}') }

func (e *encoder) int(name string, x int64) {
	e.key(name)
	e.buf = strconv.AppendInt(e.buf, x, 10)
}

func (e *encoder) count(name string, x *int64) {
	if x == nil {
		e.key(name)
		e.buf = append(e.buf, "null"...)
		return
	}
	e.int(name, *x)
}

func (e *encoder) bool(name string, x bool) {
	e.key(name)
	e.buf = strconv.AppendBool(e.buf, x)
}

func (e *encoder) float(name string, x float64) {
	e.key(name)
	if math.IsNaN(x) || math.IsInf(x, 0) {
		e.fail(name)
		return
	}
	e.buf = strconv.AppendFloat(e.buf, x, 'g', -1, 64)
}

// reward writes null for a sample that nothing scored.
func (e *encoder) reward(s *rollout.Sample) {
	if reward, scored := score(s); scored {
		e.float("reward", reward)
		return
	}
	e.key("reward")
	e.buf = append(e.buf, "null"...)
}

func (e *encoder) fail(name string) {
	if e.err == nil {
		e.err = fmt.Errorf("%s: %w", name, ErrNotFinite)
	}
}

func (e *encoder) string(name, s string) {
	e.key(name)
	e.buf = appendString(e.buf, s)
}

// raw appends JSON as it is, on one line; none is written as given.
func (e *encoder) raw(name string, x json.RawMessage, none string) {
	e.key(name)
	if len(x) == 0 {
		e.buf = append(e.buf, none...)
		return
	}
	out := bytes.NewBuffer(e.buf)
	if err := json.Compact(out, x); err != nil {
		if e.err == nil {
			e.err = fmt.Errorf("%s: %w", name, err)
		}
		return
	}
	e.buf = out.Bytes()
}

func (e *encoder) ints(name string, xs []int32) {
	e.key(name)
	e.buf = append(e.buf, '[')
	for i, x := range xs {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = strconv.AppendInt(e.buf, int64(x), 10)
	}
	e.buf = append(e.buf, ']')
}

func (e *encoder) mask(name string, xs []byte) {
	e.key(name)
	e.buf = append(e.buf, '[')
	for i, x := range xs {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = append(e.buf, '0'+x)
	}
	e.buf = append(e.buf, ']')
}

func (e *encoder) floats(name string, xs []float32) {
	e.key(name)
	e.buf = append(e.buf, '[')
	for i, x := range xs {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		if x-x != 0 { // NaN or infinite
			e.fail(name)
			return
		}
		e.buf = strconv.AppendFloat(e.buf, float64(x), 'g', -1, 32)
	}
	e.buf = append(e.buf, ']')
}

func (e *encoder) versions(name string, spans []rollout.VersionSpan) {
	e.key(name)
	e.buf = append(e.buf, '[')
	for i, span := range spans {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = appendString(e.buf, span.Version)
	}
	e.buf = append(e.buf, ']')
}

const hex = "0123456789abcdef"

// appendString appends s as a JSON string. Text stays UTF-8; only what JSON
// forbids is escaped, and the two line separators that break line readers. Bytes
// that are no UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				dst = append(append(dst, s[start:i]...), "\ufffd"...)
				start = i + size
			case r == '\u2028' || r == '\u2029':
				dst = append(append(dst, s[start:i]...), '\\', 'u', '2', '0', '2', hex[r&0xf])
				start = i + size
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}
