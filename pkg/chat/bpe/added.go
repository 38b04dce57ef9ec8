package bpe

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

// addedToken is a token that is cut out of the text before anything else.
type addedToken struct {
	id         int32
	content    string
	special    bool
	normalized bool // look for it in the normalised text
	lstrip     bool // it takes the white space before it
	rstrip     bool // and after it
}

// matcher finds added tokens: the leftmost one, and of those the longest.
type matcher struct {
	nodes  []trieNode
	tokens []addedToken
	first  [256]bool
	only   int // the one byte that all tokens start with, or -1
}

type trieNode struct {
	keys  []byte
	nexts []int32
	token int32 // index into tokens, or -1
}

func newMatcher(tokens []addedToken, spell func(string) string) matcher {
	m := matcher{nodes: []trieNode{{token: -1}}, tokens: tokens, only: -1}
	for i, token := range tokens {
		at := int32(0)
		text := spell(token.content)
		for j := range len(text) {
			at = m.child(at, text[j])
		}
		if at != 0 && m.nodes[at].token < 0 {
			m.nodes[at].token = int32(i)
		}
	}
	for _, b := range m.nodes[0].keys {
		m.first[b] = true
	}
	if len(m.nodes[0].keys) == 1 {
		m.only = int(m.nodes[0].keys[0])
	}
	return m
}

// child returns the node that byte b leads to, making it if need be.
func (m *matcher) child(at int32, b byte) int32 {
	node := &m.nodes[at]
	i, found := slices.BinarySearch(node.keys, b)
	if found {
		return node.nexts[i]
	}
	next := int32(len(m.nodes))
	node.keys = slices.Insert(node.keys, i, b)
	node.nexts = slices.Insert(node.nexts, i, next)
	m.nodes = append(m.nodes, trieNode{token: -1})
	return next
}

// find returns the first token of text at or after from.
func (m *matcher) find(text string, from int) (start, end int, token *addedToken) {
	for i := from; i < len(text); i++ {
		if m.only >= 0 {
			skip := strings.IndexByte(text[i:], byte(m.only))
			if skip < 0 {
				break
			}
			i += skip
		} else if !m.first[text[i]] {
			continue
		}
		at, best := int32(0), int32(-1)
		for j := i; j < len(text); j++ {
			node := &m.nodes[at]
			k, found := slices.BinarySearch(node.keys, text[j])
			if !found {
				break
			}
			at = node.nexts[k]
			if m.nodes[at].token >= 0 {
				best, end = m.nodes[at].token, j+1
			}
		}
		if best >= 0 {
			return i, end, &m.tokens[best]
		}
	}
	return 0, 0, nil
}

// cut walks text and hands over its added tokens and what lies between them.
func (m *matcher) cut(text string, token func(id int32), plain func(string)) {
	done, from := 0, 0
	for len(m.tokens) > 0 {
		start, end, found := m.find(text, from)
		if found == nil {
			break
		}
		from = end
		if found.lstrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unidata.IsSpace)))
		}
		if found.rstrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unidata.IsSpace))
		}
		if done < start {
			plain(text[done:start])
		}
		token(found.id)
		done = end
	}
	if done < len(text) {
		plain(text[done:])
	}
}

// lossy decodes bytes as UTF-8 the way the reference does: each maximal part of a
// broken sequence becomes one U+FFFD.
func lossy(dst, b []byte) []byte {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r != utf8.RuneError || size > 1 {
			dst = append(dst, b[:size]...)
			b = b[size:]
			continue
		}
		dst = append(dst, "\uFFFD"...)
		b = b[max(1, broken(b)):]
	}
	return dst
}

// broken returns how many bytes at the start of b begin a character without
// finishing it; 0 if the first byte can begin none.
func broken(b []byte) int {
	var need int
	low, high := byte(0x80), byte(0xBF)
	switch c := b[0]; {
	case 0xC2 <= c && c <= 0xDF:
		need = 2
	case 0xE0 <= c && c <= 0xEF:
		need = 3
		if c == 0xE0 {
			low = 0xA0
		} else if c == 0xED {
			high = 0x9F
		}
	case 0xF0 <= c && c <= 0xF4:
		need = 4
		if c == 0xF0 {
			low = 0x90
		} else if c == 0xF4 {
			high = 0x8F
		}
	default:
		return 0
	}
	n := 1
	for n < need && n < len(b) && low <= b[n] && b[n] <= high {
		low, high = 0x80, 0xBF
		n++
	}
	return n
}
