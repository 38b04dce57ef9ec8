package bpe

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/jsonscan"
	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

// normalizer brings text into Unicode's composed form, or leaves it as it is.
type normalizer struct{ nfc bool }

// apply returns the normalised text; the same string if nothing changes.
func (n normalizer) apply(text string) string {
	if !n.nfc || belowCombining(text) || norm.NFC.IsNormalString(text) {
		return text
	}
	// Characters that are newer than the reference's tables stay where they are and
	// keep their neighbours apart.
	var out strings.Builder
	from := 0
	for i, r := range text {
		if r < 0x300 || unidata.Composes(r) || norm.NFC.PropertiesString(text[i:]).BoundaryBefore() {
			continue
		}
		out.WriteString(composed(text[from:i]))
		from = i + utf8.RuneLen(r)
		out.WriteString(text[i:from])
	}
	out.WriteString(composed(text[from:]))
	return out.String()
}

// belowCombining tells whether all of text is below U+0300, where NFC changes
// nothing: it looks at the lead bytes only.
func belowCombining(text string) bool {
	for i := range len(text) {
		if text[i] >= 0xCC {
			return false
		}
	}
	return true
}

// typed reads an object with a type, which must come before fields that differ by
// type; unknown types are named in the error.
func typed(r *jsonscan.Reader, field func(kind, key string) error) (string, error) {
	raw, err := r.Raw()
	if err != nil {
		return "", err
	}
	kind := ""
	head := jsonscan.NewReader(raw)
	err = head.Object(func(key string) error {
		if key == "type" {
			kind, err = head.String()
			return err
		}
		return head.Skip()
	})
	if err != nil {
		return "", err
	}
	inner := jsonscan.NewReader(raw)
	old := *r
	*r = *inner
	err = r.Object(func(key string) error {
		if key == "type" {
			return r.Skip()
		}
		return field(kind, key)
	})
	*r = old
	return kind, err
}

func readNormalizer(r *jsonscan.Reader) (normalizer, error) {
	var n normalizer
	if r.Kind() == jsonscan.Null {
		return n, r.Null()
	}
	kind, err := typed(r, func(kind, key string) error {
		if kind == "Sequence" && key == "normalizers" {
			return r.Array(func() error {
				inner, err := readNormalizer(r)
				n.nfc = n.nfc || inner.nfc
				return err
			})
		}
		return r.Skip()
	})
	if err != nil {
		return n, err
	}
	switch kind {
	case "Sequence":
	case "NFC":
		n.nfc = true
	default:
		return n, unsupported("normalizer %s", kind)
	}
	return n, nil
}

// readDecoder accepts what comes down to ByteLevel.
func readDecoder(r *jsonscan.Reader) (bool, error) {
	if r.Kind() == jsonscan.Null {
		return false, r.Null()
	}
	count := 0
	kind, err := typed(r, func(kind, key string) error {
		if kind == "Sequence" && key == "decoders" {
			return r.Array(func() error {
				_, err := readDecoder(r)
				count++
				return err
			})
		}
		return r.Skip()
	})
	switch {
	case err != nil:
		return false, err
	case kind == "ByteLevel", kind == "Sequence" && count == 1:
		return true, nil
	}
	return false, unsupported("decoder %s", kind)
}

// postProcessor is the ids that are put around a text.
type postProcessor struct{ prefix, suffix []int32 }

func readPostProcessor(r *jsonscan.Reader) (postProcessor, error) {
	var p postProcessor
	if r.Kind() == jsonscan.Null {
		return p, r.Null()
	}
	var template []string // "" is the text, anything else the name of a special token
	special := map[string][]int32{}
	var parts []postProcessor
	kind, err := typed(r, func(kind, key string) error {
		switch {
		case kind == "Sequence" && key == "processors":
			return r.Array(func() error {
				part, err := readPostProcessor(r)
				parts = append(parts, part)
				return err
			})
		case kind == "TemplateProcessing" && key == "single":
			return r.Array(func() error {
				piece, err := readTemplatePiece(r)
				template = append(template, piece)
				return err
			})
		case kind == "TemplateProcessing" && key == "special_tokens":
			return readSpecialTokens(r, special)
		}
		return r.Skip()
	})
	if err != nil {
		return p, err
	}
	switch kind {
	case "ByteLevel":
	case "Sequence":
		for _, part := range parts {
			p.prefix = append(part.prefix, p.prefix...)
			p.suffix = append(p.suffix, part.suffix...)
		}
	case "TemplateProcessing":
		texts := 0
		for _, name := range template {
			ids, ok := special[name]
			switch {
			case name == "":
				texts++
			case !ok:
				return p, invalid("post-processor token %q has no ids", name)
			case texts == 0:
				p.prefix = append(p.prefix, ids...)
			default:
				p.suffix = append(p.suffix, ids...)
			}
		}
		if texts != 1 {
			return p, unsupported("a template that has the text %d times", texts)
		}
	default:
		return p, unsupported("post-processor %s", kind)
	}
	return p, nil
}

func readTemplatePiece(r *jsonscan.Reader) (string, error) {
	name := ""
	err := r.Object(func(kind string) error {
		return r.Object(func(key string) error {
			if key != "id" {
				return r.Skip()
			}
			id, err := r.String()
			if kind == "SpecialToken" {
				name = id
			}
			return err
		})
	})
	return name, err
}

func readSpecialTokens(r *jsonscan.Reader, special map[string][]int32) error {
	return r.Object(func(name string) error {
		return r.Object(func(key string) error {
			if key != "ids" {
				return r.Skip()
			}
			return r.Array(func() error {
				id, err := r.Int()
				if err == nil && (id < 0 || id >= maxID) {
					err = invalid("token %q has id %d", name, id)
				}
				special[name] = append(special[name], int32(id))
				return err
			})
		})
	})
}

// readSplitter reads the pre-tokenizer.
func readSplitter(r *jsonscan.Reader) (splitter, error) {
	var s splitter
	if r.Kind() == jsonscan.Null {
		return s, r.Null()
	}
	err := readSplitStage(r, &s)
	return s, err
}

func readSplitStage(r *jsonscan.Reader, s *splitter) error {
	if s.byteLevel {
		return unsupported("a pre-tokenizer after ByteLevel")
	}
	var (
		pattern, behavior  string
		literal, invert    bool
		individual         bool
		prefixSpace, regex = true, true // defaults of ByteLevel
	)
	kind, err := typed(r, func(kind, key string) (err error) {
		switch kind + "." + key {
		case "Sequence.pretokenizers":
			return r.Array(func() error { return readSplitStage(r, s) })
		case "Split.pattern":
			return r.Object(func(form string) error {
				literal = form == "String"
				pattern, err = r.String()
				return err
			})
		case "Split.behavior":
			behavior, err = r.String()
		case "Split.invert":
			invert, err = r.Bool()
		case "Digits.individual_digits":
			individual, err = r.Bool()
		case "ByteLevel.add_prefix_space":
			prefixSpace, err = r.Bool()
		case "ByteLevel.use_regex":
			regex, err = r.Bool()
		default:
			err = r.Skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	switch kind {
	case "Sequence":
		return nil
	case "Split":
		return s.addSplit(pattern, literal, behavior, invert)
	case "Digits":
		behavior := "Contiguous"
		if individual {
			behavior = "Isolated"
		}
		return s.addSplit(`\p{N}`, false, behavior, false)
	case "ByteLevel":
		s.byteLevel, s.prefixSpace = true, prefixSpace
		if regex {
			return s.addSplit(gpt2Pattern, false, "Isolated", false)
		}
		return nil
	}
	return unsupported("pre-tokenizer %s", kind)
}

// withPrefixSpace puts a space before a piece that has none.
func withPrefixSpace(piece string) string {
	if strings.HasPrefix(piece, " ") {
		return piece
	}
	return " " + piece
}
