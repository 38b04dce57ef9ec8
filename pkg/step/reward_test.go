package step

import (
	"fmt"
	"math"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"pgregory.net/rapid"
)

// TestNormalisationByTheBook compares with the formulas, written over maps of
// episodes instead of runs of rows, on uneven groups with fan-out, single
// episodes and missing rewards.
func TestNormalisationByTheBook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Estimator: rapid.SampledFrom([]Estimator{GRPO, GSPO, CISPO, ReinforceBaseline, Reinforce, PPO}).Draw(t, "estimator"),
			Normalize: rapid.Bool().Draw(t, "normalize"), StdNormalize: rapid.Bool().Draw(t, "std"), MinValid: 1,
		}
		var groups []rollout.Group
		rollouts := int64(0)
		for index := range int64(rapid.IntRange(0, 4).Draw(t, "groups")) {
			g := rollout.Group{Index: index}
			for j := range rapid.IntRange(1, 5).Draw(t, "episodes") {
				var reward *float64
				if rapid.IntRange(0, 5).Draw(t, "scored") > 0 {
					reward = rollout.Ptr(rapid.Float64Range(-2, 2).Draw(t, "reward"))
				}
				e := rollout.Episode{ID: rollout.EpisodeID{Group: index, Index: j}, RolloutID: rollouts, Outcome: rollout.OutcomeCompleted}
				for leaf := range rapid.IntRange(1, 3).Draw(t, "leaves") {
					s := &rollout.Sample{SampleInfo: rollout.SampleInfo{GroupIndex: index, RolloutID: rollouts, Index: rollouts*10 + int64(leaf), Reward: reward}}
					if err := s.Append(call(fmt.Sprint(rollouts, leaf), 2, 3, rollout.EngineMeta{})); err != nil {
						t.Fatal(err)
					}
					e.Samples = append(e.Samples, s)
				}
				g.Episodes = append(g.Episodes, e)
				rollouts++
			}
			groups = append(groups, g)
		}
		r, err := Reduce(cfg, Dispose(cfg, groups), Window{})
		if err != nil {
			t.Fatal(err)
		}
		byRollout := map[int64]float64{}
		for _, g := range groups {
			n, sum, squares := 0.0, 0.0, 0.0
			for _, e := range g.Episodes {
				if reward := e.Samples[0].Reward; reward != nil {
					n, sum = n+1, sum+*reward
				}
			}
			for _, e := range g.Episodes {
				if reward := e.Samples[0].Reward; reward != nil {
					squares += math.Pow(*reward-sum/n, 2)
				}
			}
			std := math.Sqrt(squares / (n - 1))
			for _, e := range g.Episodes {
				reward := e.Samples[0].Reward
				if reward == nil {
					continue
				}
				x := *reward
				if cfg.Normalize && cfg.Estimator != PPO && cfg.Estimator != Reinforce {
					x -= sum / n
					if cfg.StdNormalize && n > 1 && std > 0 && (cfg.Estimator == GRPO || cfg.Estimator == GSPO) {
						x /= std + 1e-6
					}
				}
				byRollout[e.RolloutID] = x
			}
		}
		for i, s := range r.Samples {
			if want := byRollout[s.RolloutID]; math.Abs(r.Rewards[i]-want) > 1e-9 {
				t.Errorf("rollout %d: reward %v, want %v", s.RolloutID, r.Rewards[i], want)
			}
			if r.Excluded[i] != (s.Reward == nil) {
				t.Errorf("rollout %d: excluded %v", s.RolloutID, r.Excluded[i])
			}
		}
	})
}
