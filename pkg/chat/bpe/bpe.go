// Package bpe is a byte-level BPE tokenizer that gives the token ids of Hugging
// Face tokenizers, exactly.
//
// A Tokenizer is read from a tokenizer.json with Load. Text goes through the same
// stages as in the reference:
//
//	text → added tokens cut out → normalised → split into words → merged → ids
//
// What a file asks for and this package does not do is an error of Load that
// names it; there is no approximate mode. Word boundaries use the reference's
// Unicode table (package unidata), not Go's.
//
// A Tokenizer is safe for concurrent use. Its only mutable state is two caches
// that are read and written atomically and cannot change a result.
//
// Text that is not valid UTF-8 cannot exist in the reference; each maximal run of
// invalid bytes is read as one U+FFFD.
package bpe

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// ErrUnsupported reports a tokenizer.json that asks for something this package
// does not implement.
var ErrUnsupported = errors.New("not supported")

// ErrInvalid reports a tokenizer.json that contradicts itself or is not one.
var ErrInvalid = errors.New("invalid tokenizer.json")

// Tokenizer turns text into token ids and back.
type Tokenizer struct {
	vocab  *vocab
	merges mergeTable
	cache  wordCache

	// ignoreMerges takes a word that is a token as that token, whatever its merges.
	ignoreMerges bool

	added      []addedToken // by id, for the ids that have one
	addedID    map[string]int32
	raw        matcher // added tokens looked for in the text as it came
	normalized matcher // added tokens looked for in the normalised text
	normalizer normalizer
	splitter   splitter

	prefix, suffix []int32 // what the post-processor puts around a text
}

// Encode returns the token ids of text. With addSpecial the ids that the model's
// post-processor puts around a text are included.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	return t.AppendEncode(make([]int32, 0, len(text)/3+8), text, addSpecial)
}

// AppendEncode is Encode into a caller's slice.
func (t *Tokenizer) AppendEncode(dst []int32, text string, addSpecial bool) []int32 {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	if addSpecial {
		dst = append(dst, t.prefix...)
	}
	t.raw.cut(text,
		func(id int32) { dst = append(dst, id) },
		func(plain string) {
			t.normalized.cut(t.normalizer.apply(plain),
				func(id int32) { dst = append(dst, id) },
				func(plain string) { dst = t.splitter.encode(t, dst, plain) })
		})
	if addSpecial {
		dst = append(dst, t.suffix...)
	}
	return dst
}

// VocabSize is one more than the highest id.
func (t *Tokenizer) VocabSize() int {
	return max(t.vocab.size(), len(t.added))
}

// TokenID returns the id of a token, spelled as the model file spells it.
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	if id, ok := t.addedID[token]; ok {
		return id, true
	}
	return t.vocab.byName(token)
}

// Token returns the token of an id, spelled as the model file spells it.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if a := t.addedToken(id); a != nil {
		return a.content, true
	}
	return t.vocab.name(id)
}

// IsSpecial tells whether the model file marks the token as special.
func (t *Tokenizer) IsSpecial(id int32) bool {
	a := t.addedToken(id)
	return a != nil && a.special
}

func (t *Tokenizer) addedToken(id int32) *addedToken {
	if id < 0 || int(id) >= len(t.added) || t.added[id].content == "" {
		return nil
	}
	return &t.added[id]
}
