package bpe

import (
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

// scanner splits text as the pattern family of GPT-4 does, by hand: the family
// covers Qwen, Llama 3 and GLM, and a regular-expression engine would be where an
// encoder spends its time.
type scanner struct {
	maxDigits int // how many digits make a word
	marks     bool
	ascii     [128]class
	table     *unidata.Table
	letters   unidata.Set
	numbers   unidata.Set
	spaces    unidata.Set
}

type class uint8

const (
	other class = iota
	letter
	number
	space
	newline // \r and \n, which are spaces too
)

// scannerFor returns the scanner of a pattern, if there is one.
func scannerFor(pattern string) (*scanner, bool) {
	const (
		contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|`
		words        = `[^\r\n\p{L}\p{N}]?\p{L}+|`
		markedWords  = `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|`
		punctuation  = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		markedPunct  = `| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	switch pattern {
	case contractions + words + `\p{N}` + punctuation: // Qwen 2 to 3
		return newScanner(1, false), true
	case contractions + words + `\p{N}{1,3}` + punctuation: // Llama 3, GLM 4
		return newScanner(3, false), true
	case contractions + markedWords + `\p{N}` + markedPunct: // Qwen 3.5
		return newScanner(1, true), true
	}
	return nil, false
}

func newScanner(maxDigits int, marks bool) *scanner {
	s := &scanner{
		maxDigits: maxDigits,
		marks:     marks,
		table:     unidata.Load(),
		letters:   unidata.Of(unidata.Lu, unidata.Ll, unidata.Lt, unidata.Lm, unidata.Lo),
		numbers:   unidata.Of(unidata.Nd, unidata.Nl, unidata.No),
		spaces:    unidata.Of(unidata.Zs, unidata.Zl, unidata.Zp),
	}
	if marks {
		s.letters |= unidata.Of(unidata.Mn, unidata.Mc, unidata.Me)
	}
	for c := range s.ascii {
		s.ascii[c] = s.classOf(rune(c))
	}
	return s
}

func (s *scanner) classOf(r rune) class {
	category := s.table.Of(r)
	switch {
	case s.letters.Has(category):
		return letter
	case s.numbers.Has(category):
		return number
	case r == '\r' || r == '\n':
		return newline
	case s.spaces.Has(category) || category == unidata.Cc && unidata.IsSpace(r):
		return space
	}
	return other
}

// at classifies the character at i, which must exist.
func (s *scanner) at(text string, i int) (class, int) {
	if c := text[i]; c < utf8.RuneSelf {
		return s.ascii[c], 1
	}
	r, size := utf8.DecodeRuneInString(text[i:])
	return s.classOf(r), size
}

// run returns the end of the characters of one class from i on.
func (s *scanner) run(text string, i int, want class) int {
	for i < len(text) {
		if c := text[i]; c < utf8.RuneSelf {
			if s.ascii[c] != want {
				return i
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		if s.classOf(r) != want {
			return i
		}
		i += size
	}
	return i
}

func (s *scanner) find(text string, from int) (start, end int, ok bool) {
	if from >= len(text) {
		return 0, 0, false
	}
	return from, s.end(text, from), true
}

// end returns the end of the word that starts at i, which must be inside text.
// The pattern covers every character, so words follow each other without gaps.
func (s *scanner) end(text string, i int) int {
	first, size := s.at(text, i)
	next := i + size
	switch first {
	case letter:
		return s.run(text, next, letter)
	case number:
		for n := 1; n < s.maxDigits && next < len(text); n++ {
			c, size := s.at(text, next)
			if c != number {
				break
			}
			next += size
		}
		return next
	case newline:
		return s.spaceEnd(text, i)
	}
	if text[i] == '\'' {
		if n := contraction(text[next:]); n > 0 {
			return next + n
		}
	}
	if next < len(text) {
		switch second, size := s.at(text, next); {
		case second == letter:
			return s.run(text, next+size, letter)
		case first == other, text[i] == ' ' && second == other:
			return s.newlines(text, s.run(text, next, other))
		}
	}
	if first == other {
		return next
	}
	return s.spaceEnd(text, i)
}

// newlines skips line ends, which stay with the punctuation before them.
func (s *scanner) newlines(text string, i int) int {
	for i < len(text) && (text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// spaceEnd returns the end of the word that starts with the white space at i: up
// to the last line end if there is one; else all of it at the end of the text,
// and all but its last character before something else.
func (s *scanner) spaceEnd(text string, i int) int {
	end, last, lineEnd := i, i, 0
	for end < len(text) {
		c, size := s.at(text, end)
		if c != space && c != newline {
			break
		}
		last = end
		end += size
		if c == newline {
			lineEnd = end
		}
	}
	switch {
	case lineEnd > 0:
		return lineEnd
	case end == len(text) || last == i:
		return end
	}
	return last
}

// contraction returns the length of what may follow an apostrophe in English, in
// either case; a long s counts as an s.
func contraction(text string) int {
	if text == "" {
		return 0
	}
	switch text[0] | 0x20 {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if len(text) > 1 && text[1]|0x20 == 'e' {
			return 2
		}
	case 'l':
		if len(text) > 1 && text[1]|0x20 == 'l' {
			return 2
		}
	}
	const longS = "\u017F"
	if len(text) >= len(longS) && text[:len(longS)] == longS {
		return len(longS)
	}
	return 0
}
