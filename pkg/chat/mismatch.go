package chat

import (
	"slices"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// MismatchKind is how a conversation's tokens differ from its messages rendered
// as a whole.
type MismatchKind string

// The kinds of mismatch. The first three are faults of a template or of a rule
// here; the last is expected, since a reply keeps the tokens it was sampled with.
const (
	MismatchSpecialCount MismatchKind = "special_token_count"
	MismatchSpecialType  MismatchKind = "special_token_type"
	MismatchText         MismatchKind = "non_assistant_text"
	MismatchAssistant    MismatchKind = "assistant_text"
)

// Mismatch is one difference.
type Mismatch struct {
	Kind MismatchKind
	// Segment counts special tokens and the texts between them; -1 for a count.
	Segment          int
	Expected, Actual string
}

// Compare renders a conversation as a whole and compares it with the tokens it was
// built up to. It is a metric and not a check: a model may write a control token
// inside a reply.
func (f *Family) Compare(messages []rollout.Message, actual []int32, opt RenderOptions) ([]Mismatch, error) {
	opt.AddGenerationPrompt = false
	expected, err := f.EncodeChat(messages, opt)
	if err != nil {
		return nil, err
	}
	return f.compare(expected, actual), nil
}

func (f *Family) compare(expected, actual []int32) []Mismatch {
	want, got := f.segments(expected), f.segments(actual)
	same := slices.EqualFunc(want, got, func(a, b segment) bool { return a.special == b.special })
	if !same {
		return []Mismatch{{Kind: MismatchSpecialCount, Segment: -1}}
	}
	var out []Mismatch
	for i := range want {
		if want[i].special {
			if want[i].ids[0] != got[i].ids[0] {
				out = append(out, Mismatch{MismatchSpecialType, i, f.text(want[i].ids), f.text(got[i].ids)})
			}
			continue
		}
		a, b := f.text(want[i].ids), f.text(got[i].ids)
		if a == b {
			continue
		}
		kind := MismatchText
		if f.isReply(want, i) && f.isReply(got, i) {
			kind = MismatchAssistant
		}
		out = append(out, Mismatch{kind, i, a, b})
	}
	return out
}

// segment is one special token or the tokens between two of them.
type segment struct {
	special bool
	ids     []int32
}

func (f *Family) segments(ids []int32) []segment {
	for len(ids) > 0 && slices.Contains(f.trailing, ids[len(ids)-1]) {
		ids = ids[:len(ids)-1]
	}
	var out []segment
	from := 0
	for i, id := range ids {
		if !f.model.tokenizer.IsSpecial(id) {
			continue
		}
		if from < i {
			out = append(out, segment{false, ids[from:i]})
		}
		out = append(out, segment{true, ids[i : i+1]})
		from = i + 1
	}
	if from < len(ids) {
		out = append(out, segment{false, ids[from:]})
	}
	return out
}

// openerTokens is how many tokens of a text are looked at to tell whose it is.
const openerTokens = 20

// isReply tells whether a text segment is the assistant's own.
func (f *Family) isReply(segments []segment, i int) bool {
	if i == 0 || f.rules.opener == "" {
		return false
	}
	ids := segments[i].ids
	start := f.text(segments[i-1].ids) + f.text(ids[:min(len(ids), openerTokens)])
	return strings.HasPrefix(start, f.rules.opener)
}

func (f *Family) text(ids []int32) string { return f.model.tokenizer.Decode(ids, false) }
