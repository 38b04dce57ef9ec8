package reward

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestExact(t *testing.T) {
	for _, tc := range []struct {
		name, response, label string
		want                  bool
	}{
		{"the label alone", "7", "7", true},
		{"spaces around", " 7\n", "7", true},
		{"a text", "  Paris ", "Paris", true},
		{"another text", "paris", "Paris", false},
		{"the end of a sum", "3+4=7", "7", true},
		{"the end of a sentence", "The answer is 12", "12", true},
		{"a number that goes on", "The answer is 12.", "12", false},
		{"only part of the number", "17", "7", false},
		{"the fraction counts", "0.7", "7", false},
		{"a fraction", "it is 2.50", "2.50", true},
		{"as written", "it is 2.5", "2.50", false},
		{"the last of two", "7 or 8", "7", false},
		{"the last of a list", "3,4", "4", true},
		{"groups of three", "so 1,234", "1234", true},
		{"groups of three in the label", "so 1234", "1,234", true},
		{"not the last group", "so 1,234", "234", false},
		{"a sign", "x = -4", "-4", true},
		{"a sign is not lost", "x = -4", "4", false},
		{"a difference", "9-4", "4", true},
		{"a difference with spaces", "(9) - 4", "4", true},
		{"a version", "1.2.3", "3", false},
		{"the end of a word", "v2", "2", false},
		{"after thinking", "<think>8</think>\n\n7", "7", true},
		{"the answer in the thinking does not count", "<think>7</think> 8", "7", false},
		{"unclosed thinking is all there is", "<think>so 7", "7", true},
		{"the last closing", "</think>8</think>7", "7", true},
		{"nothing", "", "7", false},
		{"nothing after thinking", "7</think>", "7", false},
		{"only a separator", "7=,", "7", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Exact(tc.response, tc.label); got != tc.want {
				t.Errorf("Exact(%q, %q) = %v", tc.response, tc.label, got)
			}
		})
	}
}

func TestScore(t *testing.T) {
	s, err := New(rollout.RewardSpec{Type: "exact"})
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]float64{`"7"`: 1, `7`: 1, `"8"`: 0} {
		got, err := s.Score(t.Context(), Input{Prompt: rollout.Prompt{Label: json.RawMessage(label)}, Response: "3+4=7"})
		if err != nil || got.Reward == nil || *got.Reward != want {
			t.Errorf("label %s: %v, %v", label, got, err)
		}
	}
	for _, label := range []json.RawMessage{nil, json.RawMessage(`null`), json.RawMessage(`""`), json.RawMessage(`" "`)} {
		got, err := s.Score(t.Context(), Input{Prompt: rollout.Prompt{Label: label}, Response: "7"})
		if !errors.Is(err, ErrNoLabel) || got.Reward != nil {
			t.Errorf("label %s: %v, %v", label, got, err)
		}
	}
}

func TestNew(t *testing.T) {
	for _, name := range Types() {
		if _, err := New(rollout.RewardSpec{Type: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(rollout.RewardSpec{Type: "exakt"}); !errors.Is(err, ErrType) || !strings.Contains(err.Error(), `"exakt": use one of exact, math`) {
		t.Errorf("%v", err)
	}
}

// Whatever stands before it, a number at the end after a sign of equality is the
// answer, and no other number is.
func TestExactTakesTheNumberAtTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.String().Draw(t, "before")
		number := rapid.StringMatching(`-?(0|[1-9]\d{0,5})(\.\d{1,3})?`).Draw(t, "number")
		other := rapid.StringMatching(`-?(0|[1-9]\d{0,5})(\.\d{1,3})?`).Draw(t, "other")
		text := before + "=" + number
		if strings.Contains(before, "</think>") {
			return
		}
		if !Exact(text, number) {
			t.Fatalf("%q does not answer %q", text, number)
		}
		if other != number && Exact(text, other) {
			t.Fatalf("%q answers %q", text, other)
		}
	})
}
