package bpe

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

// compilePattern compiles a split pattern. Syntax that is valid in the reference
// but not known here is refused by name.
func compilePattern(text string, literal bool) (*pattern, error) {
	p := &patternParser{text: text, out: &pattern{table: unidata.Load()}}
	var root pnode
	var err error
	if literal {
		seq := pnode{kind: pSeq}
		for _, r := range text {
			seq.subs = append(seq.subs, p.char(r))
		}
		root = seq
	} else if root, err = p.alternatives(); err != nil {
		return nil, err
	} else if p.pos < len(text) {
		return nil, p.refuse("an unmatched )")
	}
	if root.nullable() {
		return nil, p.refuse("a match of nothing")
	}
	p.emit(root)
	p.out.code = append(p.out.code, inst{op: opMatch})
	p.out.findFirst(0)
	return p.out, nil
}

type pkind int

const (
	pSet pkind = iota
	pSeq
	pAlt
	pRepeat
	pLook
)

// pnode is a node of the parsed pattern.
type pnode struct {
	kind     pkind
	set      *charSet
	subs     []pnode
	min, max int
	atomic   bool // a repeat that gives nothing back; a negative look-ahead
}

func (n *pnode) nullable() bool {
	switch n.kind {
	case pSet:
		return false
	case pSeq:
		for i := range n.subs {
			if !n.subs[i].nullable() {
				return false
			}
		}
		return true
	case pAlt:
		for i := range n.subs {
			if n.subs[i].nullable() {
				return true
			}
		}
		return false
	case pRepeat:
		return n.min == 0 || n.subs[0].nullable()
	}
	return true // a look-ahead
}

type patternParser struct {
	text  string
	pos   int
	fold  bool // inside (?i:…)
	depth int
	out   *pattern
}

func (p *patternParser) refuse(what string) error {
	return unsupported("%s in the split pattern %q", what, p.text)
}

func (p *patternParser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func (p *patternParser) accept(s string) bool {
	if strings.HasPrefix(p.text[p.pos:], s) {
		p.pos += len(s)
		return true
	}
	return false
}

func (p *patternParser) alternatives() (pnode, error) {
	alt := pnode{kind: pAlt}
	for {
		seq, err := p.sequence()
		if err != nil {
			return alt, err
		}
		alt.subs = append(alt.subs, seq)
		if !p.accept("|") {
			break
		}
	}
	if len(alt.subs) == 1 {
		return alt.subs[0], nil
	}
	return alt, nil
}

func (p *patternParser) sequence() (pnode, error) {
	seq := pnode{kind: pSeq}
	start := p.pos
	for p.pos < len(p.text) && p.peek() != '|' && p.peek() != ')' {
		atom, err := p.atom()
		if err != nil {
			return seq, err
		}
		if atom, err = p.quantified(atom); err != nil {
			return seq, err
		}
		seq.subs = append(seq.subs, atom)
	}
	if p.fold {
		// Without regard to case the reference also lets one character stand for
		// two of these.
		folded := strings.ToLower(p.text[start:p.pos])
		for _, pair := range []string{"ss", "st", "ff", "fi", "fl"} {
			if strings.Contains(folded, pair) {
				return seq, p.refuse("(?i:…) over " + pair)
			}
		}
	}
	return seq, nil
}

func (p *patternParser) quantified(atom pnode) (pnode, error) {
	rep := pnode{kind: pRepeat, subs: []pnode{atom}, max: -1}
	switch {
	case p.accept("*"):
	case p.accept("+"):
		rep.min = 1
	case p.accept("?"):
		rep.max = 1
	case p.peek() == '{':
		body, _, ok := strings.Cut(p.text[p.pos+1:], "}")
		low, high, ranged := strings.Cut(body, ",")
		var err1, err2 error
		rep.min, err1 = strconv.Atoi(low)
		switch {
		case !ranged:
			rep.max = rep.min
		case high != "":
			rep.max, err2 = strconv.Atoi(high)
		}
		if !ok || err1 != nil || err2 != nil || rep.min > 1000 || rep.max > 1000 || rep.max >= 0 && rep.max < rep.min {
			return atom, p.refuse("the count {" + body)
		}
		p.pos += len(body) + 2
		if c := p.peek(); c == '+' || c == '?' || c == '*' || c == '{' {
			return atom, p.refuse("a count of a count")
		}
	default:
		return atom, nil
	}
	if p.peek() == '?' {
		return atom, p.refuse("a lazy repeat")
	}
	if p.peek() == '+' && p.text[p.pos-1] != '}' {
		p.pos++
		rep.atomic = true
	}
	if c := p.peek(); c == '*' || c == '+' || c == '{' {
		return atom, p.refuse("a repeat of a repeat")
	}
	if atom.kind != pSet && (atom.nullable() || rep.atomic || rep.min > 1 || rep.max > 1) {
		return atom, p.refuse("this repeat of a group")
	}
	return rep, nil
}

func (p *patternParser) atom() (pnode, error) {
	if p.fold && p.peek() != '\'' && (p.peek()|0x20 < 'a' || p.peek()|0x20 > 'z') {
		return pnode{}, p.refuse("(?i:…) over anything but letters")
	}
	switch {
	case p.accept("(?:"):
		return p.group(pnode{}, false)
	case p.accept("(?i:"):
		return p.group(pnode{}, true)
	case p.accept("(?="):
		return p.group(pnode{kind: pLook}, false)
	case p.accept("(?!"):
		return p.group(pnode{kind: pLook, atomic: true}, false)
	case strings.HasPrefix(p.text[p.pos:], "(?"):
		return pnode{}, p.refuse("the group " + p.text[p.pos:min(len(p.text), p.pos+4)])
	case p.accept("("):
		return p.group(pnode{}, false)
	case p.accept("["):
		return p.class()
	case p.accept("."):
		set := &charSet{negated: true}
		set.add('\n', '\n')
		return pnode{set: set}, nil
	case p.peek() == '\\':
		set := new(charSet)
		r, single, err := p.escape(set)
		if err == nil && single {
			set.add(r, r)
		}
		return pnode{set: set}, err
	case strings.IndexByte("^$*+?{", p.peek()) >= 0:
		return pnode{}, p.refuse(strconv.Quote(p.text[p.pos : p.pos+1]))
	}
	r, size := utf8.DecodeRuneInString(p.text[p.pos:])
	p.pos += size
	return p.char(r), nil
}

// char matches one character, in either case where that is asked for.
func (p *patternParser) char(r rune) pnode {
	set := new(charSet)
	set.add(r, r)
	if p.fold && r != '\'' {
		set.add(r|0x20, r|0x20)
		set.add(r&^0x20, r&^0x20)
		switch r | 0x20 {
		case 's':
			set.add('\u017F', '\u017F') // long s
		case 'k':
			set.add('\u212A', '\u212A') // kelvin
		}
	}
	return pnode{set: set}
}

// group parses the rest of a group; look is the look-ahead it is, if it is one.
func (p *patternParser) group(look pnode, fold bool) (pnode, error) {
	if p.depth++; p.depth > 50 {
		return look, p.refuse("such deep nesting")
	}
	outer := p.fold
	p.fold = fold
	body, err := p.alternatives()
	p.fold = outer
	p.depth--
	if err != nil {
		return look, err
	}
	if !p.accept(")") {
		return look, p.refuse("an open group")
	}
	if look.kind == pLook {
		look.subs = []pnode{body}
		return look, nil
	}
	return body, nil
}

func (p *patternParser) class() (pnode, error) {
	set := &charSet{negated: p.accept("^")}
	for first := true; ; first = false {
		switch {
		case p.pos >= len(p.text):
			return pnode{}, p.refuse("an open [")
		case p.peek() == ']' && !first:
			p.pos++
			return pnode{set: set}, nil
		case p.peek() == '[' || p.peek() == ']' || strings.HasPrefix(p.text[p.pos:], "&&"):
			return pnode{}, p.refuse("a class inside a class")
		}
		lo, single, err := p.member(set)
		if err != nil {
			return pnode{}, err
		}
		if !single {
			continue
		}
		hi := lo
		if p.peek() == '-' && !strings.HasPrefix(p.text[p.pos:], "-]") {
			p.pos++
			if hi, single, err = p.member(set); err != nil {
				return pnode{}, err
			}
			if !single || hi < lo {
				return pnode{}, p.refuse("this range")
			}
		}
		set.add(lo, hi)
	}
}

// member reads one character of a class, or a class escape that it adds to set.
func (p *patternParser) member(set *charSet) (rune, bool, error) {
	if p.peek() == '\\' {
		return p.escape(set)
	}
	r, size := utf8.DecodeRuneInString(p.text[p.pos:])
	p.pos += size
	return r, true, nil
}

// escape reads an escape: a single character, or a class that it adds to set.
func (p *patternParser) escape(set *charSet) (r rune, single bool, err error) {
	p.pos++
	if p.pos >= len(p.text) {
		return 0, false, p.refuse(`a final \`)
	}
	c := p.text[p.pos]
	p.pos++
	simple := map[byte]rune{'r': '\r', 'n': '\n', 't': '\t', 'f': '\f', 'v': '\v'}
	switch c {
	case 'r', 'n', 't', 'f', 'v':
		return simple[c], true, nil
	case 's', 'S':
		set.addSpace(c == 's')
		return 0, false, nil
	case 'd', 'D', 'p', 'P':
		name := "Nd"
		if c|0x20 == 'p' {
			body, _, ok := strings.Cut(p.text[p.pos:], "}")
			if !ok || !strings.HasPrefix(body, "{") {
				return 0, false, p.refuse(`an open \p`)
			}
			p.pos += len(body) + 1
			name = body[1:]
		}
		categories, ok := unidata.ByName(name)
		if !ok {
			return 0, false, p.refuse(`\p{` + name + `}`)
		}
		if c == 'D' || c == 'P' {
			categories = ^categories
		}
		set.addCategories(categories, p.out.table)
		return 0, false, nil
	case 'u':
		if p.pos+4 <= len(p.text) {
			if n, err := strconv.ParseUint(p.text[p.pos:p.pos+4], 16, 32); err == nil {
				p.pos += 4
				return rune(n), true, nil
			}
		}
		return 0, false, p.refuse(`a short \u`)
	}
	if c < utf8.RuneSelf && !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z') {
		return rune(c), true, nil
	}
	return 0, false, p.refuse(`\` + string(rune(c)))
}

// emit appends the code of a node.
func (p *patternParser) emit(n pnode) {
	add := func(in inst) int {
		p.out.code = append(p.out.code, in)
		return len(p.out.code) - 1
	}
	here := func() int { return len(p.out.code) }
	switch n.kind {
	case pSet:
		add(inst{op: opSet, set: n.set})
	case pSeq:
		for _, sub := range n.subs {
			p.emit(sub)
		}
	case pAlt:
		var jumps []int
		for i, sub := range n.subs {
			if i == len(n.subs)-1 {
				p.emit(sub)
				break
			}
			split := add(inst{op: opSplit})
			p.out.code[split].x = here()
			p.emit(sub)
			jumps = append(jumps, add(inst{op: opJump}))
			p.out.code[split].y = here()
		}
		for _, j := range jumps {
			p.out.code[j].x = here()
		}
	case pRepeat:
		if n.subs[0].kind == pSet {
			add(inst{op: opRepeat, set: n.subs[0].set, min: n.min, max: n.max, atomic: n.atomic})
			return
		}
		if n.min == 1 {
			p.emit(n.subs[0])
			if n.max == 1 {
				return
			}
		}
		split := add(inst{op: opSplit})
		p.out.code[split].x = here()
		p.emit(n.subs[0])
		if n.max < 0 {
			add(inst{op: opJump, x: split})
		}
		p.out.code[split].y = here()
	case pLook:
		look := add(inst{op: opLook, atomic: n.atomic})
		p.emit(n.subs[0])
		add(inst{op: opMatch})
		p.out.code[look].x = here()
	}
}
