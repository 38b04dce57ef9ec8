package jinja

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// unescape reads the escapes of a Python string literal. Escapes that Python does
// not know stay as they are.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	simple := map[byte]string{'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n",
		'r': "\r", 't': "\t", 'v': "\v"}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out = append(out, s[i])
			continue
		}
		i++
		c := s[i]
		if text, ok := simple[c]; ok {
			out = append(out, text...)
			continue
		}
		switch {
		case c == 'x' || c == 'u' || c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+n >= len(s) {
				return "", errors.New("truncated escape in a string")
			}
			code, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || code > utf8.MaxRune {
				return "", errors.New("bad escape in a string")
			}
			i += n
			r := rune(code)
			if utf16.IsSurrogate(r) {
				return "", errors.New("a surrogate in a string cannot be printed")
			}
			out = utf8.AppendRune(out, r)
		case '0' <= c && c <= '7':
			n := 1
			for n < 3 && i+n < len(s) && '0' <= s[i+n] && s[i+n] <= '7' {
				n++
			}
			code, _ := strconv.ParseUint(s[i:i+n], 8, 32) // at most three octal digits
			i += n - 1
			out = utf8.AppendRune(out, rune(code))
		case c == 'N':
			return "", errors.New(`\N escapes are not supported`)
		default:
			// jinja2 escapes what is not ASCII with backslashes of its own before it
			// reads escapes, so a backslash before such a character stays.
			out = append(out, '\\', c)
		}
	}
	return string(out), nil
}
