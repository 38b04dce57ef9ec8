package step

// agentMetrics sets what only agent sessions have: turns, time in tools, leaves
// of the trajectory tree, and how the agents ended.
func (v *view) agentMetrics(m *metrics) {
	n := len(v.episodes)
	turns, tools, leaves := make([]float64, n), make([]float64, n), make([]float64, n)
	for k, e := range v.episodes {
		turns[k], leaves[k] = float64(e.turns), float64(e.end-e.start)
		for i := e.start; i < e.end; i++ {
			tools[k] = max(tools[k], v.rows[i].tools)
		}
	}
	m.stats("agent/turns", turns, noSamples)
	m.stats("agent/tool_time", tools, noSamples)
	m.stats("agent/leaves", leaves, noSamples)
	for exit, n := range v.exits.all() {
		m.count("agent/exit_status/"+exit, n)
	}
}
