package step

import (
	"compress/zlib"
	"errors"
	"io"
	"unicode/utf8"
)

// textMetrics sets what is read from the samples' texts and metadata.
func (v *view) textMetrics(m *metrics, prefix string, cfg Config) {
	n := float64(v.samples)
	m.ratio(prefix+"repetition_frac", float64(v.repetitive), n, noSamples)
	for category, count := range v.categories.all() {
		m.ratio(prefix+"error_cat/"+category, float64(count), n, noSamples)
	}
	if v.compared == 0 && !cfg.Sessions {
		return
	}
	const rate, none = "tito_session_mismatch_rate", "no sample was compared with a whole rendering"
	m.ratio(prefix+rate, float64(v.mismatched), float64(v.compared), none)
	for i, name := range mismatchTypes {
		m.ratio(prefix+rate+"/"+name, float64(v.byType[i]), float64(v.compared), none)
	}
}

// repetition finds texts that repeat themselves. The zero value is ready.
type repetition struct {
	deflate *zlib.Writer
	err     error
}

const (
	// repetitionWindow is the number of characters at the end of a text that are
	// looked at; shorter texts are never repetitive.
	repetitionWindow = 10_000
	// repetitionRatio is how many times smaller zlib at level 9 must make them.
	repetitionRatio = 10
)

// in says whether the last 10,000 characters of a longer text compress to less
// than a tenth of their UTF-8 bytes (the rule of slime and miles).
func (r *repetition) in(text string) bool {
	if len(text) <= repetitionWindow {
		return false
	}
	tail := len(text)
	for range repetitionWindow {
		if tail == 0 {
			return false
		}
		_, size := utf8.DecodeLastRuneInString(text[:tail])
		tail -= size
	}
	if tail == 0 {
		return false
	}
	// The compressed size counts only as long as it is below the bound.
	size := bounded{left: (len(text) - tail) / repetitionRatio}
	if r.deflate == nil {
		r.deflate, r.err = zlib.NewWriterLevel(&size, zlib.BestCompression)
	} else {
		r.deflate.Reset(&size)
	}
	if r.err != nil {
		return false
	}
	if _, err := io.WriteString(r.deflate, text[tail:]); err != nil {
		return false
	}
	if err := r.deflate.Close(); err != nil {
		return false
	}
	return (len(text) - tail) > repetitionRatio*size.n
}

var errBound = errors.New("more bytes than wanted")

// bounded counts the bytes written and refuses those beyond left.
type bounded struct{ n, left int }

func (b *bounded) Write(p []byte) (int, error) {
	if b.n += len(p); b.n > b.left {
		return 0, errBound
	}
	return len(p), nil
}
