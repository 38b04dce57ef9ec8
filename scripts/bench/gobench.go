package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// goBenchmark is a benchmark of a package with the budget of one of its figures.
type goBenchmark struct {
	pkg, name string
	// figure is the unit as go test prints it, scale what turns it into the
	// budget's.
	figure string
	scale  float64
	budget budget
}

var goBenchmarkList = []goBenchmark{
	{"./pkg/engine/sglang", "BenchmarkDecode/32768", "MB/s", 1, budget{what: "decode a reply of 32k tokens", unit: "MB/s", more: true, firstBar: 400, goal: 550}},
	{"./pkg/engine/sglang", "BenchmarkDecode/32768", "allocs/op", 1, budget{what: "allocations for it", unit: "count", firstBar: 64, goal: 32}},
	{"./pkg/engine/sglang", "BenchmarkDecode/256", "allocs/op", 1, budget{what: "allocations for 256 tokens", unit: "count", firstBar: 64, goal: 32}},
	{"./pkg/chat/bpe", "BenchmarkEncodeQwen3", "MB/s", 1, budget{what: "tokenize (Qwen3, one thread)", unit: "MB/s", more: true, firstBar: 25, goal: 40}},
	{"./pkg/step", "BenchmarkReduce100k/response=256", "ns/op", 1e-6, budget{what: "metrics of 100k samples", unit: "ms", firstBar: 50, goal: 20}},
	{"./pkg/step", "BenchmarkBatch8192", "ns/op", 1e-6, budget{what: "schedule and batch of 8.5M tokens", unit: "ms", firstBar: 30, goal: 15}},
}

// goBenchmarks runs them, each once however many figures it gives.
func goBenchmarks(ctx context.Context, runs int) []budget {
	type result struct {
		figures map[string][]float64
		err     error
	}
	seen := map[string]result{}
	var all []budget
	for _, g := range goBenchmarkList {
		r, ok := seen[g.pkg+g.name]
		if !ok {
			fmt.Fprintln(os.Stderr, "running", g.pkg, g.name)
			r.figures, r.err = g.run(ctx, runs)
			seen[g.pkg+g.name] = r
		}
		b := g.budget
		switch values := r.figures[g.figure]; {
		case r.err != nil:
			b.missing = r.err.Error()
		case len(values) == 0:
			b.missing = "no " + g.figure + " printed"
		default:
			b.measured = g.scale * best(values, b.more)
		}
		all = append(all, b)
	}
	return all
}

// run returns every figure printed, by unit.
func (g goBenchmark) run(ctx context.Context, runs int) (map[string][]float64, error) {
	levels := strings.Split(g.name, "/")
	for i, l := range levels {
		levels[i] = "^" + l + "$"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", strings.Join(levels, "/"), "-benchmem", "-count", strconv.Itoa(runs), g.pkg)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, reason(string(out)))
	}
	figures := map[string][]float64{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(line, "Benchmark") || len(fields) < 4 {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("unexpected line %q", line)
			}
			figures[fields[i+1]] = append(figures[fields[i+1]], v)
		}
	}
	return figures, nil
}

// reason is the line of a failed go test that says why.
func reason(out string) string {
	for line := range strings.Lines(out) {
		if text := strings.TrimSpace(line); strings.Contains(text, ".go:") {
			return text
		}
	}
	return strings.TrimSpace(out)
}

// best is the best of values.
func best(values []float64, more bool) float64 {
	b := values[0]
	for _, v := range values[1:] {
		if more {
			b = max(b, v)
		} else {
			b = min(b, v)
		}
	}
	return b
}
