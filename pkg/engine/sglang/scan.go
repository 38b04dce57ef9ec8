package sglang

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
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

// ids takes an array of token ids and appends them to dst.
func (s *scanner) ids(dst []int32) ([]int32, error) {
	if err := s.expect('['); err != nil {
		return dst, err
	}
	if c, err := s.peek(); err != nil {
		return dst, err
	} else if c == ']' {
		s.r++
		return dst, nil
	}
	for {
		b := s.buf[:s.w]
		i := s.r
		for {
			for i < len(b) && isSpace(b[i]) {
				i++
			}
			v, next, ok := scanInt(b, i)
			for next < len(b) && isSpace(b[next]) {
				next++
			}
			if next >= len(b) {
				break // the window ends here
			}
			if !ok || b[next] != ',' && b[next] != ']' {
				return dst, fmt.Errorf("%w: %q in a list of token ids", errSyntax, b[next])
			}
			if v < 0 || v > math.MaxInt32 {
				return dst, errTokenID
			}
			dst = append(dst, int32(v))
			s.r, i = next+1, next+1
			if b[next] == ']' {
				return dst, nil
			}
		}
		if err := s.more(); err != nil {
			return dst, err
		}
	}
}

// noLogProb stands for a log-prob that is null, or that no number is: the
// engine's NaN and infinities arrive as null (hazard 8) or as words.
var noLogProb = float32(math.NaN())

// triples takes an array of [log-prob, token id, text or null].
func (s *scanner) triples(probs []float32, ids []int32) ([]float32, []int32, error) {
	if err := s.expect('['); err != nil {
		return probs, ids, err
	}
	if c, err := s.peek(); err != nil {
		return probs, ids, err
	} else if c == ']' {
		s.r++
		return probs, ids, nil
	}
	for {
		p, id, n, err := scanTriple(s.buf[s.r:s.w])
		if err != nil {
			return probs, ids, err
		}
		if n == 0 {
			if err := s.more(); err != nil {
				return probs, ids, err
			}
			continue
		}
		s.r += n
		if id < 0 || id > math.MaxInt32 {
			return probs, ids, errTokenID
		}
		probs, ids = append(probs, p), append(ids, int32(id))
		if s.buf[s.r-1] == ']' {
			return probs, ids, nil
		}
	}
}

// scanTriple reads one entry and the "," or "]" after it. n is 0 when b ends
// before them.
func scanTriple(b []byte) (p float32, id int64, n int, err error) {
	i, ok := after(b, 0, '[')
	if i >= len(b) {
		return 0, 0, 0, nil
	}
	if !ok {
		return 0, 0, 0, badEntry(b[i])
	}
	i = space(b, i)
	if i >= len(b) {
		return 0, 0, 0, nil
	}
	start := i
	if p, i, ok = scanFloat(b, i); !ok {
		// null, NaN, Infinity, -Infinity, or a number that b does not hold whole.
		for i < len(b) && isWord(b[i]) {
			i++
		}
		if i >= len(b) {
			return 0, 0, 0, nil
		}
		switch string(b[start:i]) {
		case "null", "NaN", "Infinity", "-Infinity":
			p = noLogProb
		default:
			return 0, 0, 0, badEntry(b[start])
		}
	}
	if i, ok = after(b, i, ','); !ok {
		return 0, 0, 0, endOr(b, i)
	}
	if id, i, ok = scanInt(b, space(b, i)); !ok {
		return 0, 0, 0, endOr(b, space(b, i))
	}
	if i, ok = after(b, i, ','); ok {
		i = space(b, i)
		switch {
		case i >= len(b):
			return 0, 0, 0, nil
		case b[i] == '"':
			end := stringEnd(b[i+1:])
			if end < 0 {
				return 0, 0, 0, nil
			}
			i += end + 2
		default:
			start := i
			for i < len(b) && isWord(b[i]) {
				i++
			}
			if i < len(b) && string(b[start:i]) != "null" {
				return 0, 0, 0, badEntry(b[start])
			}
		}
	}
	if i, ok = after(b, i, ']'); !ok {
		return 0, 0, 0, endOr(b, i)
	}
	i = space(b, i)
	if i >= len(b) {
		return 0, 0, 0, nil
	}
	if b[i] != ',' && b[i] != ']' {
		return 0, 0, 0, badEntry(b[i])
	}
	return p, id, i + 1, nil
}

func space(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// after is the index after the byte c, which may have spaces before it.
func after(b []byte, i int, c byte) (int, bool) {
	i = space(b, i)
	if i < len(b) && b[i] == c {
		return i + 1, true
	}
	return i, false
}

// endOr is nil when b ends at i, and else an error on what stands there.
func endOr(b []byte, i int) error {
	if i >= len(b) {
		return nil
	}
	return badEntry(b[i])
}

func badEntry(c byte) error {
	return fmt.Errorf("%w: %q in a list of log-probs", errSyntax, c)
}
