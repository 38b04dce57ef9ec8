package bpe

import "slices"

// gpt2Pattern is the word pattern that ByteLevel uses when it is told to.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// splitter is the pre-tokenizer: split stages, then the byte alphabet.
type splitter struct {
	stages      []stage
	byteLevel   bool
	prefixSpace bool
	// beforeSpace is the number of stages before ByteLevel's own pattern, which works
	// on the piece with its prefix space.
	beforeSpace int
}

// stage splits a piece by the matches of a pattern.
type stage struct {
	next     finder
	behavior behavior
	invert   bool
}

// finder finds the next match at or after from; it never matches nothing.
type finder interface {
	find(text string, from int) (start, end int, ok bool)
}

// behavior is what becomes of the matches.
type behavior int

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func (s *splitter) addSplit(pattern string, literal bool, behaviorName string, invert bool) error {
	names := []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}
	b := slices.Index(names, behaviorName)
	if b < 0 {
		return unsupported("split behaviour %q", behaviorName)
	}
	var f finder
	if scan, ok := scannerFor(pattern); ok && !literal {
		f = scan
	} else {
		p, err := compilePattern(pattern, literal)
		if err != nil {
			return err
		}
		f = p
	}
	s.stages = append(s.stages, stage{f, behavior(b), invert})
	if !s.byteLevel {
		s.beforeSpace = len(s.stages)
	}
	return nil
}

// encode splits text and merges its words.
func (s *splitter) encode(t *Tokenizer, dst []int32, text string) []int32 {
	if len(s.stages) == 1 && !s.prefixSpace {
		if scan, ok := s.stages[0].next.(*scanner); ok && s.stages[0].behavior == isolated {
			for i := 0; i < len(text); {
				end := scan.end(text, i)
				dst = t.appendWord(dst, text[i:end])
				i = end
			}
			return dst
		}
	}
	s.pieces(text, 0, func(piece string) { dst = t.appendWord(dst, piece) })
	return dst
}

// pieces hands over what the stages from n on make of a piece.
func (s *splitter) pieces(text string, n int, emit func(string)) {
	if n == s.beforeSpace && s.prefixSpace {
		text = withPrefixSpace(text)
	}
	if n == len(s.stages) {
		emit(text)
		return
	}
	s.stages[n].split(text, func(piece string) { s.pieces(piece, n+1, emit) })
}

type span struct {
	start, end int
	match      bool
}

func (st stage) split(text string, emit func(string)) {
	if st.behavior == isolated {
		for at := 0; at < len(text); {
			start, end, ok := st.next.find(text, at)
			if !ok {
				start, end = len(text), len(text)
			}
			if at < start {
				emit(text[at:start])
			}
			if start < end {
				emit(text[start:end])
			}
			at = end
		}
		return
	}
	for _, piece := range st.join(st.spans(text)) {
		emit(text[piece.start:piece.end])
	}
}

// spans cuts text into matches and what lies between them.
func (st stage) spans(text string) []span {
	var spans []span
	for at := 0; at < len(text); {
		start, end, ok := st.next.find(text, at)
		if !ok {
			start, end = len(text), len(text)
		}
		if at < start {
			spans = append(spans, span{at, start, st.invert})
		}
		if start < end {
			spans = append(spans, span{start, end, !st.invert})
		}
		at = end
	}
	return spans
}

// join applies the behaviour.
func (st stage) join(spans []span) []span {
	backwards := st.behavior == mergedWithNext
	if backwards {
		slices.Reverse(spans)
	}
	var out []span
	before := false // whether the span before was a match
	for _, s := range spans {
		glue := false
		switch st.behavior {
		case removed:
			if s.match {
				continue
			}
		case mergedWithPrevious, mergedWithNext:
			glue = s.match && !before
		case contiguous:
			glue = s.match == before
		}
		before = s.match
		if glue && len(out) > 0 {
			last := &out[len(out)-1]
			last.start, last.end = min(last.start, s.start), max(last.end, s.end)
			continue
		}
		out = append(out, s)
	}
	if backwards {
		slices.Reverse(out)
	}
	return out
}
