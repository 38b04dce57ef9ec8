package sglang

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Errors of the scanner. What the source returned is passed on as it is.
var (
	errSyntax   = errors.New("the reply is not the JSON of a reply")
	errTokenID  = errors.New("a token id is outside 0 to 2147483647") // hazard 31
	errTooLarge = errors.New("the reply is larger than the limit")
)

const (
	// window is how much of a reply is in memory at once.
	window = 64 << 10
	// maxPiece bounds what must be seen whole: a key, or one log-prob entry.
	maxPiece = 1 << 20
)

// scanner reads JSON from a source through a window. It knows the few shapes of
// an engine's reply: it takes long arrays of numbers apart, keeps the values it
// is asked to keep and passes over the rest, so that its memory does not grow
// with texts or expert tables (hazard 30).
type scanner struct {
	src io.Reader
	// left is how many bytes the source may still give.
	left int64
	buf  []byte
	r, w int
	// err is the source's error once it gave one; io.EOF at its end.
	err error
}

func (s *scanner) reset(src io.Reader, limit int64) {
	if s.buf == nil {
		s.buf = make([]byte, window)
	}
	s.src, s.left, s.r, s.w, s.err = src, limit, 0, 0, nil
}

// more makes more bytes visible beyond those unread, growing the window if it is
// full of them.
func (s *scanner) more() error {
	if s.err != nil {
		return s.end()
	}
	if s.r > 0 {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	if s.w == len(s.buf) {
		if len(s.buf) >= maxPiece {
			return fmt.Errorf("%w: one entry is longer than %d bytes", errSyntax, maxPiece)
		}
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	for range 100 {
		n, err := s.src.Read(s.buf[s.w:])
		s.w += n
		s.left -= int64(n)
		if s.left < 0 {
			s.err = errTooLarge
			return s.err
		}
		s.err = err
		if n > 0 {
			return nil
		}
		if err != nil {
			return s.end()
		}
	}
	s.err = io.ErrNoProgress
	return s.err
}

// end is the error of wanting more than the source had.
func (s *scanner) end() error {
	if s.err == io.EOF {
		return fmt.Errorf("%w: it ends early", errSyntax)
	}
	return s.err
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// peek returns the next byte that is no space, without taking it.
func (s *scanner) peek() (byte, error) {
	for {
		for s.r < s.w {
			if c := s.buf[s.r]; !isSpace(c) {
				return c, nil
			}
			s.r++
		}
		if err := s.more(); err != nil {
			return 0, err
		}
	}
}

// expect takes the byte c.
func (s *scanner) expect(c byte) error {
	got, err := s.peek()
	if err != nil {
		return err
	}
	if got != c {
		return fmt.Errorf("%w: %q where %q should be", errSyntax, got, c)
	}
	s.r++
	return nil
}

// separator takes "," and reports true, or takes the closing byte.
func (s *scanner) separator(closing byte) (again bool, err error) {
	c, err := s.peek()
	if err != nil {
		return false, err
	}
	if c != ',' && c != closing {
		return false, fmt.Errorf("%w: %q where %q or ',' should be", errSyntax, c, closing)
	}
	s.r++
	return c == ',', nil
}

// finished checks that nothing but space is left.
func (s *scanner) finished() error {
	_, err := s.peek()
	switch {
	case err == nil:
		return fmt.Errorf("%w: more follows after its end", errSyntax)
	case s.err == io.EOF:
		return nil
	default:
		return err
	}
}

// object takes an object and calls each with every key; each takes the value.
func (s *scanner) object(each func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if c, err := s.peek(); err != nil {
		return err
	} else if c == '}' {
		s.r++
		return nil
	}
	for {
		key, err := s.key()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := each(key); err != nil {
			return err
		}
		if again, err := s.separator('}'); err != nil || !again {
			return err
		}
	}
}

// key takes a string. One with escapes is returned as written: no key that we
// know has any.
func (s *scanner) key() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	for {
		if i := stringEnd(s.buf[s.r:s.w]); i >= 0 {
			key := string(s.buf[s.r : s.r+i])
			s.r += i + 1
			return key, nil
		}
		if err := s.more(); err != nil {
			return "", err
		}
	}
}

// stringEnd is the index of the quote that ends a string, -1 if it is not in b.
func stringEnd(b []byte) int {
	i := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			return i
		case '\\':
			i++
		}
		i++
	}
	return -1
}

// null takes a null and reports whether one stood there.
func (s *scanner) null() (bool, error) {
	c, err := s.peek()
	if err != nil || c != 'n' {
		return false, err
	}
	return true, s.skip(nil)
}

// skip takes one value of any kind and appends it to keep, unless that is nil.
// Brackets are counted, not matched: encoding/json checks what is kept.
func (s *scanner) skip(keep *[]byte) error {
	depth := 0
	for {
		c, err := s.peek()
		if err != nil {
			return err
		}
		switch c {
		case '{', '[':
			depth++
			s.take(1, keep)
			continue
		case '}', ']':
			depth--
			if depth < 0 {
				return fmt.Errorf("%w: %q where a value should be", errSyntax, c)
			}
			s.take(1, keep)
		case ',', ':':
			if depth == 0 {
				return fmt.Errorf("%w: %q where a value should be", errSyntax, c)
			}
			s.take(1, keep)
			continue
		case '"':
			if err := s.text(keep); err != nil {
				return err
			}
		default:
			if err := s.word(keep); err != nil {
				return err
			}
		}
		if depth == 0 {
			return nil
		}
	}
}

func (s *scanner) take(n int, keep *[]byte) {
	if keep != nil {
		*keep = append(*keep, s.buf[s.r:s.r+n]...)
	}
	s.r += n
}

// text takes a string of any length.
func (s *scanner) text(keep *[]byte) error {
	s.take(1, keep)
	for {
		b := s.buf[s.r:s.w]
		quote := bytes.IndexByte(b, '"')
		stop := quote
		if quote < 0 {
			stop = len(b)
		}
		if slash := bytes.IndexByte(b[:stop], '\\'); slash >= 0 {
			for slash+1 >= len(s.buf[s.r:s.w]) {
				s.take(slash, keep)
				slash = 0
				if err := s.more(); err != nil {
					return err
				}
			}
			s.take(slash+2, keep)
			continue
		}
		if quote >= 0 {
			s.take(quote+1, keep)
			return nil
		}
		s.take(stop, keep)
		if err := s.more(); err != nil {
			return err
		}
	}
}

// word takes a number or a literal.
func (s *scanner) word(keep *[]byte) error {
	taken := 0
	for {
		n := s.r
		for n < s.w && isWord(s.buf[n]) {
			n++
		}
		taken += n - s.r
		s.take(n-s.r, keep)
		if n = s.r; n < s.w {
			if taken == 0 {
				return fmt.Errorf("%w: %q where a value should be", errSyntax, s.buf[n])
			}
			return nil
		}
		if err := s.more(); err != nil {
			// A word may be the last thing of all.
			if s.err == io.EOF && taken > 0 {
				return nil
			}
			return err
		}
	}
}

func isWord(c byte) bool {
	return c-'0' < 10 || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '-' || c == '+' || c == '.' || c >= utf8.RuneSelf
}
