package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Config says which file to read, how, and in which order to deal its rows.
type Config struct {
	// Path is a file of JSON lines or of Parquet. It may end in "@[a:b]", which keeps the rows
	// from a to before b, counted from 0, and from the end where negative.
	Path string
	// Name names the data set in prompts; the file's name without its ending
	// where empty.
	Name string
	// InputKey, LabelKey, MetadataKey and ToolsKey name the columns. Only the
	// input must be there in a row; a key that is empty is not looked for.
	InputKey, LabelKey, MetadataKey, ToolsKey string
	Shuffle                                   bool
	Seed                                      int64
	// NeedLabel says that rows cannot be scored without a label: one that has none
	// is bad.
	NeedLabel bool
	// MaxRow bounds what of a row travels as a job, in bytes (see
	// [rollout.Prompt.Size]); [DefaultMaxRow] where 0.
	MaxRow int
	// SkipBad leaves bad rows out and keeps a note of each; see [Source.Skipped].
	SkipBad bool
}

// DefaultMaxRow leaves half of a message of the embedded server to the rest of a
// job. A prompt of this size is past the context of any model.
const DefaultMaxRow = 4 << 20

func (c Config) maxRow() int {
	if c.MaxRow == 0 {
		return DefaultMaxRow
	}
	return c.MaxRow
}

// Source deals out the rows of one file. It does not change and is safe for
// concurrent use. Prompts share their slices with it: read only.
type Source struct {
	file    string
	rows    []rollout.Prompt
	lines   []int64 // of the rows
	shuffle bool
	seed    int64
	skipBad bool
	skipped []error
}

// RowError says what is wrong with one row.
type RowError struct {
	File string
	// Line is from 1. In a Parquet file it is the row's number, from 1.
	Line int64
	Err  error
}

func (e *RowError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

func (e *RowError) Unwrap() error { return e.Err }

// Errors of Open.
var (
	// ErrNoRows reports a file, or a slice of one, without a row.
	ErrNoRows = errors.New("there is no prompt in it")
	// ErrColumn reports a column that no row has.
	ErrColumn = errors.New("names no column")
	// ErrNotFile reports a path of a folder, a device or a pipe.
	ErrNotFile = errors.New("it is a folder, a device or a pipe; name a file of JSON lines or Parquet")
	// ErrSlice reports a path whose "@[...]" is no slice.
	ErrSlice = errors.New("the slice must be @[a:b] with whole numbers, each of which may be missing")
)

// maxListed bounds the bad rows listed in one error.
const maxListed = 20

// Open reads a file of JSON lines, or of Parquet, whose values it takes as the
// JSON that they would be in JSON lines. Blank lines are no rows. Its error lists the bad rows, each
// a [*RowError].
func Open(cfg Config) (*Source, error) {
	file, part, err := cutSlice(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("prompts %s: %w", cfg.Path, err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("prompts: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("prompts %s: %w", file, ErrNotFile)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("prompts: %w", err)
	}
	if bytes.HasPrefix(text, []byte(parquetMagic)) {
		rows, names, err := parquetRows(text, cfg)
		if err != nil {
			return nil, fmt.Errorf("prompts %s: %w", file, err)
		}
		return newSource(file, rows, names, part, cfg)
	}
	return newSource(file, jsonLines(text), nil, part, cfg)
}

// Read is Open on the text of JSON lines, where cfg.Path is a name for errors.
func Read(r io.Reader, cfg Config) (*Source, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("prompts %s: %w", cfg.Path, err)
	}
	return newSource(cfg.Path, jsonLines(text), nil, everything, cfg)
}

// record is one row before its columns are read.
type record struct {
	line    int64
	columns func() (row, error)
}

// newSource reads the records of a slice. names are the file's columns; nil where
// only the rows tell.
func newSource(file string, records []record, names []string, part slice, cfg Config) (*Source, error) {
	name := cfg.Name
	if name == "" {
		name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	s := &Source{file: file, shuffle: cfg.Shuffle, seed: cfg.Seed, skipBad: cfg.SkipBad}
	known := map[string]bool{}
	var unread []error // bad rows whatever the columns
	for _, n := range names {
		known[n] = true
	}
	from, to := part.bounds(len(records))
	for i, rec := range records[from:to] {
		columns, err := rec.columns()
		for key := range columns {
			known[key] = true
		}
		var p rollout.Prompt
		if err != nil {
			s.skip(rec.line, err)
			unread = append(unread, s.skipped[len(s.skipped)-1])
			continue
		}
		if p, err = parseColumns(columns, cfg); err != nil {
			s.skip(rec.line, err)
			continue
		}
		p.Source, p.Row = name, int64(from+i)
		s.rows, s.lines = append(s.rows, p), append(s.lines, rec.line)
	}
	// One sentence for a column, instead of the same one for every row.
	if err := missingColumns(file, known, cfg); err != nil {
		if !cfg.SkipBad {
			err = errors.Join(err, badRows(unread))
		}
		return nil, err
	}
	if len(s.skipped) > 0 && !cfg.SkipBad {
		return nil, badRows(s.skipped)
	}
	if len(s.rows) == 0 {
		return nil, fmt.Errorf("prompts %s: %w (%d rows, %d of them bad, %d in the slice)", file, ErrNoRows, len(records), len(s.skipped), to-from)
	}
	return s, nil
}

func (s *Source) skip(line int64, err error) {
	s.skipped = append(s.skipped, &RowError{File: s.file, Line: line, Err: err})
}

// missingColumns names the columns that the config needs and the file does not
// have.
func missingColumns(file string, known map[string]bool, cfg Config) error {
	if len(known) == 0 {
		return nil // there is no row to tell
	}
	const most = 20
	columns := slices.Sorted(maps.Keys(known))
	more := ""
	if n := len(columns) - most; n > 0 {
		columns, more = columns[:most], fmt.Sprintf(" and %d more", n)
	}
	var all []error
	for _, c := range []struct {
		option, key string
		needed      bool
	}{{"data.input_key", cfg.InputKey, true}, {"data.label_key", cfg.LabelKey, cfg.NeedLabel}} {
		if c.needed && !known[c.key] {
			all = append(all, fmt.Errorf("prompts %s: %s %w: no row has %q; there are: %s%s", file, c.option, ErrColumn, c.key, strings.Join(columns, ", "), more))
		}
	}
	return errors.Join(all...)
}

// Within is the source without the rows that are longer than maxRow bytes, which
// is for a limit that was not known when it was opened. As in Open, they are an
// error unless bad rows are skipped.
func (s *Source) Within(maxRow int) (*Source, error) {
	out := *s
	out.rows, out.lines, out.skipped = nil, nil, nil
	for i, p := range s.rows {
		if n := p.Size(); n > maxRow {
			out.skip(s.lines[i], tooLong(n, maxRow))
			continue
		}
		out.rows, out.lines = append(out.rows, p), append(out.lines, s.lines[i])
	}
	switch {
	case len(out.skipped) > 0 && !s.skipBad:
		return nil, badRows(out.skipped)
	case len(out.rows) == 0:
		return nil, fmt.Errorf("prompts %s: %w that can travel as a job", s.file, ErrNoRows)
	}
	out.skipped = slices.Concat(s.skipped, out.skipped)
	return &out, nil
}

func badRows(bad []error) error {
	all := &multierror.Error{ErrorFormat: func(errs []error) string {
		var lines []string
		for _, err := range errs {
			lines = append(lines, err.Error())
		}
		if more := len(bad) - len(errs); more > 0 {
			lines = append(lines, fmt.Sprintf("and %d more bad rows; correct them, or set data.skip_bad to leave them out", more))
		}
		return strings.Join(lines, "\n")
	}}
	return multierror.Append(all, bad[:min(len(bad), maxListed)]...).ErrorOrNil()
}

// Len is the number of rows, which is the length of an epoch.
func (s *Source) Len() int { return len(s.rows) }

// Skipped lists the bad rows left out, each a [*RowError].
func (s *Source) Skipped() []error { return s.skipped }

// ErrPosition reports a position before the first.
var ErrPosition = errors.New("a position in a prompt source starts at 0")

// At returns the prompt at a position, counted from 0 over all epochs.
func (s *Source) At(position int64) (rollout.Prompt, error) {
	if position < 0 {
		return rollout.Prompt{}, fmt.Errorf("position %d: %w", position, ErrPosition)
	}
	n := int64(len(s.rows))
	return s.rows[s.row(newOrder(uint64(n), s.seed, position/n), position%n)], nil
}

func (s *Source) row(o order, i int64) uint64 {
	if !s.shuffle {
		return uint64(i)
	}
	return o.at(uint64(i))
}

// Next returns the count prompts from cursor on, which is a position, and the
// cursor after them. It may go through any number of epochs.
func (s *Source) Next(cursor int64, count int) ([]rollout.Prompt, int64, error) {
	if cursor < 0 || count < 0 {
		return nil, cursor, fmt.Errorf("%d prompts from position %d: %w", count, cursor, ErrPosition)
	}
	n := int64(len(s.rows))
	out := make([]rollout.Prompt, 0, count)
	end := cursor + int64(count)
	for cursor < end {
		epoch := cursor / n
		o := newOrder(uint64(n), s.seed, epoch)
		for ; cursor < end && cursor/n == epoch; cursor++ {
			out = append(out, s.rows[s.row(o, cursor%n)])
		}
	}
	return out, cursor, nil
}

// slice is "[a:b]" with the meaning it has in Python; nil is a missing bound.
type slice struct{ from, to *int }

var everything = slice{}

// cutSlice takes "@[a:b]" off a path.
func cutSlice(path string) (file string, part slice, err error) {
	file, rest, ok := cutLast(path, "@[")
	if !ok || !strings.HasSuffix(rest, "]") {
		return path, everything, nil
	}
	a, b, ok := strings.Cut(strings.TrimSuffix(rest, "]"), ":")
	if !ok {
		return "", everything, ErrSlice
	}
	for _, bound := range []struct {
		text string
		into **int
	}{{a, &part.from}, {b, &part.to}} {
		text := strings.TrimSpace(bound.text)
		if text == "" {
			continue
		}
		v, err := strconv.Atoi(text)
		if err != nil {
			return "", everything, ErrSlice
		}
		*bound.into = &v
	}
	return file, part, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// bounds are the slice's indices in n rows, 0 <= from <= to <= n.
func (s slice) bounds(n int) (from, to int) {
	index := func(p *int, missing int) int {
		if p == nil {
			return missing
		}
		i := *p
		if i < 0 {
			i += n
		}
		return min(max(i, 0), n)
	}
	from, to = index(s.from, 0), index(s.to, n)
	return from, max(from, to)
}

// jsonLines cuts a text into its rows.
func jsonLines(text []byte) []record {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var out []record
	line := int64(0)
	for raw := range bytes.Lines(text) {
		line++
		if raw = bytes.TrimSpace(raw); len(raw) > 0 {
			out = append(out, record{line, func() (row, error) { return parseRow(raw) }})
		}
	}
	return out
}
