package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// defaultStrength outweighs nearly any opinion of the policy's own.
const defaultStrength = 20

// Script is a prior on what replies say, for demos that need a tool call from a
// policy that cannot make one. It adds to the logit of the next scripted token for
// as long as the reply follows the text. Sampling, log-probs and verification go
// on as usual, so a reply may leave the script; the weaker the prior, the sooner.
type Script struct {
	// Assistant is the text that opens a reply in a prompt; how often it occurs
	// says which turn a reply is.
	Assistant string       `yaml:"assistant"`
	Rules     []ScriptRule `yaml:"rules"`
}

// ScriptRule is one line of a script. The first rule that fits a prompt applies.
type ScriptRule struct {
	// Turn is the turn that the rule is for, from 1 on; 0 is every turn.
	Turn int `yaml:"turn"`
	// Contains is a text that the prompt has to contain.
	Contains string `yaml:"contains"`
	// Texts are what the reply may say; each request's seed chooses one.
	Texts []string `yaml:"texts"`
	// Strength is added to the logits, 20 by default.
	Strength float64 `yaml:"strength"`
}

// ParseScript reads a script.
func ParseScript(data []byte) (*Script, error) {
	script := Script{Assistant: "<|im_start|>assistant\n"}
	if err := yaml.UnmarshalWithOptions(data, &script, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	if script.Assistant == "" || len(script.Rules) == 0 {
		return nil, errors.New("script: it needs rules, and assistant cannot be empty")
	}
	for i, rule := range script.Rules {
		if len(rule.Texts) == 0 || rule.Turn < 0 || rule.Strength < 0 {
			return nil, fmt.Errorf("script: rule %d needs texts, and turn and strength cannot be negative", i+1)
		}
	}
	return &script, nil
}

// prior is the part of a script that one request follows.
type prior struct {
	tokens   []int32 // what to say, and the end of the reply
	strength float32
	left     bool // the reply said something else
}

// priorOf finds the rule for a prompt. A prompt that has the beginning of the
// reply already, as a resumed request does, goes on with the rest.
func (e *Engine) priorOf(prompt []int32, seed uint64) *prior {
	script, tok := e.config.Script, e.config.Tokenizer
	if script == nil || tok == nil {
		return nil
	}
	text := tok.Decode(prompt, false)
	turn := strings.Count(text, script.Assistant)
	begun := text[strings.LastIndex(text, script.Assistant)+len(script.Assistant):]
	if turn == 0 {
		turn, begun = 1, ""
	}
	for _, rule := range script.Rules {
		if rule.Turn != 0 && rule.Turn != turn || !strings.Contains(text, rule.Contains) {
			continue
		}
		chosen := rule.Texts[int(mix(seed)%uint64(len(rule.Texts)))]
		rest, ok := strings.CutPrefix(chosen, begun)
		if !ok {
			return nil
		}
		return &prior{
			tokens:   append(slices.Clone(tok.Encode(rest, false)), e.config.EOS[0]),
			strength: float32(cmp.Or(rule.Strength, defaultStrength)),
		}
	}
	return nil
}

// push adds share of the prior to the logits of the token behind the output, of
// length generated, and then ahead.
func (p *prior) push(logits []float32, generated int, ahead []int32, share float32) {
	at := generated + len(ahead)
	if p.left || at >= len(p.tokens) || !slices.Equal(ahead, p.tokens[generated:at]) {
		return
	}
	logits[p.tokens[at]] += p.strength * share
}

// said notes the token that the reply has at a position.
func (p *prior) said(position int, token int32) {
	p.left = p.left || position >= len(p.tokens) || p.tokens[position] != token
}
