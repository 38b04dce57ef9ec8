package main

import (
	"context"
	"errors"
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
	// over names a benchmark of the package whose figure this one is divided by.
	over string
	// needs says what the benchmark is skipped without.
	needs string
}

var goBenchmarkList = []goBenchmark{
	{pkg: "./pkg/engine/sglang", name: "BenchmarkDecode/32768", figure: "MB/s", scale: 1,
		budget: budget{what: "decode a reply of 32k tokens", unit: "MB/s", more: true, firstBar: 400, goal: 550}},
	{pkg: "./pkg/engine/sglang", name: "BenchmarkDecode/32768", figure: "allocs/op", scale: 1, over: "BenchmarkDecode/256",
		budget: budget{what: "its allocations over those of 256 tokens", unit: "times", firstBar: 1, goal: 1}},
	{pkg: "./pkg/chat/bpe", name: "BenchmarkEncodeQwen3", figure: "MB/s", scale: 1, needs: "SHEAF_MODELS, the folder of make test-models",
		budget: budget{what: "tokenize (Qwen3, one thread)", unit: "MB/s", more: true, firstBar: 25, goal: 40}},
	{pkg: "./pkg/chat/bpe", name: "BenchmarkLoadQwen3", figure: "ns/op", scale: 1e-6, needs: "SHEAF_MODELS, the folder of make test-models",
		budget: budget{what: "load of an 11 MB tokenizer.json", unit: "ms", firstBar: 400, goal: 400}},
	{pkg: "./pkg/chat/bpe", name: "BenchmarkEncodeLongWord", figure: "ns/op", scale: 1e-6, needs: "SHEAF_MODELS, the folder of make test-models",
		budget: budget{what: "encode a word of 1 MiB", unit: "ms", firstBar: 600, goal: 600}},
	{pkg: "./pkg/chat", name: "BenchmarkRender20Qwen3$", figure: "ns/op", scale: 1e-3,
		budget: budget{what: "render a conversation of 20 messages", unit: "µs", firstBar: 50, goal: 50}},
	{pkg: "./pkg/step", name: "BenchmarkReduce100k/response=256", figure: "ns/op", scale: 1e-6,
		budget: budget{what: "metrics of 100k samples", unit: "ms", firstBar: 50, goal: 20}},
	{pkg: "./pkg/step", name: "BenchmarkBatch8192", figure: "ns/op", scale: 1e-6,
		budget: budget{what: "schedule and batch of 8.5M tokens", unit: "ms", firstBar: 30, goal: 15}},
}

// goBenchmarks runs them, each once however many figures it gives.
func goBenchmarks(ctx context.Context, runs int) []budget {
	type result struct {
		figures map[string][]float64
		err     error
	}
	seen := map[string]result{}
	figure := func(g goBenchmark, name string) (float64, error) {
		r, ok := seen[g.pkg+name]
		if !ok {
			fmt.Fprintln(os.Stderr, "running", g.pkg, name)
			r.figures, r.err = runBenchmark(ctx, g.pkg, name, runs)
			seen[g.pkg+name] = r
		}
		switch values := r.figures[g.figure]; {
		case r.err != nil:
			return 0, r.err
		case len(values) == 0:
			return 0, errors.New("it needs " + g.needs)
		default:
			return best(values, g.budget.more), nil
		}
	}
	var all []budget
	for _, g := range goBenchmarkList {
		b := g.budget
		measured, err := figure(g, g.name)
		b.measured = g.scale * measured
		if err == nil && g.over != "" {
			measured, err = figure(g, g.over)
			b.measured /= measured
		}
		if err != nil {
			b.missing = err.Error()
		}
		all = append(all, b)
	}
	return all
}

// runBenchmark returns every figure printed, by unit.
func runBenchmark(ctx context.Context, pkg, name string, runs int) (map[string][]float64, error) {
	levels := strings.Split(name, "/")
	for i, l := range levels {
		levels[i] = "^" + l + "$"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", strings.Join(levels, "/"), "-benchmem", "-count", strconv.Itoa(runs), pkg)
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
