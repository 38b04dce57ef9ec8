package step

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// documented returns a pattern for each key that docs/metrics.md lists in the
// first column of a table.
func documented(t *testing.T) []*regexp.Regexp {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	prefix := ""
	var keys []*regexp.Regexp
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "## ") {
			prefix = ""
			if title := strings.Split(line, "`"); len(title) == 3 && title[1] == "rollout/" {
				prefix = "rollout/" // the section's keys are listed without it
			}
		}
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cell, _, _ := strings.Cut(line[2:], " | ")
		for i, key := range strings.Split(cell, "`") {
			if i%2 == 0 {
				continue
			}
			pattern := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(regexp.QuoteMeta(prefix+key), ".+")
			pattern = strings.NewReplacer(`\{`, "(", `\}`, ")", ",", "|", "stats", "mean|median|max|min", "pass@k", `pass@\d+`).Replace(pattern)
			keys = append(keys, regexp.MustCompile("^"+pattern+"$"))
		}
	}
	return keys
}

func TestEveryKeyIsDocumented(t *testing.T) {
	patterns := documented(t)
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		w := window(5)
		w.Slots, w.Queue = 4, &Queue{Seen: []int64{1}}
		cfg.SkippedRows = new(int)
		r, err := Reduce(cfg, Dispose(cfg, drawGroups(t)), w)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range slices.Concat(slices.Collect(maps.Keys(r.Report.Metrics)), slices.Collect(maps.Keys(r.Report.Unavailable))) {
			if !slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(key) }) {
				t.Errorf("docs/metrics.md does not list %s", key)
			}
		}
	})
}
