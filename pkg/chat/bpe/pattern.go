package bpe

import (
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

// pattern is a compiled split pattern: the part of the reference's regular
// expressions that tokenizer files use, matched by backtracking. It has its own
// engine for one reason: character classes come from the pinned Unicode table.
type pattern struct {
	code  []inst
	table *unidata.Table
	first [256]bool // bytes a match can start with
}

type opcode uint8

const (
	opSet    opcode = iota // one character of set
	opRepeat               // min to max characters of set, as many as possible
	opSplit                // try x, then y
	opJump                 // go to x
	opLook                 // look ahead: code up to x, which ends in opMatch; then go to x
	opMatch
)

type inst struct {
	op       opcode
	set      *charSet
	min, max int  // of opRepeat
	atomic   bool // opRepeat does not give back; opLook is negative
	x, y     int
}

// charSet is a set of characters: ASCII by table, the rest by category and range.
type charSet struct {
	ascii      [128]bool
	categories unidata.Set
	ranges     [][2]rune
	space      bool // has white space
	notSpace   bool // has everything else
	negated    bool
}

func (s *charSet) add(lo, hi rune) {
	for r := lo; r <= hi && r < utf8.RuneSelf; r++ {
		s.ascii[r] = true
	}
	if hi >= utf8.RuneSelf {
		s.ranges = append(s.ranges, [2]rune{max(lo, utf8.RuneSelf), hi})
	}
}

func (s *charSet) addCategories(set unidata.Set, table *unidata.Table) {
	s.categories |= set
	for r := range rune(utf8.RuneSelf) {
		if set.Has(table.Of(r)) {
			s.ascii[r] = true
		}
	}
}

func (s *charSet) addSpace(is bool) {
	s.space, s.notSpace = s.space || is, s.notSpace || !is
	for r := range rune(utf8.RuneSelf) {
		if unidata.IsSpace(r) == is {
			s.ascii[r] = true
		}
	}
}

func (s *charSet) has(r rune, table *unidata.Table) bool {
	if r < utf8.RuneSelf {
		return s.ascii[r] != s.negated
	}
	in := s.categories.Has(table.Of(r))
	for i := 0; !in && i < len(s.ranges); i++ {
		in = s.ranges[i][0] <= r && r <= s.ranges[i][1]
	}
	if !in && (s.space || s.notSpace) {
		in = unidata.IsSpace(r) && s.space || !unidata.IsSpace(r) && s.notSpace
	}
	return in != s.negated
}

// choice is a point to come back to.
type choice struct {
	pc, pos, low int
}

// find returns the leftmost match at or after from.
func (p *pattern) find(text string, from int) (start, end int, ok bool) {
	var space [32]choice
	for i := from; i < len(text); i++ {
		if c := text[i]; !p.first[c] || !utf8.RuneStart(c) {
			continue
		}
		if end := p.match(text, i, 0, space[:0]); end > i {
			return i, end, true
		}
	}
	return 0, 0, false
}

// match returns the end of the match that starts at pos, or -1.
func (p *pattern) match(text string, pos, pc int, stack []choice) int {
	for {
		failed := false
		switch in := &p.code[pc]; in.op {
		case opMatch:
			return pos
		case opJump:
			pc = in.x
		case opSplit:
			stack = append(stack, choice{in.y, pos, pos})
			pc = in.x
		case opSet:
			if size := p.one(text, pos, in.set); size > 0 {
				pos += size
				pc++
			} else {
				failed = true
			}
		case opRepeat:
			low, n := pos, 0
			for in.max < 0 || n < in.max {
				size := p.one(text, pos, in.set)
				if size == 0 {
					break
				}
				pos += size
				n++
				if n == in.min {
					low = pos
				}
			}
			if failed = n < in.min; !failed {
				pc++
				if !in.atomic && pos > low {
					stack = append(stack, choice{pc, pos, low})
				}
			}
		case opLook:
			if found := p.match(text, pos, pc+1, nil) >= 0; found != in.atomic {
				pc = in.x
			} else {
				failed = true
			}
		}
		if !failed {
			continue
		}
		if len(stack) == 0 {
			return -1
		}
		top := &stack[len(stack)-1]
		pc = top.pc
		if top.pos > top.low { // a repeat gives back one character
			_, size := utf8.DecodeLastRuneInString(text[:top.pos])
			top.pos -= size
			pos = top.pos
			if top.pos == top.low {
				stack = stack[:len(stack)-1]
			}
			continue
		}
		pos = top.pos
		stack = stack[:len(stack)-1]
	}
}

// one returns the size of the character at pos if it is in the set, else 0.
func (p *pattern) one(text string, pos int, set *charSet) int {
	if pos >= len(text) {
		return 0
	}
	if c := text[pos]; c < utf8.RuneSelf {
		if set.ascii[c] != set.negated {
			return 1
		}
		return 0
	}
	r, size := utf8.DecodeRuneInString(text[pos:])
	if set.has(r, p.table) {
		return size
	}
	return 0
}

// findFirst notes the bytes a match can start with.
func (p *pattern) findFirst(pc int) {
	switch in := &p.code[pc]; in.op {
	case opSplit:
		p.findFirst(in.x)
		p.findFirst(in.y)
	case opJump, opLook:
		p.findFirst(in.x)
	case opSet, opRepeat:
		for b := range 256 {
			p.first[b] = p.first[b] || b >= utf8.RuneSelf || in.set.ascii[b] != in.set.negated
		}
		if in.op == opRepeat && in.min == 0 {
			p.findFirst(pc + 1)
		}
	case opMatch: // matches nothing: compile has refused it
	}
}
