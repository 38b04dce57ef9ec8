package feed_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/feed"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
)

type control struct {
	failed     error
	workersErr error
	report     *step.Report
}

func (c control) Status() any    { return map[string]string{"phase": "collecting"} }
func (c control) Healthy() error { return c.failed }
func (c control) Engines() []rollout.EngineEntry {
	return []rollout.EngineEntry{{ID: "e0", State: rollout.EngineServing}, {ID: "e1", State: rollout.EngineDead}}
}
func (c control) Workers(context.Context) (any, error) { return []string{"w1", "w2"}, c.workersErr }
func (c control) Outcomes() map[rollout.Outcome]int64 {
	return map[rollout.Outcome]int64{rollout.OutcomeCompleted: 7}
}
func (c control) LastReport() *step.Report { return c.report }

func TestDoor(t *testing.T) {
	report := &step.Report{Schema: 1, Run: "r", Step: 3, Metrics: map[string]float64{"rollout/raw_reward/mean": 0.5}}
	boom := errors.New("boom")
	cases := []struct {
		name, method, path string
		control            control
		status             int
		want               []string
	}{
		{"status", "GET", "/v1/status", control{}, 200, []string{`"phase":"collecting"`, `"workers":["w1","w2"]`, `"e1"`}},
		{"status without a bus", "GET", "/v1/status", control{workersErr: boom}, 200, []string{`"workers":null`}},
		{"engines", "GET", "/v1/engines", control{}, 200, []string{`"dead"`}},
		{"no report yet", "GET", "/v1/report", control{}, 404, []string{"no step is committed yet"}},
		{"report", "GET", "/v1/report", control{report: report}, 200, []string{`"step":3`}},
		{"healthy", "GET", "/healthz", control{}, 200, nil},
		{"failed", "GET", "/healthz", control{failed: boom}, 503, []string{"boom"}},
		{"metrics", "GET", "/metrics", control{report: report}, 200, []string{
			`sheaf_metric{key="rollout/raw_reward/mean",run="r"} 0.5`, `sheaf_step{run="r"} 3`, `sheaf_episodes_total{outcome="completed",run="r"} 7`,
			`sheaf_engines{run="r",state="dead"} 1`}},
		{"metrics before the first step", "GET", "/metrics", control{}, 200, []string{"sheaf_episodes_total"}},
		{"nothing there", "GET", "/v2", control{}, 404, []string{"/v2"}},
		{"writing", "POST", "/v1/status", control{}, 404, []string{"POST"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			srv := httptest.NewServer(feed.Handler("r", tc.control))
			defer srv.Close()
			req, err := http.NewRequestWithContext(t.Context(), tc.method, srv.URL+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tc.status {
				t.Errorf("status %d, want %d: %s", resp.StatusCode, tc.status, body)
			}
			for _, want := range tc.want {
				if !strings.Contains(string(body), want) {
					t.Errorf("no %q in %s", want, body)
				}
			}
		})
	}
}
