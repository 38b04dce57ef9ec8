package step

import "github.com/sheaf-rl/sheaf/pkg/rollout"

// agentMetrics sets what only agent sessions have: turns, time in tools, leaves
// of the trajectory tree, and how the agents ended.
func (v *view) agentMetrics(m *metrics, f facts) {
	turns, tools, leaves := make([]float64, 0, len(v.episodes)), make([]float64, 0, len(v.episodes)), make([]float64, 0, len(v.episodes))
	for _, e := range v.episodes {
		n, tool := 0, 0.0
		for _, g := range unique(e.Generations) {
			if g.Fate != rollout.FateFailed {
				n++
			}
		}
		for _, s := range v.samples[e.start:e.end] {
			tool = max(tool, s.NonGenerationTime)
		}
		turns, tools, leaves = append(turns, float64(n)), append(tools, tool), append(leaves, float64(e.end-e.start))
	}
	m.stats("agent/turns", turns, noSamples)
	m.stats("agent/tool_time", tools, noSamples)
	m.stats("agent/leaves", leaves, noSamples)
	for exit, n := range f.exits {
		m.count("agent/exit_status/"+exit, n)
	}
}
