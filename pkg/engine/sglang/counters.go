package sglang

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/engine"
)

// counterNames maps the counters of a /metrics page to ours: SGLang's own (with
// --enable-metrics) and those of the simulated engine, which also counts what
// speculation did.
func counterNames(c *engine.Counters) map[string]**int64 {
	return map[string]**int64{
		"sglang:prompt_tokens_total":        &c.Prompt,
		"sglang:cached_tokens_total":        &c.Cached,
		"sglang:generation_tokens_total":    &c.Completion,
		"process_start_time_seconds":        &c.Started,
		"sheaf_sim_prompt_tokens_total":     &c.Prompt,
		"sheaf_sim_cached_tokens_total":     &c.Cached,
		"sheaf_sim_completion_tokens_total": &c.Completion,
		"sheaf_sim_verify_total":            &c.Verify,
		"sheaf_sim_proposed_tokens_total":   &c.Proposed,
		"sheaf_sim_correct_tokens_total":    &c.Correct,
		"sheaf_sim_start_milliseconds":      &c.Started,
	}
}

// Counters implements [engine.Admin]. An engine without a /metrics page shows
// none, which is no error.
func (c *Client) Counters(ctx context.Context) (engine.Counters, error) {
	ctx, cancel := context.WithTimeout(ctx, c.control)
	defer cancel()
	var t trace
	resp, fault := c.send(ctx, &t, http.MethodGet, "/metrics", nil, nil)
	if fault != nil {
		if fault.Status == http.StatusNotFound {
			return engine.Counters{}, nil
		}
		fault.Err = fmt.Errorf("/metrics: %w", fault.Err)
		return engine.Counters{}, fault
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxControlReply+1))
	if err != nil {
		return engine.Counters{}, c.bodyError(ctx, err)
	}
	if len(text) > maxControlReply {
		return engine.Counters{}, c.fail(engine.TooLarge, resp.StatusCode, fmt.Errorf("/metrics: the page is larger than %d bytes", maxControlReply))
	}
	counters, err := parseCounters(text)
	if err != nil {
		return engine.Counters{}, c.fail(engine.BadReply, resp.StatusCode, fmt.Errorf("/metrics: %w", err))
	}
	return counters, nil
}

// maxTotal bounds an engine's own totals: a float64 counts up to there, and a sum
// over a thousand engines fits 64 bits.
const maxTotal = 1 << 53

var errSample = errors.New("not a sample of the Prometheus text format")

// parseCounters sums each counter over its label sets (ranks, models).
func parseCounters(text []byte) (engine.Counters, error) {
	var c engine.Counters
	names := counterNames(&c)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxControlReply)
	for lines.Scan() {
		line := lines.Text()
		name := line
		if i := strings.IndexAny(line, "{ \t"); i >= 0 {
			name = line[:i]
		}
		into, ok := names[name]
		if !ok {
			continue
		}
		rest := line[len(name):]
		if i := strings.LastIndexByte(rest, '}'); i >= 0 {
			rest = rest[i+1:]
		}
		fields := strings.Fields(rest) // a value, and perhaps a time
		if len(fields) == 0 {
			return c, fmt.Errorf("%w: %q", errSample, line)
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil || math.IsNaN(v) || v < 0 || v > maxTotal {
			return c, fmt.Errorf("%w: %q", errSample, line)
		}
		if *into == nil {
			*into = new(int64)
		}
		if **into += int64(v); **into > maxTotal {
			return c, fmt.Errorf("%w: the sum at %q is above %d", errSample, line, int64(maxTotal))
		}
	}
	return c, lines.Err()
}
