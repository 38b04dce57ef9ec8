package sim_test

import (
	"fmt"
	"regexp"
	"testing"
)

// exact is the quickstart's reward: the response ends in the right integer.
func exact(text string, want int) bool {
	last := regexp.MustCompile(`-?\d+$`).FindString(text)
	return last == fmt.Sprint(want)
}

func TestBaseReward(t *testing.T) {
	engine := newEngine(t, nil)
	right, n, tokens := 0, 0, 0
	for i := range 2000 {
		a, b := i/10%10, i%10
		r := generate(t, engine, object{"rid": fmt.Sprintf("%032d", i), "text": question(a, b), "sampling_params": object{"max_new_tokens": 64}})
		if r.Meta.FinishReason.Type == "stop" && exact(r.Text, a+b) {
			right++
		}
		n++
		tokens += r.Meta.Completion
		if i < 10 {
			t.Log(r.Text, r.Meta.FinishReason)
		}
	}
	share := float64(right) / float64(n)
	t.Logf("reward %.3f, %.2f tokens", share, float64(tokens)/float64(n))
	if share < 0.05 || share > 0.3 {
		t.Errorf("the base weights are right on %.3f of the questions, want 0.05 to 0.3", share)
	}
}
