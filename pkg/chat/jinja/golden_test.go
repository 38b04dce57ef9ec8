package jinja

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// goldenCase is a template with variables and what Python makes of it; the file is
// written by scripts/chatmodels/golden_jinja.py.
type goldenCase struct {
	Template string
	File     string // in the folder of our own templates, if Template is empty
	Vars     json.RawMessage
	Text     string
	Error    string
}

func goldenCases(t testing.TB) []goldenCase {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []goldenCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		if cases[i].File == "" {
			continue
		}
		source, err := os.ReadFile(filepath.Join("..", "templates", cases[i].File))
		if err != nil {
			t.Fatal(err)
		}
		cases[i].Template = string(source)
	}
	return cases
}

func TestGolden(t *testing.T) {
	now := time.Date(2026, time.November, 30, 12, 34, 56, 0, time.UTC)
	for _, c := range goldenCases(t) {
		vars, err := FromJSON(c.Vars)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		tmpl, err := Parse(c.Template)
		if err == nil {
			got, err = tmpl.Render(vars.(*Dict), Options{Now: now})
		}
		switch {
		case c.Error != "" && err == nil:
			t.Errorf("%q with %s gives %q, Python says %s", c.Template, c.Vars, got, c.Error)
		case c.Error == "" && err != nil:
			t.Errorf("%q with %s: %v, Python gives %q", c.Template, c.Vars, err, c.Text)
		case c.Error == "" && got != c.Text:
			t.Errorf("%q with %s\ngives %q\nwant  %q", c.Template, c.Vars, got, c.Text)
		}
	}
}
