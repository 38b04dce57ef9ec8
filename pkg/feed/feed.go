package feed

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
)

// Control is what the door asks of a run.
type Control interface {
	// Status is what the run is doing, fit for JSON.
	Status() any
	// Healthy is an error when the run has failed.
	Healthy() error
	Engines() []rollout.EngineEntry
	// Workers lists the workers that announced themselves lately, fit for JSON.
	Workers(ctx context.Context) (any, error)
	// Outcomes counts stored episodes, LastReport is that of the last committed
	// step or nil.
	Outcomes() map[rollout.Outcome]int64
	LastReport() *step.Report
}

// Handler returns the door of a run.
func Handler(run string, c Control) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(run, c))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct {
			Status  any `json:"status"`
			Workers any `json:"workers"`
			Engines any `json:"engines"`
		}{c.Status(), workers(r.Context(), c), c.Engines()})
	})
	mux.HandleFunc("GET /v1/engines", func(w http.ResponseWriter, _ *http.Request) { reply(w, c.Engines()) })
	mux.HandleFunc("GET /v1/report", func(w http.ResponseWriter, _ *http.Request) {
		if r := c.LastReport(); r != nil {
			reply(w, r)
			return
		}
		problem(w, http.StatusNotFound, "no step is committed yet", nil)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Healthy(); err != nil {
			problem(w, http.StatusServiceUnavailable, "the run has failed", err)
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, http.StatusNotFound, "nothing at "+r.Method+" "+r.URL.Path, nil)
	})
	return mux
}

// busWait bounds what a status waits for the bus: it must be there when the bus
// is not.
const busWait = time.Second

// workers is nil when the bus does not answer.
func workers(ctx context.Context, c Control) any {
	ctx, cancel := context.WithTimeout(ctx, busWait)
	defer cancel()
	list, err := c.Workers(ctx)
	if err != nil {
		return nil
	}
	return list
}

func reply(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		problem(w, http.StatusInternalServerError, "the answer cannot be encoded", err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// A client that went away needs no answer.
	_, _ = w.Write(append(body, '\n'))
}

func problem(w http.ResponseWriter, status int, title string, err error) {
	p := struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{Type: "about:blank", Title: title, Status: status}
	if err != nil {
		p.Detail = err.Error()
	}
	body, err := json.Marshal(p)
	if err != nil { // strings and a number always encode
		body = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// collector shows the run to Prometheus.
type collector struct {
	c        Control
	metric   *prometheus.Desc
	step     *prometheus.Desc
	episodes *prometheus.Desc
	engines  *prometheus.Desc
}

func newCollector(run string, c Control) *collector {
	labels := prometheus.Labels{"run": run}
	return &collector{
		c:        c,
		metric:   prometheus.NewDesc("sheaf_metric", "Metrics of the last committed step, by their key in report.json.", []string{"key"}, labels),
		step:     prometheus.NewDesc("sheaf_step", "Number of the last committed step.", nil, labels),
		episodes: prometheus.NewDesc("sheaf_episodes_total", "Episodes stored since the controller started, by outcome.", []string{"outcome"}, labels),
		engines:  prometheus.NewDesc("sheaf_engines", "Engines by state.", []string{"state"}, labels),
	}
}

func (p *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.metric, p.step, p.episodes, p.engines} {
		out <- d
	}
}

func (p *collector) Collect(out chan<- prometheus.Metric) {
	if r := p.c.LastReport(); r != nil {
		out <- prometheus.MustNewConstMetric(p.step, prometheus.GaugeValue, float64(r.Step))
		for key, v := range r.Metrics {
			out <- prometheus.MustNewConstMetric(p.metric, prometheus.GaugeValue, v, key)
		}
	}
	for outcome, n := range p.c.Outcomes() {
		out <- prometheus.MustNewConstMetric(p.episodes, prometheus.CounterValue, float64(n), string(outcome))
	}
	states := map[rollout.EngineState]int{}
	for _, e := range p.c.Engines() {
		states[e.State]++
	}
	for s, n := range states {
		out <- prometheus.MustNewConstMetric(p.engines, prometheus.GaugeValue, float64(n), string(s))
	}
}
