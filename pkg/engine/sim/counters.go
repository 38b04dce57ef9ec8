package sim

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are the engine's true totals: what a client's books must add up to.
type counters struct {
	received   prometheus.Counter
	prompt     prometheus.Counter
	cached     prometheus.Counter
	completion prometheus.Counter
	verify     prometheus.Counter
	proposed   prometheus.Counter
	correct    prometheus.Counter
	requests   *prometheus.CounterVec
}

func newCounters(registry prometheus.Registerer, began time.Time) (*counters, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	// Another start has other totals, also where they have passed the old ones.
	start := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sheaf_sim_start_milliseconds", Help: "When these totals began at 0."})
	start.Set(float64(began.UnixMilli()))
	c := &counters{
		received:   counter("sheaf_sim_received_total", "Requests taken in."),
		prompt:     counter("sheaf_sim_prompt_tokens_total", "Prompt tokens of requests that were started."),
		cached:     counter("sheaf_sim_cached_tokens_total", "Prompt tokens found in the prefix cache."),
		completion: counter("sheaf_sim_completion_tokens_total", "Tokens emitted, whatever became of the request."),
		verify:     counter("sheaf_sim_verify_total", "Verify passes of the target, per request."),
		proposed:   counter("sheaf_sim_proposed_tokens_total", "Tokens proposed by the draft."),
		correct:    counter("sheaf_sim_correct_tokens_total", "Proposed tokens that the target accepted."),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sheaf_sim_requests_total", Help: "Requests ended, by how.",
		}, []string{"fate"}),
	}
	for _, m := range []prometheus.Collector{start, c.received, c.prompt, c.cached, c.completion, c.verify, c.proposed, c.correct, c.requests} {
		if err := registry.Register(m); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *counters) fate(kind finishKind) { c.requests.WithLabelValues(string(kind)).Inc() }
