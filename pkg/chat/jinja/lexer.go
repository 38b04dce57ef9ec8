package jinja

import (
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string // the name, the operator, the data or the string's value
	num  Value  // of tokInt and tokFloat
	line int
}

// lexer cuts a template into tokens with trim_blocks and lstrip_blocks on and the
// trailing newline removed, which is how chat templates are read.
type lexer struct {
	src          string
	pos, line    int
	lineStarting bool // the text before pos ends a line, or there is none
	tokens       []token
	braces       []byte // closing brackets that are owed inside a tag
}

func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	src = strings.TrimSuffix(src, "\n")
	l := &lexer{src: src, line: 1, lineStarting: true}
	for l.pos < len(l.src) {
		if err := l.outside(); err != nil {
			return nil, err
		}
	}
	return append(l.tokens, token{kind: tokEOF, line: l.line}), nil
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind: kind, text: text, line: l.line})
}

// advance moves past text that is part of the template.
func (l *lexer) advance(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
	l.lineStarting = n > 0 && l.src[l.pos-1] == '\n'
}

// sign reads the white-space control after an opening delimiter.
func (l *lexer) sign() byte {
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		l.advance(1)
		return l.src[l.pos-1]
	}
	return 0
}

// outside reads data up to the next tag, and the tag.
func (l *lexer) outside() error {
	rest := l.src[l.pos:]
	at := nextTag(rest)
	if at < 0 {
		l.add(tokData, rest)
		l.advance(len(rest))
		return nil
	}
	kind := rest[at+1]
	sign := byte(0)
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign = rest[at+2]
	}
	if data := stripBefore(rest[:at], sign, kind != '{', l.lineStarting); data != "" {
		l.add(tokData, data)
	}
	line := l.line + strings.Count(rest[:at], "\n")
	l.advance(at + 2)
	if sign != 0 {
		l.advance(1)
	}
	switch kind {
	case '#':
		return l.comment(line)
	case '%':
		if raw, ok, err := l.raw(); ok || err != nil {
			if raw != "" {
				l.add(tokData, raw)
			}
			return err
		}
		l.add(tokBlockBegin, "")
	default:
		l.add(tokVarBegin, "")
	}
	return l.inside(kind == '%')
}

// nextTag finds the next opening delimiter.
func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		next := strings.IndexByte(s[i:], '{')
		if next < 0 {
			return -1
		}
		i += next
		if i+1 < len(s) && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// stripBefore removes the white space before a tag that its sign or
// lstrip_blocks asks for.
func stripBefore(data string, sign byte, block, lineStarting bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(data, isSpace)
	case sign == '+' || !block:
		return data
	}
	line := strings.LastIndexByte(data, '\n') + 1
	if (line > 0 || lineStarting) && strings.TrimLeftFunc(data[line:], isSpace) == "" {
		return data[:line]
	}
	return data
}

// closing matches an end delimiter at pos with its white-space control and
// returns the length of all it takes away, or 0.
func (l *lexer) closing(delimiter string, trimNewline bool) int {
	rest := l.src[l.pos:]
	switch {
	case strings.HasPrefix(rest, "-"+delimiter):
		n := 1 + len(delimiter)
		return len(rest) - len(strings.TrimLeftFunc(rest[n:], isSpace))
	case trimNewline && strings.HasPrefix(rest, "+"+delimiter):
		return 1 + len(delimiter)
	case strings.HasPrefix(rest, delimiter):
		n := len(delimiter)
		if trimNewline && n < len(rest) && rest[n] == '\n' {
			n++
		}
		return n
	}
	return 0
}

func (l *lexer) comment(line int) error {
	for l.pos < len(l.src) { // one that opens at the very end is complete

		next := strings.IndexAny(l.src[l.pos:], "-+#")
		if next < 0 {
			return &Error{Line: line, Msg: "missing end of comment tag"}
		}
		l.advance(next)
		if n := l.closing("#}", true); n > 0 {
			l.advance(n)
			return nil
		}
		l.advance(1)
		if l.pos == len(l.src) {
			return &Error{Line: line, Msg: "missing end of comment tag"}
		}
	}
	return nil
}

// raw reads a raw section, if the tag that has just been opened is one.
func (l *lexer) raw() (string, bool, error) {
	rest := l.src[l.pos:]
	body := strings.TrimLeftFunc(rest, isSpace)
	if !strings.HasPrefix(body, "raw") {
		return "", false, nil
	}
	body = strings.TrimLeftFunc(body[len("raw"):], isSpace)
	switch {
	case strings.HasPrefix(body, "-%}"):
		body = strings.TrimLeftFunc(body[3:], isSpace)
	case strings.HasPrefix(body, "%}"):
		body = body[2:]
	default:
		return "", false, nil
	}
	line := l.line
	l.advance(len(rest) - len(body))
	start, lineStarting := l.pos, l.lineStarting
	if body == "" { // one that opens at the very end is complete
		return "", true, nil
	}
	for {
		next := strings.Index(l.src[l.pos:], "{%")
		if next < 0 {
			return "", true, &Error{Line: line, Msg: "missing end of raw directive"}
		}
		l.advance(next)
		end := l.pos
		l.advance(2)
		sign := l.sign()
		inner := strings.TrimLeftFunc(l.src[l.pos:], isSpace)
		if !strings.HasPrefix(inner, "endraw") {
			continue
		}
		inner = strings.TrimLeftFunc(inner[len("endraw"):], isSpace)
		l.advance(len(l.src) - l.pos - len(inner))
		if n := l.closing("%}", true); n > 0 {
			l.advance(n)
			return stripBefore(l.src[start:end], sign, true, lineStarting), true, nil
		}
	}
}

// inside reads the tokens of a tag up to its end.
func (l *lexer) inside(block bool) error {
	start := l.line
	for l.pos < len(l.src) {
		if len(l.braces) == 0 {
			delimiter, kind := "}}", tokVarEnd
			if block {
				delimiter, kind = "%}", tokBlockEnd
			}
			if n := l.closing(delimiter, block); n > 0 {
				l.add(kind, "")
				l.advance(n)
				return nil
			}
		}
		if err := l.tokenInside(); err != nil {
			return err
		}
	}
	return &Error{Line: start, Msg: "unexpected end of template inside a tag"}
}

func (l *lexer) tokenInside() error {
	rest := l.src[l.pos:]
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case isSpace(r):
		l.advance(size)
		return nil
	case '0' <= r && r <= '9':
		return l.number()
	case r == '"' || r == '\'':
		return l.str(byte(r))
	case isWord(r):
		n := len(rest) - len(strings.TrimLeftFunc(rest, isWord))
		if r != '_' && !unicode.IsLetter(r) && !unicode.Is(unicode.Nl, r) {
			return &Error{Line: l.line, Msg: "invalid character in identifier"}
		}
		l.add(tokName, rest[:n])
		l.advance(n)
		return nil
	}
	op := rest[:1]
	if len(rest) > 1 {
		switch rest[:2] {
		case "//", "**", "==", "!=", ">=", "<=":
			op = rest[:2]
		}
	}
	if strings.IndexByte("+-/*%~[](){}=<>.:|,;", op[0]) < 0 && len(op) == 1 {
		return &Error{Line: l.line, Msg: "unexpected char " + strconv.Quote(string(r))}
	}
	switch op {
	case "(":
		l.braces = append(l.braces, ')')
	case "[":
		l.braces = append(l.braces, ']')
	case "{":
		l.braces = append(l.braces, '}')
	case ")", "]", "}":
		if len(l.braces) == 0 {
			return &Error{Line: l.line, Msg: "unexpected '" + op + "'"}
		}
		want := l.braces[len(l.braces)-1]
		l.braces = l.braces[:len(l.braces)-1]
		if op[0] != want {
			return &Error{Line: l.line, Msg: "unexpected '" + op + "', expected '" + string(want) + "'"}
		}
	}
	l.add(tokOp, op)
	l.advance(len(op))
	return nil
}

// number reads an integer or a float. A number after a dot is always an integer:
// x.0.1 is a path.
func (l *lexer) number() error {
	rest := l.src[l.pos:]
	afterDot := l.pos > 0 && l.src[l.pos-1] == '.'
	if n := floatLen(rest); n > 0 && !afterDot {
		f, err := strconv.ParseFloat(strings.ReplaceAll(rest[:n], "_", ""), 64)
		if err != nil && f == 0 {
			return &Error{Line: l.line, Msg: "invalid number " + rest[:n]}
		}
		l.tokens = append(l.tokens, token{kind: tokFloat, text: rest[:n], num: f, line: l.line})
		l.advance(n)
		return nil
	}
	n := intLen(rest)
	digits := strings.ReplaceAll(rest[:n], "_", "")
	b, ok := new(big.Int).SetString(digits, 0)
	if strings.Trim(digits, "0") == "" {
		b, ok = new(big.Int), true
	}
	if !ok {
		return &Error{Line: l.line, Msg: "invalid number " + digits}
	}
	l.tokens = append(l.tokens, token{kind: tokInt, text: rest[:n], num: normInt(b), line: l.line})
	l.advance(n)
	return nil
}

// digitsLen is the length of digits that single underscores may part.
func digitsLen(s string, digit func(byte) bool) int {
	n := 0
	for n < len(s) && (digit(s[n]) || s[n] == '_' && n > 0 && n+1 < len(s) && digit(s[n+1]) && s[n-1] != '_') {
		n++
	}
	return n
}

func decimal(c byte) bool { return '0' <= c && c <= '9' }

func floatLen(s string) int {
	n := digitsLen(s, decimal)
	isFloat := false
	if n+1 < len(s) && s[n] == '.' && decimal(s[n+1]) {
		n += 1 + digitsLen(s[n+1:], decimal)
		isFloat = true
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		m := n + 1
		if m < len(s) && (s[m] == '+' || s[m] == '-') {
			m++
		}
		if d := digitsLen(s[min(m, len(s)):], decimal); d > 0 {
			return m + d
		}
	}
	if isFloat {
		return n
	}
	return 0
}

func intLen(s string) int {
	if len(s) > 2 && s[0] == '0' {
		var digit func(byte) bool
		switch s[1] | 0x20 {
		case 'x':
			digit = func(c byte) bool { return decimal(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
		case 'o':
			digit = func(c byte) bool { return '0' <= c && c <= '7' }
		case 'b':
			digit = func(c byte) bool { return c == '0' || c == '1' }
		}
		if digit != nil {
			start := 2
			if s[2] == '_' {
				start = 3
			}
			if n := digitsLen(s[start:], digit); n > 0 {
				return start + n
			}
		}
	}
	if s[0] == '0' {
		return digitsLen(s, func(c byte) bool { return c == '0' })
	}
	return digitsLen(s, decimal)
}

func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
}

func (l *lexer) str(quote byte) error {
	rest := l.src[l.pos:]
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case quote:
			text, err := unescape(rest[1:i])
			if err != nil {
				return &Error{Line: l.line, Msg: err.Error()}
			}
			l.add(tokString, text)
			l.advance(i + 1)
			return nil
		}
	}
	return &Error{Line: l.line, Msg: "unterminated string"}
}
