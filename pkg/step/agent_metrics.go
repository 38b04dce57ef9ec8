package step

// agentMetrics sets what only agent sessions have: turns, time in tools, leaves
// of the trajectory tree, and how the agents ended.
func (v *view) agentMetrics(m *metrics) {
	m.stats("agent/turns", v.episodeColumn(m, func(e *accepted) float64 { return float64(e.turns) }), noSamples)
	m.stats("agent/tool_time", v.episodeColumn(m, func(e *accepted) float64 {
		tools := 0.0
		for i := range e.rows {
			tools = max(tools, e.rows[i].tools)
		}
		return tools
	}), noSamples)
	m.stats("agent/leaves", v.episodeColumn(m, func(e *accepted) float64 { return float64(len(e.rows)) }), noSamples)
	for exit, n := range v.exits.all() {
		m.count("agent/exit_status/"+exit, n)
	}
}
