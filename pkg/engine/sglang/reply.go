package sglang

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// maxKept bounds the small fields of a reply taken together.
const maxKept = 1 << 20

// reply is what an engine sent, not yet checked. It is scratch: its slices are
// used again for the next reply.
type reply struct {
	// ids are output_ids; probs and probIDs the two columns of
	// output_token_logprobs, with noLogProb where it has none.
	ids     []int32
	probs   []float32
	probIDs []int32
	hasIDs  bool
	// hasProbs is false when the engine sent none, or null.
	hasProbs bool
	meta     wireMeta
	// fault is the error event of a stream.
	fault *wireFault

	kept []byte
	// seen are the keys met so far that a reply has once.
	seen    []string
	scanner scanner
}

// wireMeta is meta_info. Every field may be missing, in some version or state of
// the engine (hazard 9).
type wireMeta struct {
	ID              *string     `json:"id"`
	Finish          *wireFinish `json:"finish_reason"`
	PromptTokens    *int64      `json:"prompt_tokens"`
	Completion      *int64      `json:"completion_tokens"`
	CachedTokens    *int64      `json:"cached_tokens"`
	ReasoningTokens *int64      `json:"reasoning_tokens"`
	Retractions     *int64      `json:"num_retractions"`
	RetractionsOld  *int64      `json:"total_retractions"`
	WeightVersion   *wireText   `json:"weight_version"`
	WeightVersions  []wireSpan  `json:"weight_versions"`
	E2ELatency      *float64    `json:"e2e_latency"`
	QueueTime       *float64    `json:"queue_time"`
	DPRank          *int64      `json:"dp_rank"`

	SpecVerify      *int64  `json:"spec_verify_ct"`
	SpecNumCorrect  *int64  `json:"spec_num_correct_drafts"`
	SpecNumProposed *int64  `json:"spec_num_proposed_drafts"`
	SpecAccepted    *int64  `json:"spec_accepted_drafts"`
	SpecProposed    *int64  `json:"spec_proposed_drafts"`
	SpecAcceptNum   *int64  `json:"spec_accept_token_num"`
	SpecDraftNum    *int64  `json:"spec_draft_token_num"`
	SpecCorrectHist []int64 `json:"spec_correct_drafts_histogram"`
	SpecAcceptHist  []int64 `json:"spec_accept_histogram"`
}

type wireFinish struct {
	Type    string          `json:"type"`
	Matched json.RawMessage `json:"matched"`
	Message string          `json:"message"`
	Status  *int64          `json:"status_code"`
}

type wireSpan struct {
	Version wireText `json:"version"`
	Start   int64    `json:"start"`
	End     int64    `json:"end"`
}

// UnmarshalJSON refuses a field that stands twice.
func (f *wireFinish) UnmarshalJSON(data []byte) error {
	type plain wireFinish
	return errors.Join(uniqueKeys(data), json.Unmarshal(data, (*plain)(f)))
}

// UnmarshalJSON refuses a field that stands twice.
func (s *wireSpan) UnmarshalJSON(data []byte) error {
	type plain wireSpan
	return errors.Join(uniqueKeys(data), json.Unmarshal(data, (*plain)(s)))
}

// uniqueKeys fails if data is an object with a key that stands twice, in whatever
// case: encoding/json would take the last one (hazard 42).
func uniqueKeys(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return err
	}
	var seen []string
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		if slices.ContainsFunc(seen, func(s string) bool { return strings.EqualFold(s, key) }) {
			return fmt.Errorf("%q stands twice", key)
		}
		seen = append(seen, key)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}

// wireText is a string that some version may write as a number.
type wireText string

func (t *wireText) UnmarshalJSON(data []byte) error {
	*t = wireText(rollout.RawText(data))
	return nil
}

// wireFault is {"error":{"message":...}}.
type wireFault struct {
	Message string `json:"message"`
	Code    int    `json:"code"`
}

// metaKeys are the fields of meta_info that are kept for encoding/json.
var metaKeys = func() []string {
	var keys []string
	for f := range reflect.TypeFor[wireMeta]().Fields() {
		keys = append(keys, f.Tag.Get("json"))
	}
	return keys
}()

// decode reads one whole reply of at most limit bytes.
func (r *reply) decode(src io.Reader, limit int64) error {
	r.scanner.reset(src, limit)
	if err := r.value(); err != nil {
		return err
	}
	return r.scanner.finished()
}

// value reads one reply from where the scanner stands.
func (r *reply) value() error {
	s := &r.scanner
	r.ids, r.probs, r.probIDs = r.ids[:0], r.probs[:0], r.probIDs[:0]
	r.hasIDs, r.hasProbs, r.fault = false, false, nil
	r.meta = wireMeta{}
	r.seen = r.seen[:0]
	r.kept = append(r.kept[:0], '{')
	err := s.object(func(key string) error {
		switch key {
		case "output_ids":
			if err := r.once(key); err != nil {
				return err
			}
			if none, err := s.null(); err != nil || none {
				return err
			}
			var err error
			r.ids, err = s.ids(r.ids[:0])
			r.hasIDs = true
			return err
		case "meta_info":
			if err := r.once(key); err != nil {
				return err
			}
			return s.object(r.metaField)
		case "error":
			var raw []byte
			if err := errors.Join(r.once(key), s.skip(&raw)); err != nil {
				return err
			}
			r.fault = parseFault(raw)
			return nil
		default:
			// The text too: ours is the decoding of the ids, in every mode.
			return s.skip(nil)
		}
	})
	if err != nil {
		return err
	}
	r.kept = append(r.kept, '}')
	if err := json.Unmarshal(r.kept, &r.meta); err != nil {
		return fmt.Errorf("%w: meta_info: %w", errSyntax, err)
	}
	return nil
}

// once fails when a field that we read stands a second time: which of the two is
// the reply's, nobody can say (hazard 42).
func (r *reply) once(key string) error {
	if slices.Contains(r.seen, key) {
		return fmt.Errorf("%w: %q stands twice", errSyntax, key)
	}
	r.seen = append(r.seen, key)
	return nil
}

func (r *reply) metaField(key string) error {
	s := &r.scanner
	if key == "output_token_logprobs" {
		if err := r.once(key); err != nil {
			return err
		}
		if none, err := s.null(); err != nil || none {
			return err
		}
		var err error
		r.probs, r.probIDs, err = s.triples(r.probs[:0], r.probIDs[:0])
		r.hasProbs = true
		return err
	}
	if !slices.Contains(metaKeys, key) {
		return s.skip(nil)
	}
	if err := r.once(key); err != nil {
		return err
	}
	if len(r.kept) > 1 {
		r.kept = append(r.kept, ',')
	}
	r.kept = append(append(append(r.kept, '"'), key...), '"', ':')
	if err := s.skip(&r.kept); err != nil {
		return err
	}
	if len(r.kept) > maxKept {
		return fmt.Errorf("%w: meta_info holds more than %d bytes beside log-probs", errSyntax, maxKept)
	}
	return nil
}

// completionDialects are the names of the two draft counts over SGLang's
// versions, newest first: 0.5.12, 0.5.11, 0.5.6 to 0.5.10 (hazard 1).
func (m *wireMeta) draftCounts() (correct, proposed *int64, dialect string) {
	names := []struct {
		correct, proposed *int64
		name              string
	}{
		{m.SpecNumCorrect, m.SpecNumProposed, "spec_num_correct_drafts"},
		{m.SpecAccepted, m.SpecProposed, "spec_accepted_drafts"},
		{m.SpecAcceptNum, m.SpecDraftNum, "spec_accept_token_num"},
	}
	for _, n := range names {
		if correct == nil && n.correct != nil {
			correct, dialect = n.correct, n.name
		}
		if proposed == nil {
			proposed = n.proposed
		}
	}
	return correct, proposed, dialect
}

// engineMeta puts meta_info into our words.
func (m *wireMeta) engineMeta() (rollout.EngineMeta, error) {
	correct, proposed, dialect := m.draftCounts()
	out := rollout.EngineMeta{
		PromptTokens: m.PromptTokens, CachedTokens: m.CachedTokens, CompletionTokens: m.Completion,
		ReasoningTokens: m.ReasoningTokens, Retractions: firstOf(m.Retractions, m.RetractionsOld),
		WeightVersion: (*string)(m.WeightVersion),
		E2ELatency:    m.E2ELatency, QueueTime: m.QueueTime, DPRank: m.DPRank,
		Spec: rollout.SpecMeta{
			Verify: m.SpecVerify, Correct: correct, Proposed: proposed, Dialect: dialect,
			Histogram: m.SpecCorrectHist,
		},
	}
	if out.Spec.Histogram == nil {
		out.Spec.Histogram = m.SpecAcceptHist
	}
	for _, span := range m.WeightVersions {
		if span.Start == span.End { // new weights came before another token did
			continue
		}
		out.WeightVersions = append(out.WeightVersions, rollout.VersionSpan{Version: string(span.Version), Start: span.Start, End: span.End})
	}
	if m.Finish != nil {
		finish, err := m.Finish.finish()
		if err != nil {
			return out, err
		}
		out.Finish = finish
	}
	return out, nil
}

// finish reads the stop that matched: a token id, several of them, or a text.
func (f *wireFinish) finish() (rollout.Finish, error) {
	out := rollout.Finish{Type: rollout.FinishType(f.Type), Message: f.Message, StatusCode: f.Status}
	if len(f.Matched) == 0 {
		return out, nil
	}
	var err error
	switch f.Matched[0] {
	case '"':
		err = json.Unmarshal(f.Matched, &out.MatchedText)
	case '[':
		var ids []int64
		if err = json.Unmarshal(f.Matched, &ids); err == nil && len(ids) > 0 {
			out.MatchedToken = &ids[len(ids)-1]
		}
	default:
		err = json.Unmarshal(f.Matched, &out.MatchedToken)
	}
	if err != nil {
		return out, fmt.Errorf("finish_reason.matched: %w", err)
	}
	return out, nil
}

func firstOf[T any](ps ...*T) *T {
	for _, p := range ps {
		if p != nil {
			return p
		}
	}
	return nil
}

// parseFault reads what stands under "error": an object or a text.
func parseFault(raw []byte) *wireFault {
	f := &wireFault{}
	if json.Unmarshal(raw, f) != nil || f.Message == "" {
		f.Message = rollout.RawText(raw)
	}
	return f
}

// errorText is the message in the body of an HTTP error: error.message, else
// message, else the text itself, in one line.
func errorText(body []byte) string {
	var v struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	text := string(body)
	if json.Unmarshal(body, &v) == nil {
		switch {
		case v.Error != nil:
			text = parseFault(v.Error).Message
		case v.Message != "":
			text = v.Message
		}
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
}

// isMissing tells noLogProb, and any other value that is no log-prob.
func isMissing(p float32) bool { return math.IsNaN(float64(p)) || math.IsInf(float64(p), 0) }
