package step

import (
	"fmt"
	"math/bits"
)

// spreadMetrics sets how the rewards within the groups differ.
func (v *view) spreadMetrics(m *metrics, prefix string, cfg Config) {
	groups := float64(len(v.kept))
	counts := map[string]int{}
	var scored, none, all, effective float64
	var rewards []float64
	for _, g := range v.kept {
		rewards = rewards[:0]
		complete := true
		for i := range g.rows {
			if !g.rows[i].scored {
				complete = false
				continue
			}
			rewards = append(rewards, g.rows[i].reward)
		}
		if len(rewards) == 0 {
			continue
		}
		equal, right := true, 0
		for _, r := range rewards {
			equal = equal && r == rewards[0]
			if r == 1 {
				right++
			}
		}
		if equal {
			counts[oneDecimal(rewards[0])]++
		} else {
			effective++
		}
		if !complete {
			continue
		}
		scored++
		switch right {
		case 0:
			none++
		case len(rewards):
			all++
		}
	}
	m.set(prefix+"effective_groups", effective)
	const unscored = "no group is scored as a whole"
	m.ratio(prefix+"solve_none", none, scored, unscored)
	m.ratio(prefix+"solve_partial", scored-none-all, scored, unscored)
	m.ratio(prefix+"solve_all", all, scored, unscored)
	if cfg.Estimator == PPO {
		return
	}
	for r, n := range counts {
		m.count(prefix+"zero_std/count_"+r, n)
	}
	m.ratio(prefix+"zero_std/all_zero_percentage", float64(counts["0.0"]), groups, noSamples)
	m.ratio(prefix+"zero_std/all_one_percentage", float64(counts["1.0"]), groups, noSamples)
}

// passRate sets pass@k for k = 1, 2, 4, … up to n over the groups that have
// exactly n scored episodes: the chance that at least one of k episodes drawn
// from a group is right, 1 − C(n−c, k)/C(n, k) with c right ones (Chen et al.
// 2021, arXiv:2107.03374, equation 1), averaged over the groups. Right means a
// reward of exactly 1. One episode per prompt says nothing beyond the mean
// reward, so n = 1 sets no key.
func (v *view) passRate(m *metrics, prefix string, n int) {
	if n < 2 {
		return
	}
	var correct []int
	for _, g := range v.kept {
		right, scored := 0, 0
		for _, e := range g.episodes {
			if r, ok := e.reward(); ok {
				scored++
				if r == 1 {
					right++
				}
			}
		}
		if scored == n && len(g.episodes) == n {
			correct = append(correct, right)
		}
	}
	for j := range bits.Len(uint(n)) {
		k := 1 << j
		total := 0.0
		for _, c := range correct {
			total += passAt(n, c, k)
		}
		m.ratio(fmt.Sprintf("%s%d", prefix, k), total, float64(len(correct)),
			fmt.Sprintf("no group has exactly %d scored episodes", n))
	}
}

// passAt is 1 − C(n−c, k)/C(n, k), as a product that does not overflow.
func passAt(n, c, k int) float64 {
	if n-c < k {
		return 1
	}
	miss := 1.0
	for i := n - c + 1; i <= n; i++ {
		miss *= 1 - float64(k)/float64(i)
	}
	return 1 - miss
}

// filterMetrics counts the groups that the dynamic filter dropped, by reason.
func (v *view) filterMetrics(m *metrics) {
	for reason, n := range v.drops.all() {
		m.count("rollout/dynamic_filter/drop_"+reason, n)
	}
}
