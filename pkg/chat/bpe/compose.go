package bpe

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// longMarks is a number of marks in a row from which text is composed here. The
// library follows the Stream-Safe Text Process (UAX #15, section 13): after 30
// marks it puts a U+034F between them, which the reference does not. A mark
// decomposes into three at most, so fewer than this many never reach 30.
const longMarks = 8

// composed is text in Unicode's form C (UAX #15).
func composed(text string) string {
	if !hasLongMarks(text) {
		return norm.NFC.String(text)
	}
	return string(compose(decompose(text)))
}

func hasLongMarks(text string) bool {
	run := 0
	for i, r := range text {
		if r < 0x300 || norm.NFD.PropertiesString(text[i:]).CCC() == 0 {
			run = 0
			continue
		}
		if run++; run >= longMarks {
			return true
		}
	}
	return false
}

// mark is a character with its canonical combining class.
type mark struct {
	r   rune
	ccc uint8
}

// decompose returns the canonical decomposition, marks in canonical order.
func decompose(text string) []mark {
	var out []mark
	start := 0 // of the marks in a row at the end
	for _, r := range text {
		for _, d := range norm.NFD.String(string(r)) {
			m := mark{d, norm.NFD.PropertiesString(string(d)).CCC()}
			if m.ccc == 0 {
				sortMarks(out[start:])
				start = len(out) + 1
			}
			out = append(out, m)
		}
	}
	sortMarks(out[min(start, len(out)):])
	return out
}

func sortMarks(marks []mark) {
	slices.SortStableFunc(marks, func(a, b mark) int { return int(a.ccc) - int(b.ccc) })
}

// compose is the canonical composition algorithm: a character joins the last
// starter unless something between them blocks it.
func compose(in []mark) []rune {
	out := make([]rune, 0, len(in))
	starter, last := -1, uint8(0) // position in out, class of what follows it
	for _, m := range in {
		if starter >= 0 && (last < m.ccc || last == 0 && starter == len(out)-1) {
			if pair, ok := primary(out[starter], m.r); ok {
				out[starter] = pair
				continue
			}
		}
		if m.ccc == 0 {
			starter = len(out)
		}
		last = m.ccc
		out = append(out, m.r)
	}
	return out
}

// primary is the primary composite of two characters.
func primary(a, b rune) (rune, bool) {
	text := norm.NFC.String(string(a) + string(b))
	r, size := utf8.DecodeRuneInString(text)
	return r, size == len(text)
}
