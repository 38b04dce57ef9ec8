package sglang

import (
	"fmt"
	"math"
)

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
