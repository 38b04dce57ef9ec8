package session

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrSyntax reports a body that is not the JSON it should be.
var ErrSyntax = errors.New("invalid JSON")

func syntax(at int, what string) error { return fmt.Errorf("%w at byte %d: %s", ErrSyntax, at, what) }

// skipSpace returns the index of the next byte that is not white space.
func skipSpace(data []byte, i int) int {
	for i < len(data) {
		switch data[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

// skipString returns the index behind the string that begins at i.
func skipString(data []byte, i int) (int, error) {
	start := i
	i++
	for {
		n := bytes.IndexByte(data[i:], '"')
		if n < 0 {
			return 0, syntax(start, "a string does not end")
		}
		i += n + 1
		// The quote is text if an odd number of backslashes stands before it.
		slashes := 0
		for k := i - 2; k > start && data[k] == '\\'; k-- {
			slashes++
		}
		if slashes%2 == 0 {
			return i, nil
		}
	}
}

// skipValue returns the index behind the value that begins at i. It finds where a
// value ends and no more: what a value holds is checked by whoever decodes it.
func skipValue(data []byte, i int) (int, error) {
	start, depth := i, 0
	for i < len(data) {
		switch data[i] {
		case '"':
			end, err := skipString(data, i)
			if err != nil {
				return 0, err
			}
			i = end
		case '{', '[':
			depth++
			i++
		case '}', ']':
			if depth == 0 {
				return 0, syntax(i, "a value is missing")
			}
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return 0, syntax(i, "a value is missing")
			}
			i++
			continue
		default: // a number or a word
			for i < len(data) && !bytes.ContainsRune([]byte(",:]}[{\" \t\n\r"), rune(data[i])) {
				i++
			}
		}
		if depth == 0 {
			return i, nil
		}
	}
	return 0, syntax(start, "a value does not end")
}

// Fields walks the object that begins at data and hands each key to visit with the
// index of its value. visit returns the index behind the value, or one that is not
// positive to have it skipped. Fields returns the index behind the object.
func Fields(data []byte, visit func(key string, at int) (int, error)) (int, error) {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return 0, syntax(i, "it is not an object")
	}
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(data) || data[i] != '"' {
			return 0, syntax(i, "a key is missing")
		}
		end, err := skipString(data, i)
		if err != nil {
			return 0, err
		}
		key := string(data[i+1 : end-1])
		i = skipSpace(data, end)
		if i >= len(data) || data[i] != ':' {
			return 0, syntax(i, "a colon is missing")
		}
		i = skipSpace(data, i+1)
		next, err := visit(key, i)
		if err != nil {
			return 0, err
		}
		if next <= 0 {
			if next, err = skipValue(data, i); err != nil {
				return 0, err
			}
		}
		i = skipSpace(data, next)
		if i >= len(data) {
			return 0, syntax(i, "the object does not end")
		}
		switch data[i] {
		case '}':
			return i + 1, nil
		case ',':
			i = skipSpace(data, i+1)
		default:
			return 0, syntax(i, "a comma is missing")
		}
	}
}

// Value returns the value that begins at i and the index behind it.
func Value(data []byte, i int) ([]byte, int, error) {
	end, err := skipValue(data, i)
	if err != nil {
		return nil, 0, err
	}
	return data[i:end], end, nil
}

// element moves to the next element of an array: from behind "[" or behind an
// element to the start of one. more is false at the end, and i then behind "]".
func element(data []byte, i int, first bool) (next int, more bool, err error) {
	i = skipSpace(data, i)
	if i >= len(data) {
		return 0, false, syntax(i, "the list does not end")
	}
	switch {
	case data[i] == ']':
		return i + 1, false, nil
	case first:
		return i, true, nil
	case data[i] == ',':
		i = skipSpace(data, i+1)
		if i < len(data) && data[i] == ']' {
			return 0, false, syntax(i, "an element is missing")
		}
		return i, true, nil
	default:
		return 0, false, syntax(i, "a comma is missing")
	}
}
