package bpe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/jsonscan"
)

// maxID bounds token ids, so that a broken file cannot ask for endless tables.
const maxID = 1 << 24

// Load reads the text of a tokenizer.json.
//
// Truncation and padding, which the file may carry along, are the caller's
// business and are ignored, as transformers does unless it is asked for them.
func Load(data []byte) (*Tokenizer, error) {
	l := loader{r: jsonscan.NewReader(data)}
	if err := l.file(); err != nil {
		return nil, err
	}
	return l.finish()
}

type loader struct {
	r     *jsonscan.Reader
	added []addedToken
	model modelFile

	normalizer    normalizer
	splitter      splitter
	postProcessor postProcessor
	haveModel     bool
	haveDecoder   bool
}

type modelFile struct {
	vocab        map[string]int32
	merges       [][2]string
	ignoreMerges bool
	unknown      string
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func (l *loader) file() error {
	err := l.r.Object(func(key string) error {
		var err error
		switch key {
		case "added_tokens":
			err = l.readAdded()
		case "normalizer":
			l.normalizer, err = readNormalizer(l.r)
		case "pre_tokenizer":
			l.splitter, err = readSplitter(l.r)
		case "post_processor":
			l.postProcessor, err = readPostProcessor(l.r)
		case "decoder":
			l.haveDecoder, err = readDecoder(l.r)
		case "model":
			l.haveModel = true
			err = l.readModel()
		default:
			err = l.r.Skip()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := l.r.End(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if !l.haveModel {
		return invalid("it has no model")
	}
	if !l.haveDecoder {
		return unsupported("a model without a ByteLevel decoder")
	}
	if !l.splitter.byteLevel {
		return unsupported("a pre-tokenizer that does not end in ByteLevel")
	}
	return nil
}

func (l *loader) readAdded() error {
	return l.r.Array(func() error {
		var a addedToken
		id := int64(-1)
		err := l.r.Object(func(key string) (err error) {
			switch key {
			case "id":
				id, err = l.r.Int()
			case "content":
				a.content, err = l.r.String()
			case "special":
				a.special, err = l.r.Bool()
			case "normalized":
				a.normalized, err = l.r.Bool()
			case "lstrip":
				a.lstrip, err = l.r.Bool()
			case "rstrip":
				a.rstrip, err = l.r.Bool()
			case "single_word":
				var single bool
				if single, err = l.r.Bool(); single {
					err = unsupported("single_word")
				}
			default:
				err = l.r.Skip()
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%q: %w", a.content, err)
		}
		if a.content == "" || id < 0 || id >= maxID {
			return invalid("token %q with id %d", a.content, id)
		}
		a.id = int32(id)
		l.added = append(l.added, a)
		return nil
	})
}

func (l *loader) readModel() error {
	r, kind := l.r, ""
	var optional = func(key string) error { // must be null, false or ""
		switch r.Kind() {
		case jsonscan.Null:
			return r.Null()
		case jsonscan.String:
			if s, err := r.String(); err != nil || s == "" {
				return err
			}
		case jsonscan.Bool:
			if on, err := r.Bool(); err != nil || !on {
				return err
			}
		}
		return unsupported("%s", key)
	}
	err := r.Object(func(key string) (err error) {
		switch key {
		case "type":
			if kind, err = r.String(); err == nil && kind != "BPE" {
				err = unsupported("model type %s: only BPE is", kind)
			}
		case "vocab":
			l.model.vocab, err = readVocab(r)
		case "merges":
			l.model.merges, err = readMerges(r)
		case "ignore_merges":
			l.model.ignoreMerges, err = r.Bool()
		case "unk_token":
			if r.Kind() == jsonscan.Null {
				return r.Null()
			}
			l.model.unknown, err = r.String()
		case "dropout", "continuing_subword_prefix", "end_of_word_suffix":
			err = optional(key)
		default: // byte_fallback and fuse_unk only matter where a byte is missing
			err = r.Skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	if l.model.vocab == nil {
		return invalid("the model has no vocab")
	}
	return nil
}

func readVocab(r *jsonscan.Reader) (map[string]int32, error) {
	if r.Kind() == jsonscan.Array {
		return nil, unsupported("model type Unigram: only BPE is")
	}
	ids := make(map[string]int32, 1<<10)
	err := r.Object(func(token string) error {
		id, err := r.Int()
		if err == nil && (id < 0 || id >= maxID) {
			err = invalid("token %q has id %d", token, id)
		}
		ids[token] = int32(id)
		return err
	})
	return ids, err
}

func readMerges(r *jsonscan.Reader) ([][2]string, error) {
	var merges [][2]string
	err := r.Array(func() error {
		if r.Kind() == jsonscan.String {
			text, err := r.String()
			if err != nil {
				return err
			}
			left, right, ok := strings.Cut(text, " ")
			if !ok || strings.Contains(right, " ") {
				return invalid("merge %q is not a pair", text)
			}
			merges = append(merges, [2]string{left, right})
			return nil
		}
		var pair [2]string
		n := 0
		err := r.Array(func() error {
			if n == len(pair) {
				return invalid("merge of %q has more than two parts", pair)
			}
			var err error
			pair[n], err = r.String()
			n++
			return err
		})
		if err == nil && n != len(pair) {
			err = invalid("merge %q is not a pair", pair[0])
		}
		merges = append(merges, pair)
		return err
	})
	return merges, err
}

// finish builds the tables from what the file holds.
func (l *loader) finish() (*Tokenizer, error) {
	v, err := newVocab(l.model.vocab)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{
		vocab:        v,
		merges:       newMergeTable(len(l.model.merges)),
		cache:        wordCache{make([]atomic.Pointer[cachedWord], cachedWords)},
		ignoreMerges: l.model.ignoreMerges,
		normalizer:   l.normalizer,
		splitter:     l.splitter,
		addedID:      make(map[string]int32, len(l.added)),
	}
	if l.model.unknown != "" {
		for b, id := range v.byteID {
			if id < 0 {
				return nil, unsupported("an unk_token with a vocabulary that lacks byte %#x", b)
			}
		}
	}
	var joined []byte
	for rank, m := range l.model.merges {
		left, ok1 := l.model.vocab[m[0]]
		right, ok2 := l.model.vocab[m[1]]
		joined = append(append(joined[:0], m[0]...), m[1]...)
		id, ok3 := l.model.vocab[string(joined)]
		if !ok1 || !ok2 || !ok3 {
			return nil, invalid("merge %q %q: a part of it is not in the vocabulary", m[0], m[1])
		}
		t.merges.put(left, right, uint32(rank), id)
	}
	if err := l.addTokens(t); err != nil {
		return nil, err
	}
	t.prefix, t.suffix = l.postProcessor.prefix, l.postProcessor.suffix
	for _, id := range slices.Concat(t.prefix, t.suffix) {
		if _, ok := t.Token(id); !ok {
			return nil, invalid("the post-processor adds the id %d, which has no token", id)
		}
	}
	return t, nil
}

// addTokens gives the added tokens their place. A token that is also in the
// vocabulary has the id it has there; a file that says otherwise is refused.
func (l *loader) addTokens(t *Tokenizer) error {
	for _, a := range l.added {
		if id, ok := l.model.vocab[a.content]; ok && id != a.id {
			return invalid("added token %q has id %d, the vocabulary says %d", a.content, a.id, id)
		}
		if name, ok := t.vocab.name(a.id); ok && name != a.content {
			return invalid("added token %q has the id %d of token %q", a.content, a.id, name)
		}
		if id, ok := t.addedID[a.content]; ok && id != a.id {
			return invalid("added token %q has ids %d and %d", a.content, id, a.id)
		}
		t.addedID[a.content] = a.id
		if need := int(a.id) + 1 - len(t.added); need > 0 {
			t.added = append(t.added, make([]addedToken, need)...)
		}
		if old := t.added[a.id].content; old != "" && old != a.content {
			return invalid("added tokens %q and %q share the id %d", old, a.content, a.id)
		}
		t.added[a.id] = a
	}
	// The reference looks for special tokens before the others of the same text.
	ordered := slices.Clone(l.added)
	slices.SortStableFunc(ordered, func(a, b addedToken) int {
		return cmp.Compare(btoi(b.special), btoi(a.special))
	})
	isNormalized := func(a addedToken) bool { return a.normalized }
	isRaw := func(a addedToken) bool { return !a.normalized }
	t.raw = newMatcher(slices.DeleteFunc(slices.Clone(ordered), isNormalized), func(s string) string { return s })
	t.normalized = newMatcher(slices.DeleteFunc(ordered, isRaw), t.normalizer.apply)
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
