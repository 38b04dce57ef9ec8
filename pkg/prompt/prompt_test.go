package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

var columns = Config{Path: "f.jsonl", Name: "d", InputKey: "prompt", LabelKey: "label", MetadataKey: "metadata", ToolsKey: "tools"}

func TestRows(t *testing.T) {
	user := rollout.NewMessage("user", "hi")
	for _, tc := range []struct {
		name string
		row  string
		want rollout.Prompt
		err  string
	}{
		{name: "text", row: `{"prompt":"2+2=","label":4}`, want: rollout.Prompt{Text: "2+2=", Label: json.RawMessage("4")}},
		{name: "messages", row: `{"prompt":[{"role":"user","content":"hi"}],"label":"4","metadata":{"a":1},"tools":[{"type":"function"}],"more":[1]}`,
			want: rollout.Prompt{Messages: []rollout.Message{user}, Label: json.RawMessage(`"4"`), Metadata: json.RawMessage(`{"a":1}`), Tools: []json.RawMessage{json.RawMessage(`{"type":"function"}`)}}},
		{name: "nulls are absent", row: `{"prompt":"x","label":null,"metadata":null,"tools":null}`, want: rollout.Prompt{Text: "x"}},
		{name: "tools as text", row: `{"prompt":"x","tools":"[{\"a\":1}]"}`, want: rollout.Prompt{Text: "x", Tools: []json.RawMessage{json.RawMessage(`{"a":1}`)}}},
		{name: "equal keys of different objects", row: `{"prompt":"x","metadata":{"prompt":[{"a":1},{"a":2}],"b":{"a":"prompt,\"b\":"}}}`,
			want: rollout.Prompt{Text: "x", Metadata: json.RawMessage(`{"prompt":[{"a":1},{"a":2}],"b":{"a":"prompt,\"b\":"}}`)}},
		{name: "a surrogate pair", row: `{"prompt":"\ud83d\ude00 \\ud800"}`, want: rollout.Prompt{Text: "\U0001f600 \\ud800"}},
		{name: "two equal keys", row: `{"prompt":"x","prompt":"y"}`, err: `has the key "prompt" twice`},
		{name: "two equal keys, one escaped", row: `{"prompt":"x","\u0070rompt":"y"}`, err: `has the key "prompt" twice`},
		{name: "two equal keys far in", row: `{"prompt":"x","metadata":{"a":[{"b":1,"c":{},"b":2}]}}`, err: `has the key "b" twice`},
		{name: "two equal keys in a message", row: `{"prompt":[{"role":"user","content":"a","content":"b"}]}`, err: `has the key "content" twice`},
		{name: "two equal keys in tools as text", row: `{"prompt":"x","tools":"[{\"a\":1,\"a\":2}]"}`, err: `"tools": it has the key "a" twice`},
		{name: "not UTF-8", row: "{\"prompt\":\"caf\xe9\"}", err: "is not UTF-8 text"},
		{name: "not UTF-8 in a column that is not read", row: "{\"prompt\":\"x\",\"more\":\"\xff\"}", err: "is not UTF-8 text"},
		{name: "the first half of a surrogate pair", row: `{"prompt":"a\ud800b"}`, err: `holds \ud800, half of a character`},
		{name: "the second half of a surrogate pair", row: `{"prompt":"a\uDC00"}`, err: `holds \uDC00, half of a character`},
		{name: "two first halves", row: `{"prompt":"\ud83d\ud83d\ude00"}`, err: `holds \ud83d, half of a character`},
		{name: "half a surrogate pair in a key", row: `{"prompt":"a","\ud800":1}`, err: "half of a character"},
		{name: "no prompt", row: `{"question":"x","prompt":null}`, err: `has no "prompt"`},
		{name: "prompt null", row: `{"prompt":null}`, err: `has no "prompt"`},
		{name: "prompt empty", row: `{"prompt":""}`, err: "it is empty"},
		{name: "no messages", row: `{"prompt":[]}`, err: "it is an empty list"},
		{name: "prompt a number", row: `{"prompt":4}`, err: "a text or a list of messages"},
		{name: "a message without a role", row: `{"prompt":[{"content":"x"}]}`, err: "it has no role"},
		{name: "a message that is text", row: `{"prompt":["x"]}`, err: `"prompt": entry 0 is not a chat message: it must be an object with a role, is a JSON string`},
		{name: "a role that is a number", row: `{"prompt":[{"role":"user"},{"role":3}]}`, err: `"prompt": entry 1 is not a chat message: its role must be text, is a JSON number`},
		{name: "metadata a list", row: `{"prompt":"x","metadata":[1]}`, err: `"metadata": it must be an object`},
		{name: "tools an object", row: `{"prompt":"x","tools":{}}`, err: `"tools": it must be a list`},
		{name: "tools of texts", row: `{"prompt":"x","tools":["a"]}`, err: "entry 0 must be an object"},
		{name: "not JSON", row: `{"prompt":`, err: "is not JSON"},
		{name: "two values", row: `{"prompt":"x"} {}`, err: "is not JSON"},
		{name: "not an object", row: `["x"]`, err: "must be a JSON object, is a JSON array"},
		{name: "null", row: `null`, err: "must be a JSON object, is null"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Read(strings.NewReader(tc.row), columns)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || !strings.HasPrefix(err.Error(), "f.jsonl:1: ") {
					t.Errorf("error %v, want f.jsonl:1: %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.At(0)
			tc.want.Source = "d"
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
}

// TestRowsThatCannotTravel: a row longer than a job may be is a bad row, at load
// and when the limit turns out to be lower.
func TestRowsThatCannotTravel(t *testing.T) {
	text := `{"prompt":"aa","label":"b"}` + "\n" + `{"prompt":"` + strings.Repeat("x", 50) + `"}` + "\n" +
		`{"prompt":"c","label":"d","metadata":{"m":1},"more":"` + strings.Repeat("y", 200) + `"}`
	for _, tc := range []struct {
		name            string
		atOpen, atLimit int
		skip            bool
		rows            int
		err             []string
	}{
		{name: "all travel", atLimit: 50, rows: 3},
		{name: "a long one at load", atOpen: 49, atLimit: 50, err: []string{"f.jsonl:2: has 50 bytes", "at most 49"}},
		{name: "a long one at load is skipped", atOpen: 49, atLimit: 50, skip: true, rows: 2},
		{name: "long ones behind a lower limit", atLimit: 5, err: []string{"f.jsonl:2: has 50 bytes", "f.jsonl:3: has 11 bytes"}},
		{name: "long ones behind a lower limit are skipped", atOpen: 49, atLimit: 10, skip: true, rows: 1},
		{name: "nothing is left", atLimit: 1, skip: true, err: []string{"there is no prompt in it that can travel"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := columns
			cfg.MaxRow, cfg.SkipBad = tc.atOpen, tc.skip
			s, err := Read(strings.NewReader(text), cfg)
			if err == nil {
				s, err = s.Within(tc.atLimit)
			}
			for _, want := range tc.err {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %s", err, want)
				}
			}
			if tc.err == nil && (err != nil || s.Len() != tc.rows || len(s.Skipped()) != 3-tc.rows) {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	long := fmt.Sprintf("{\"prompt\":\"%s\"}", strings.Repeat("x", DefaultMaxRow+1))
	if _, err := Read(strings.NewReader(long), columns); err == nil || !strings.Contains(err.Error(), "f.jsonl:1: has 4194305 bytes") {
		t.Errorf("without a limit: %v", err)
	}
}

// TestColumns: a column that no row has is named once, with those there are.
func TestColumns(t *testing.T) {
	needed := columns
	needed.NeedLabel = true
	parquet := Config{Path: filepath.Join("testdata", "new.parquet"), InputKey: "text"}
	for _, tc := range []struct {
		name string
		text string // "" opens the config's own file
		edit func(*Config)
		err  string
		is   error
	}{
		{name: "a label is there", text: `{"prompt":"a","label":0}`},
		{name: "no label, none needed", text: `{"prompt":"a"}`, edit: func(c *Config) { c.NeedLabel = false }},
		{name: "no label column", text: `{"prompt":"a","answer":1}` + "\n" + `{"prompt":"b","extra":1}`, is: ErrColumn,
			err: `prompts f.jsonl: data.label_key names no column: no row has "label"; there are: answer, extra, prompt`},
		{name: "no column at all, and a bad row", text: `{"question":"a"}` + "\n{", is: ErrColumn,
			err: "there are: question\nprompts f.jsonl: data.label_key names no column: no row has \"label\"; there are: question\nf.jsonl:2: is not JSON"},
		{name: "no label column, bad rows skipped", text: `{"prompt":"a","answer":1}`, edit: func(c *Config) { c.SkipBad = true }, is: ErrColumn},
		{name: "one row without a label", text: `{"prompt":"a","label":1}` + "\n" + `{"prompt":"b"}`, err: `f.jsonl:2: has no "label" to score against`},
		{name: "blank labels", text: `{"prompt":"a","label":" "}` + "\n" + `{"prompt":"b","label":null}`, err: `f.jsonl:1: has no "label" to score against`},
		{name: "a blank label is skipped", text: `{"prompt":"a","label":""}` + "\n" + `{"prompt":"b","label":"x"}`, edit: func(c *Config) { c.SkipBad = true }},
		{name: "no input column", text: `{"question":"a"}`, is: ErrColumn, err: `data.input_key names no column: no row has "prompt"; there are: question`},
		{name: "no label column of a Parquet file", edit: func(c *Config) { *c = parquet; c.LabelKey, c.NeedLabel = "nope", true }, is: ErrColumn, err: "text"},
		{name: "no input column of a Parquet file", edit: func(c *Config) { *c = parquet; c.InputKey = "question" }, is: ErrColumn, err: "text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := needed
			if tc.edit != nil {
				tc.edit(&cfg)
			}
			var err error
			if tc.text == "" {
				_, err = Open(cfg)
			} else {
				_, err = Read(strings.NewReader(tc.text), cfg)
			}
			if tc.err == "" && tc.is == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.err) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("error %v, want %v %s", err, tc.is, tc.err)
			}
		})
	}
}

func TestPathsThatAreNoFile(t *testing.T) {
	for _, path := range []string{t.TempDir(), os.DevNull} {
		cfg := columns
		cfg.Path = path
		if _, err := Open(cfg); !errors.Is(err, ErrNotFile) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	text := "\xef\xbb\xbf{\"prompt\":\"a\"}\r\n\r\n  \t\n{\"prompt\":\"" + long + "\"}\nbad\n{\"prompt\":\"c\"}\n{\n{\"prompt\":\"d\"}"

	_, err := Read(strings.NewReader(text), columns)
	for _, want := range []string{"f.jsonl:5: is not JSON", "f.jsonl:7: is not JSON"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %s", err, want)
		}
	}

	cfg := columns
	cfg.SkipBad = true
	s, err := Read(strings.NewReader(text), cfg)
	if err != nil {
		t.Fatal(err)
	}
	prompts, cursor, err := s.Next(0, 4)
	if err != nil || cursor != 4 || s.Len() != 4 {
		t.Fatalf("cursor %d of %d, %v", cursor, s.Len(), err)
	}
	var rows []string
	for _, p := range prompts {
		rows = append(rows, fmt.Sprintf("%d:%.1s", p.Row, p.Text))
	}
	if want := []string{"0:a", "1:x", "3:c", "5:d"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
	var row *RowError
	if bad := s.Skipped(); len(bad) != 2 || !errors.As(bad[1], &row) || row.Line != 7 {
		t.Errorf("bad rows %v", bad)
	}

	_, err = Read(strings.NewReader(strings.Repeat("bad\n", 100)), columns)
	if err == nil || strings.Count(err.Error(), "\n") != maxListed || !strings.Contains(err.Error(), "and 80 more bad rows") {
		t.Errorf("100 bad rows: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sums.jsonl")
	var text strings.Builder
	for i := range 10 {
		fmt.Fprintf(&text, "{\"prompt\":\"%d\"}\n", i)
	}
	text.WriteString("bad\n")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := columns
	cfg.Name = ""
	for _, tc := range []struct {
		suffix      string
		first, rows int
		err         error
	}{
		{suffix: "@[0:10]", rows: 10},
		{suffix: "@[2:4]", first: 2, rows: 2},
		{suffix: "@[:3]", rows: 3},
		{suffix: "@[-5:-1]", first: 6, rows: 4},
		{suffix: "@[-100:5]", rows: 5},
		{suffix: "@[5:2]", err: ErrNoRows},
		{suffix: "@[100:]", err: ErrNoRows},
		{suffix: "@[1]", err: ErrSlice},
		{suffix: "@[a:b]", err: ErrSlice},
		{suffix: "@[1:2:3]", err: ErrSlice},
		{suffix: "@[1:2", err: os.ErrNotExist},
	} {
		t.Run(tc.suffix, func(t *testing.T) {
			cfg.Path = path + tc.suffix
			s, err := Open(cfg)
			if tc.err != nil {
				if !errors.Is(err, tc.err) {
					t.Errorf("error %v, want %v", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := s.At(0)
			if err != nil || s.Len() != tc.rows || p.Row != int64(tc.first) || p.Text != fmt.Sprint(tc.first) || p.Source != "sums" {
				t.Errorf("%d rows, first %+v, %v", s.Len(), p, err)
			}
		})
	}
	cfg.Path = path
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), ":11: ") {
		t.Errorf("a bad row outside of no slice: %v", err)
	}
}

// numbered is a source of n rows whose text is their number.
func numbered(t rapid.TB, n int, shuffle bool, seed int64) *Source {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "{\"prompt\":\"%d\"}\n", i)
	}
	cfg := columns
	cfg.Shuffle, cfg.Seed = shuffle, seed
	s, err := Read(strings.NewReader(text.String()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryEpochHoldsEachRowOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		seed := rapid.Int64().Draw(t, "seed")
		epoch := rapid.Int64Range(0, 1<<40).Draw(t, "epoch")
		s := numbered(t, n, true, seed)
		rows, cursor, err := s.Next(epoch*int64(n), n)
		if err != nil || cursor != (epoch+1)*int64(n) {
			t.Fatalf("cursor %d, %v", cursor, err)
		}
		seen := make([]bool, n)
		for _, p := range rows {
			if seen[p.Row] {
				t.Fatalf("row %d twice in one epoch", p.Row)
			}
			seen[p.Row] = true
		}
	})
}

func TestNextIsAFunctionOfThePosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 50).Draw(t, "n")
		seed := rapid.Int64().Draw(t, "seed")
		start := rapid.Int64Range(0, 1000).Draw(t, "start")
		count := rapid.IntRange(0, 400).Draw(t, "count")
		shuffle := rapid.Bool().Draw(t, "shuffle")
		s := numbered(t, n, shuffle, seed)
		whole, end, err := s.Next(start, count)
		if err != nil || len(whole) != count || end != start+int64(count) {
			t.Fatalf("%d of %d prompts to %d, %v", len(whole), count, end, err)
		}
		// In parts, from another source of the same file, and one by one.
		other := numbered(t, n, shuffle, seed)
		cursor := start
		for i := 0; i < count; {
			k := min(count-i, rapid.IntRange(0, 60).Draw(t, "part"))
			part, next, err := other.Next(cursor, k)
			if err != nil {
				t.Fatal(err)
			}
			for j, p := range part {
				at, err := s.At(cursor + int64(j))
				if err != nil || p.Row != whole[i+j].Row || at.Row != p.Row {
					t.Fatalf("position %d: row %d, %d and %d, %v", cursor+int64(j), p.Row, whole[i+j].Row, at.Row, err)
				}
			}
			cursor, i = next, i+k
		}
		if !shuffle && count > 0 && whole[0].Row != start%int64(n) {
			t.Fatalf("row %d at position %d of %d", whole[0].Row, start, n)
		}
	})
	s := numbered(t, 3, true, 0)
	if _, err := s.At(-1); !errors.Is(err, ErrPosition) {
		t.Errorf("%v", err)
	}
	if _, _, err := s.Next(-1, 1); !errors.Is(err, ErrPosition) {
		t.Errorf("%v", err)
	}
}

// TestOrderIsStable holds the order that the package documents: a run that is
// under way depends on it.
func TestOrderIsStable(t *testing.T) {
	for _, tc := range []struct {
		n           uint64
		seed, epoch int64
		want        []uint64
	}{
		{10, 42, 0, []uint64{1, 4, 3, 7, 9, 0, 8, 6, 2, 5}},
		{10, 42, 1, []uint64{6, 1, 9, 5, 0, 8, 4, 2, 3, 7}},
		{10, -1, 0, []uint64{5, 2, 6, 3, 1, 0, 9, 4, 8, 7}},
		{1, 42, 0, []uint64{0}},
	} {
		o := newOrder(tc.n, tc.seed, tc.epoch)
		var got []uint64
		for i := range tc.n {
			got = append(got, o.at(i))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("n %d seed %d epoch %d: %v, want %v", tc.n, tc.seed, tc.epoch, got, tc.want)
		}
	}
}

// TestOrderIsFair counts, over many epochs, how often each row stands at each
// index, and which of all orders of four rows come up.
func TestOrderIsFair(t *testing.T) {
	const epochs = 24000
	for _, n := range []uint64{2, 3, 4, 5, 7, 16, 33} {
		counts := make([]float64, n*n)
		for e := range int64(epochs) {
			o := newOrder(n, 7, e)
			for i := range n {
				counts[i*n+o.at(i)]++
			}
		}
		var chi float64
		want := float64(epochs) / float64(n)
		for _, c := range counts {
			chi += (c - want) * (c - want) / want
		}
		// (n-1)^2 degrees of freedom, and five standard deviations.
		free := float64((n - 1) * (n - 1))
		if limit := free + 5*1.4143*max(1, math.Sqrt(free)) + 5; chi > limit {
			t.Errorf("n %d: chi square %.1f, limit %.1f", n, chi, limit)
		}
	}
	orders := map[string]int{}
	for e := range int64(epochs) {
		o := newOrder(4, 9, e)
		orders[fmt.Sprint(o.at(0), o.at(1), o.at(2), o.at(3))]++
	}
	for perm, n := range orders {
		if n < 800 || n > 1200 {
			t.Errorf("order %s comes up %d times, want about 1000", perm, n)
		}
	}
	if len(orders) != 24 {
		t.Errorf("%d of 24 orders come up", len(orders))
	}
}

func FuzzRows(f *testing.F) {
	f.Add([]byte("{\"prompt\":\"a\"}\n\n{\"prompt\":[{\"role\":\"user\"}],\"tools\":\"[{}]\",\"metadata\":{}}"))
	f.Add([]byte("\xef\xbb\xbfnull\r\n{\"prompt\":1}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := columns
		cfg.SkipBad = true
		s, err := Read(strings.NewReader(string(data)), cfg)
		if err != nil {
			if !errors.Is(err, ErrNoRows) && !errors.Is(err, ErrColumn) {
				t.Fatal(err)
			}
			return
		}
		for i := range int64(s.Len()) {
			p, err := s.At(i)
			if err != nil {
				t.Fatal(err)
			}
			if (p.Text == "") == (len(p.Messages) == 0) {
				t.Fatalf("text and messages: %+v", p)
			}
			if _, err := json.Marshal(p); err != nil {
				t.Fatalf("row %d does not travel: %v", p.Row, err)
			}
		}
	})
}
