// Package jsonscan is a small pull reader for JSON that keeps the order of keys.
//
// encoding/json decodes objects into maps, which lose the order that chat
// templates print, and costs several passes over an 11 MB tokenizer file. A
// Reader walks the bytes once and hands every value to the caller in place.
//
// It reads what Python's json module reads, because that is the reference:
// besides JSON proper also NaN, Infinity and -Infinity as numbers. A lone
// surrogate escape, which a Go string cannot hold, becomes U+FFFD.
package jsonscan

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds nesting, so that hostile input cannot exhaust the stack.
const maxDepth = 1000

// Kind is what the next value is.
type Kind byte

// The kinds of value.
const (
	Invalid Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// Reader reads one JSON text.
type Reader struct {
	data  []byte
	text  string // the same as data, if strings are to be cut from it
	pos   int
	depth int
	buf   []byte
}

// NewReader returns a reader over data, which it does not change.
func NewReader(data []byte) *Reader { return &Reader{data: data} }

// NewSharingReader returns a reader whose strings are cut from one copy of data
// where they hold no escapes.
func NewSharingReader(data []byte) *Reader { return &Reader{data: data, text: string(data)} }

// SyntaxError reports text that is not JSON.
type SyntaxError struct {
	Offset int
	What   string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.What)
}

func (r *Reader) fail(what string) error { return &SyntaxError{Offset: r.pos, What: what} }

func (r *Reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// Kind tells what the next value is, without consuming it.
func (r *Reader) Kind() Kind {
	r.space()
	if r.pos >= len(r.data) {
		return Invalid
	}
	switch c := r.data[r.pos]; {
	case c == '"':
		return String
	case c == '{':
		return Object
	case c == '[':
		return Array
	case c == 't' || c == 'f':
		return Bool
	case c == 'n':
		return Null
	case c == '-' || c == 'N' || c == 'I' || '0' <= c && c <= '9':
		return Number
	}
	return Invalid
}

// End reports an error if anything but white space is left.
func (r *Reader) End() error {
	r.space()
	if r.pos < len(r.data) {
		return r.fail("text after the value")
	}
	return nil
}

func (r *Reader) literal(word string) error {
	if !bytes.HasPrefix(r.data[r.pos:], []byte(word)) {
		return r.fail("expected " + word)
	}
	r.pos += len(word)
	return nil
}

// Null consumes a null.
func (r *Reader) Null() error {
	r.space()
	return r.literal("null")
}

// Bool consumes true or false.
func (r *Reader) Bool() (bool, error) {
	r.space()
	if r.pos < len(r.data) && r.data[r.pos] == 't' {
		return true, r.literal("true")
	}
	return false, r.literal("false")
}

// Number consumes a number and returns its text.
func (r *Reader) Number() (string, error) {
	r.space()
	start := r.pos
	for _, word := range [...]string{"NaN", "Infinity", "-Infinity"} {
		if bytes.HasPrefix(r.data[r.pos:], []byte(word)) {
			r.pos += len(word)
			return word, nil
		}
	}
	if r.pos < len(r.data) && r.data[r.pos] == '-' {
		r.pos++
	}
	switch {
	case r.pos < len(r.data) && r.data[r.pos] == '0':
		r.pos++
	case !r.digits():
		return "", r.fail("expected a digit")
	}
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		r.pos++
		if !r.digits() {
			return "", r.fail("expected a digit after the point")
		}
	}
	if r.pos < len(r.data) && (r.data[r.pos] == 'e' || r.data[r.pos] == 'E') {
		r.pos++
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		if !r.digits() {
			return "", r.fail("expected a digit in the exponent")
		}
	}
	return string(r.data[start:r.pos]), nil
}

func (r *Reader) digits() bool {
	start := r.pos
	for r.pos < len(r.data) && '0' <= r.data[r.pos] && r.data[r.pos] <= '9' {
		r.pos++
	}
	return r.pos > start
}

// Int consumes a number that must be an integer.
func (r *Reader) Int() (int64, error) {
	text, err := r.Number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, r.fail("expected an integer, found " + text)
	}
	return n, nil
}

// String consumes a string.
func (r *Reader) String() (string, error) {
	b, err := r.StringBytes()
	if end := r.pos - 1; err == nil && r.text != "" && len(b) > 0 && end >= len(b) {
		// Without escapes the string stands in the text as it is, before its quote.
		if s := r.text[end-len(b) : end]; s == string(b) && r.text[end-len(b)-1] == '"' {
			return s, nil
		}
	}
	return string(b), err
}

// StringBytes consumes a string and returns its bytes, which are valid until the
// next call.
func (r *Reader) StringBytes() ([]byte, error) {
	r.space()
	if r.pos >= len(r.data) || r.data[r.pos] != '"' {
		return nil, r.fail("expected a string")
	}
	r.pos++
	start := r.pos
	seen := byte(0) // all bits of the bytes read: plain ASCII needs no second look
	for pos, c := range r.data[start:] {
		seen |= c
		if c != '"' && c != '\\' && c >= ' ' {
			continue
		}
		r.pos = start + pos
		switch c {
		case '"':
			s := r.data[start:r.pos]
			r.pos++
			if seen < utf8.RuneSelf {
				return s, nil
			}
			return valid(s), nil
		case '\\':
			return r.escaped(start)
		default:
			return nil, r.fail("control character in a string")
		}
	}
	r.pos = len(r.data)
	return nil, r.fail("unterminated string")
}

func valid(s []byte) []byte {
	if utf8.Valid(s) {
		return s
	}
	return bytes.ToValidUTF8(s, []byte("\uFFFD"))
}

// escaped continues StringBytes at its first escape.
func (r *Reader) escaped(start int) ([]byte, error) {
	r.buf = append(r.buf[:0], r.data[start:r.pos]...)
	for r.pos < len(r.data) {
		c := r.data[r.pos]
		switch {
		case c == '"':
			r.pos++
			return valid(r.buf), nil
		case c < ' ':
			return nil, r.fail("control character in a string")
		case c != '\\':
			from := r.pos
			for r.pos++; r.pos < len(r.data); r.pos++ {
				if c := r.data[r.pos]; c == '"' || c == '\\' || c < ' ' {
					break
				}
			}
			r.buf = append(r.buf, r.data[from:r.pos]...)
			continue
		}
		r.pos++
		if r.pos >= len(r.data) {
			break
		}
		c = r.data[r.pos]
		r.pos++
		switch c {
		case '"', '\\', '/':
			r.buf = append(r.buf, c)
		case 'b':
			r.buf = append(r.buf, '\b')
		case 'f':
			r.buf = append(r.buf, '\f')
		case 'n':
			r.buf = append(r.buf, '\n')
		case 'r':
			r.buf = append(r.buf, '\r')
		case 't':
			r.buf = append(r.buf, '\t')
		case 'u':
			u, ok := r.hex4()
			if !ok {
				return nil, r.fail("bad \\u escape")
			}
			r.buf = utf8.AppendRune(r.buf, r.surrogate(u))
		default:
			return nil, r.fail("unknown escape")
		}
	}
	return nil, r.fail("unterminated string")
}

// surrogate joins u with the low half that may follow it.
func (r *Reader) surrogate(u rune) rune {
	if !utf16.IsSurrogate(u) {
		return u
	}
	if r.pos+1 < len(r.data) && r.data[r.pos] == '\\' && r.data[r.pos+1] == 'u' {
		mark := r.pos
		r.pos += 2
		if low, ok := r.hex4(); ok {
			if joined := utf16.DecodeRune(u, low); joined != utf8.RuneError {
				return joined
			}
		}
		r.pos = mark
	}
	return utf8.RuneError
}

func (r *Reader) hex4() (rune, bool) {
	if r.pos+4 > len(r.data) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(r.data[r.pos:r.pos+4]), 16, 16)
	if err != nil {
		return 0, false
	}
	r.pos += 4
	return rune(n), true
}

func (r *Reader) enter() error {
	r.depth++
	if r.depth > maxDepth {
		return r.fail("nested too deeply")
	}
	r.pos++
	r.space()
	return nil
}

// Array consumes an array; item must consume exactly one value each time.
func (r *Reader) Array(item func() error) error {
	if r.Kind() != Array {
		return r.fail("expected an array")
	}
	if err := r.enter(); err != nil {
		return err
	}
	if r.pos < len(r.data) && r.data[r.pos] == ']' {
		r.pos++
		r.depth--
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		more, err := r.more(']')
		if err != nil || !more {
			return err
		}
	}
}

// Object consumes an object; member must consume exactly one value each time.
func (r *Reader) Object(member func(key string) error) error {
	return r.ObjectBytes(func(key []byte) error { return member(string(key)) })
}

// ObjectBytes is Object with keys that are only valid until the value is read.
func (r *Reader) ObjectBytes(member func(key []byte) error) error {
	if r.Kind() != Object {
		return r.fail("expected an object")
	}
	if err := r.enter(); err != nil {
		return err
	}
	if r.pos < len(r.data) && r.data[r.pos] == '}' {
		r.pos++
		r.depth--
		return nil
	}
	for {
		key, err := r.StringBytes()
		if err != nil {
			return err
		}
		r.space()
		if r.pos >= len(r.data) || r.data[r.pos] != ':' {
			return r.fail("expected a colon")
		}
		r.pos++
		if err := member(key); err != nil {
			return err
		}
		more, err := r.more('}')
		if err != nil || !more {
			return err
		}
	}
}

// more consumes the comma or the closing bracket after a value.
func (r *Reader) more(closing byte) (bool, error) {
	r.space()
	if r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ',':
			r.pos++
			return true, nil
		case closing:
			r.pos++
			r.depth--
			return false, nil
		}
	}
	return false, r.fail("expected a comma or " + string(closing))
}

// Skip consumes any value.
func (r *Reader) Skip() error {
	switch r.Kind() {
	case Null:
		return r.Null()
	case Bool:
		_, err := r.Bool()
		return err
	case Number:
		_, err := r.Number()
		return err
	case String:
		_, err := r.StringBytes()
		return err
	case Array:
		return r.Array(r.Skip)
	case Object:
		return r.Object(func(string) error { return r.Skip() })
	}
	return r.fail("expected a value")
}

// Raw consumes any value and returns its text.
func (r *Reader) Raw() ([]byte, error) {
	r.space()
	start := r.pos
	if err := r.Skip(); err != nil {
		return nil, err
	}
	return r.data[start:r.pos], nil
}
