package step

// agentMetrics sets what only agent sessions have: turns, time in tools, leaves
// of the trajectory tree, and how the agents ended.
func (v *view) agentMetrics(m *metrics) {
	turns, tools, leaves := make([]float64, 0, v.episodes), make([]float64, 0, v.episodes), make([]float64, 0, v.episodes)
	for e := range v.eachEpisode {
		tool := 0.0
		for i := range e.rows {
			tool = max(tool, e.rows[i].tools)
		}
		turns, tools, leaves = append(turns, float64(e.turns)), append(tools, tool), append(leaves, float64(len(e.rows)))
	}
	m.stats("agent/turns", turns, noSamples)
	m.stats("agent/tool_time", tools, noSamples)
	m.stats("agent/leaves", leaves, noSamples)
	for exit, n := range v.exits.all() {
		m.count("agent/exit_status/"+exit, n)
	}
}
