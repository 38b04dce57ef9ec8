package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
)

// Problem is one thing wrong with a config.
type Problem struct {
	// File is the config's path, or "--set" for an override, which has no Line.
	File string
	Line int
	// Key is the path of the key, "rollout.batch_size"; "" for the whole file.
	Key string
	// Text says what is wrong and what to do.
	Text string
}

func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.Text)
	return b.String()
}

// place is where a key was written, and the text of its value with variables
// not yet expanded: a message may repeat it.
type place struct {
	file string
	line int
	text string
}

// report collects problems and knows where keys stand.
type report struct {
	file     string
	places   map[string]place
	problems []*Problem
	warnings []*Problem
	// undecoded holds the keys whose value in the config is not the user's,
	// because it could not be decoded. More cannot be said of them.
	undecoded map[string]bool
}

// keys are those with a problem so far.
func (r *report) keys() map[string]bool {
	keys := make(map[string]bool, len(r.problems))
	for _, p := range r.problems {
		keys[p.Key] = true
	}
	return keys
}

// at is the place of the key, or of the nearest section above it that was written.
func (r *report) at(key string) place {
	for k := key; ; {
		if p, ok := r.places[k]; ok {
			return p
		}
		i := strings.LastIndexByte(k, '.')
		if i < 0 {
			return place{file: r.file, line: 1}
		}
		k = k[:i]
	}
}

func (r *report) given(key string) bool {
	_, ok := r.places[key]
	return ok
}

// problem reports key, unless its value could not be decoded.
func (r *report) problem(key, format string, args ...any) {
	if r.undecoded[key] {
		return
	}
	p := r.at(key)
	r.problems = append(r.problems, &Problem{File: p.file, Line: p.line, Key: key, Text: fmt.Sprintf(format, args...)})
}

func (r *report) warn(key, format string, args ...any) {
	p := r.at(key)
	r.warnings = append(r.warnings, &Problem{File: p.file, Line: p.line, Key: key, Text: fmt.Sprintf(format, args...)})
}

// err returns all problems in the order of the file, nil when there are none.
func (r *report) err() error {
	slices.SortStableFunc(r.problems, func(a, b *Problem) int { return cmp.Compare(a.Line, b.Line) })
	all := &multierror.Error{ErrorFormat: formatProblems}
	for _, p := range r.problems {
		all = multierror.Append(all, p)
	}
	return all.ErrorOrNil()
}

func formatProblems(errs []error) string {
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}
