package sglang

import (
	"errors"
	"reflect"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestParseCounters(t *testing.T) {
	p := rollout.Ptr[int64]
	cases := []struct {
		name, text string
		want       engine.Counters
		err        error
	}{
		{"no counter of ours", "# HELP x y\nother_total 7\n", engine.Counters{}, nil},
		{"an engine, summed over ranks", "# TYPE sglang:generation_tokens_total counter\n" +
			"sglang:generation_tokens_total{model_name=\"a b{}\",dp_rank=\"0\"} 1.5e+03\nsglang:generation_tokens_total{dp_rank=\"1\"} 7 1700000000\n" +
			"sglang:prompt_tokens_total 3.0\n", engine.Counters{Completion: p(1507), Prompt: p(3)}, nil},
		{"a simulated engine", "sheaf_sim_verify_total 2\nsheaf_sim_correct_tokens_total 0\n", engine.Counters{Verify: p(2), Correct: p(0)}, nil},
		{"starts", "process_start_time_seconds 1.76450800053e+09\n", engine.Counters{Started: p(1764508000)}, nil},
		{"a name that only begins so", "sglang:generation_tokens_total_created 5\n", engine.Counters{}, nil},
		{"no value", "sglang:generation_tokens_total{}\n", engine.Counters{}, errSample},
		{"no number", "sglang:generation_tokens_total NaN\n", engine.Counters{}, errSample},
		{"a sum beyond belief", "sglang:generation_tokens_total{r=\"0\"} 9007199254740992\nsglang:generation_tokens_total{r=\"1\"} 1\n", engine.Counters{}, errSample},
		{"negative", "sglang:generation_tokens_total -1\n", engine.Counters{}, errSample},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseCounters([]byte(tc.text))
			if !errors.Is(err, tc.err) || err == nil && !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v %v", got, err)
			}
		})
	}
}

func FuzzParseCounters(f *testing.F) {
	f.Add([]byte("sglang:generation_tokens_total{a=\"}\"} 1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseCounters(text)
		if err == nil && c.Completion != nil && *c.Completion < 0 {
			t.Error("a negative count")
		}
	})
}
