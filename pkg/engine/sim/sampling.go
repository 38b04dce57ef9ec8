package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// The defaults of SGLang's sampling parameters that are not Go's zero.
const (
	defaultMaxNewTokens = 128
	allTokens           = 1 << 30
	greedyBelow         = 1e-6
)

// errUnknownParam reports a sampling parameter that SGLang's constructor would not
// take; it answers with a 500 then, not with a 400.
var errUnknownParam = errors.New("unknown sampling parameter")

// samplingParams are the "sampling_params" of a request, under SGLang's names.
type samplingParams struct {
	MaxNewTokens      int                `json:"max_new_tokens"`
	MinNewTokens      int                `json:"min_new_tokens"`
	Temperature       float64            `json:"temperature"`
	TopP              float64            `json:"top_p"`
	TopK              int                `json:"top_k"`
	MinP              float64            `json:"min_p"`
	FrequencyPenalty  float64            `json:"frequency_penalty"`
	PresencePenalty   float64            `json:"presence_penalty"`
	RepetitionPenalty float64            `json:"repetition_penalty"`
	LogitBias         map[string]float64 `json:"logit_bias"`
	Stop              stringList         `json:"stop"`
	StopTokenIDs      []int32            `json:"stop_token_ids"`
	IgnoreEOS         bool               `json:"ignore_eos"`
	SkipSpecialTokens bool               `json:"skip_special_tokens"`
	NoStopTrim        bool               `json:"no_stop_trim"`
	SamplingSeed      *int64             `json:"sampling_seed"`
	N                 int                `json:"n"`

	// Taken, and without effect on a byte-level model or on this engine.
	SpacesBetweenSpecialTokens bool            `json:"spaces_between_special_tokens"`
	StreamInterval             *int            `json:"stream_interval"`
	CustomParams               json.RawMessage `json:"custom_params"`

	// Refused unless null: the simulation has no constrained decoding.
	StopRegex     json.RawMessage `json:"stop_regex"`
	JSONSchema    json.RawMessage `json:"json_schema"`
	Regex         json.RawMessage `json:"regex"`
	EBNF          json.RawMessage `json:"ebnf"`
	StructuralTag json.RawMessage `json:"structural_tag"`
}

func defaultSampling() samplingParams {
	return samplingParams{
		MaxNewTokens: defaultMaxNewTokens, Temperature: 1, TopP: 1, TopK: allTokens, RepetitionPenalty: 1,
		SkipSpecialTokens: true, SpacesBetweenSpecialTokens: true, N: 1,
	}
}

// UnmarshalJSON reads parameters over the defaults; null means the default.
func (p *samplingParams) UnmarshalJSON(data []byte) error {
	type plain samplingParams
	fields := plain(defaultSampling())
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&fields); err != nil {
		var wrongType *json.UnmarshalTypeError
		var syntax *json.SyntaxError
		if errors.As(err, &wrongType) || errors.As(err, &syntax) {
			return err
		}
		return fmt.Errorf("%w: %w", errUnknownParam, err)
	}
	*p = samplingParams(fields)
	return nil
}

// validate applies SGLang's rules; its errors are answered with status 400.
func (p *samplingParams) validate(vocab int) error {
	switch {
	case p.Temperature < 0:
		return fmt.Errorf("temperature must be non-negative, got %g", p.Temperature)
	case p.TopP <= 0 || p.TopP > 1:
		return fmt.Errorf("top_p must be in (0, 1], got %g", p.TopP)
	case p.MinP < 0 || p.MinP > 1:
		return fmt.Errorf("min_p must be in [0, 1], got %g", p.MinP)
	case p.TopK != -1 && p.TopK < 1:
		return fmt.Errorf("top_k must be -1 or at least 1, got %d", p.TopK)
	case math.Abs(p.FrequencyPenalty) > 2:
		return fmt.Errorf("frequency_penalty must be in [-2, 2], got %g", p.FrequencyPenalty)
	case math.Abs(p.PresencePenalty) > 2:
		return fmt.Errorf("presence_penalty must be in [-2, 2], got %g", p.PresencePenalty)
	case p.RepetitionPenalty <= 0 || p.RepetitionPenalty > 2:
		return fmt.Errorf("repetition_penalty must be in (0, 2], got %g", p.RepetitionPenalty)
	case p.MaxNewTokens < 0:
		return fmt.Errorf("max_new_tokens must be at least 0, got %d", p.MaxNewTokens)
	case p.MinNewTokens < 0 || p.MinNewTokens > p.MaxNewTokens:
		return fmt.Errorf("min_new_tokens must be in [0, max_new_tokens], got %d", p.MinNewTokens)
	case p.N != 1:
		return fmt.Errorf("n must be 1, got %d: this simulation answers one sample per request", p.N)
	}
	for _, refused := range []struct {
		name string
		raw  json.RawMessage
	}{
		{"stop_regex", p.StopRegex}, {"json_schema", p.JSONSchema}, {"regex", p.Regex},
		{"ebnf", p.EBNF}, {"structural_tag", p.StructuralTag},
	} {
		if len(refused.raw) > 0 && string(refused.raw) != "null" {
			return fmt.Errorf("%s is not supported: this simulation has no constrained decoding", refused.name)
		}
	}
	for key := range p.LogitBias {
		if id, err := strconv.Atoi(key); err != nil || id < 0 || id >= vocab {
			return fmt.Errorf("logit_bias must have token ids in [0, %d), got %q", vocab, key)
		}
	}
	return nil
}

// warp is the distribution's shape that the parameters ask for. A temperature next
// to nothing means greedy: rank 0 of the plain distribution.
func (p *samplingParams) warp() warp {
	w := warp{temperature: p.Temperature, topP: p.TopP, topK: p.TopK, minP: p.MinP}
	if p.Temperature < greedyBelow {
		w.temperature, w.topK = 1, 1
	}
	return w
}

// edits says whether logits have to be changed before they are warped.
func (p *samplingParams) edits() bool {
	return p.FrequencyPenalty != 0 || p.PresencePenalty != 0 || p.RepetitionPenalty != 1 ||
		len(p.LogitBias) > 0 || p.MinNewTokens > 0
}

// stringList is a JSON string or list of strings.
type stringList []string

func (l *stringList) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var one string
		if err := json.Unmarshal(data, &one); err != nil {
			return err
		}
		*l = stringList{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(l))
}
