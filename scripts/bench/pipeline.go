package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	groups, episodes = 128, 8
	perStep          = groups * episodes
	// shortRun is the length of the run that is taken off: what a start, an end
	// and the first connections cost.
	shortRun = 2
	// tokens of a reply.
	tokens = 256
)

// pipeline measures what a sample costs the controller's process, which holds
// the controller, the embedded NATS server with its durable store, and a worker.
// The engine is a process of its own that answers at once. The difference of two
// run lengths leaves out what a start costs.
func pipeline(ctx context.Context, steps, runs int) ([]budget, error) {
	if steps <= shortRun {
		return nil, fmt.Errorf("-steps must be more than %d", shortRun)
	}
	dir, err := os.MkdirTemp("", "sheaf-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}()
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./cmd/controller", "./cmd/simengine")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	url, stop, err := startStub(ctx, filepath.Join(dir, "simengine"))
	if err != nil {
		return nil, err
	}
	defer stop()
	config, model, prompts := filepath.Join(dir, "bench.yaml"), filepath.Join(dir, "model"), filepath.Join(dir, "prompts.jsonl")
	if err := errors.Join(writeModel(model), writePrompts(prompts)); err != nil {
		return nil, err
	}
	lines := []string{
		"run: {name: bench, steps: 1, out: " + filepath.Join(dir, "runs") + "}",
		"model: {path: " + model + "}",
		"data: {prompts: " + prompts + "}",
		"engines: [{url: '" + url + "'}]",
		fmt.Sprintf("rollout: {batch_size: %d, n_samples_per_prompt: %d, sampling: {max_new_tokens: %d}}", groups, episodes, tokens),
		"reward: {type: exact}",
		"worker: {embedded: true, slots: 64}",
	}
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	var cpu, rate []float64
	for range runs {
		short, err := run(ctx, filepath.Join(dir, "controller"), config, shortRun)
		if err != nil {
			return nil, err
		}
		long, err := run(ctx, filepath.Join(dir, "controller"), config, steps)
		if err != nil {
			return nil, err
		}
		n := float64((steps - shortRun) * perStep)
		cpu = append(cpu, (long.cpu-short.cpu).Seconds()*1e6/n)
		rate = append(rate, n/(long.wall-short.wall).Seconds())
		fmt.Fprintf(os.Stderr, "pipeline: %.0f samples, %.0f µs of CPU each, %.0f a second; a start costs %.2f s of CPU\n",
			n, cpu[len(cpu)-1], rate[len(rate)-1], (short.cpu - (long.cpu-short.cpu)*shortRun/time.Duration(steps-shortRun)).Seconds())
	}
	stub := stop().Seconds() * 1e6 / float64(runs*(steps+shortRun)*perStep)
	return []budget{
		{what: "pipeline, CPU per sample", unit: "µs", firstBar: 150, goal: 100, measured: best(cpu, false), detail: "1 KiB prompt, 256-token reply, durable"},
		{what: "pipeline, throughput", unit: "samples/s", more: true, firstBar: 10000, goal: 10000, measured: best(rate, true), detail: fmt.Sprintf("beside the engine, whose stub takes %.0f µs of CPU a request", stub)},
	}, nil
}

// startStub starts an engine that costs next to nothing. It returns its address
// and what ends it, which may be called again and says how much CPU it took: a
// yardstick for the machine.
func startStub(ctx context.Context, path string) (url string, stop func() time.Duration, err error) {
	cmd := exec.CommandContext(ctx, path, "--model-path", "configs/models/tiny", "--port", "0", "--log-level", "error",
		// Its tokenizer is another than the run's, and it is not asked.
		"--skip-tokenizer-init", "--stub", fmt.Sprint(tokens))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = sync.OnceValue(func() time.Duration {
		_ = cmd.Process.Kill() // it may have ended with ctx
		_ = cmd.Wait()         // which says that it was killed
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url = regexp.MustCompile(`http://\S+`).FindString(line)
	if err != nil || url == "" {
		stop()
		return "", nil, fmt.Errorf("simengine printed %q: %w", line, err)
	}
	return url, stop, nil
}

// bytesPerToken is what tokenizers make of English text, more or less.
const bytesPerToken = 4

// word is one token of the model that writeModel makes.
const word = "abcd"

// writeModel makes a model folder of the tiny model's, whose tokens are bytes, by
// adding the merges that make one token of word.
func writeModel(dir string) error {
	const tiny = "configs/models/tiny"
	if err := os.CopyFS(dir, os.DirFS(tiny)); err != nil {
		return err
	}
	path := filepath.Join(dir, "tokenizer.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var tokenizer map[string]any
	if err := json.Unmarshal(data, &tokenizer); err != nil {
		return err
	}
	model, _ := tokenizer["model"].(map[string]any)
	vocab, _ := model["vocab"].(map[string]any)
	added, _ := tokenizer["added_tokens"].([]any)
	if vocab == nil || added == nil {
		return fmt.Errorf("%s/tokenizer.json is not what it was", tiny)
	}
	next := len(vocab) + len(added)
	var merges [][2]string
	for _, pair := range [][2]string{{"a", "b"}, {"c", "d"}, {"ab", "cd"}} {
		merges = append(merges, pair)
		vocab[pair[0]+pair[1]] = next
		next++
	}
	model["merges"] = merges
	if data, err = json.Marshal(tokenizer); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// writePrompts writes as many prompts of 1 KiB as a step has groups.
func writePrompts(path string) error {
	row, err := json.Marshal(map[string]string{"prompt": strings.Repeat(word, 1024/bytesPerToken), "label": "42"})
	if err != nil {
		return err
	}
	return os.WriteFile(path, bytes.Repeat(append(row, '\n'), groups), 0o644)
}

// cost is what one run took.
type cost struct{ cpu, wall time.Duration }

// run runs a controller to its end.
func run(ctx context.Context, path, config string, steps int) (cost, error) {
	cmd := exec.CommandContext(ctx, path, "run", config, "--fresh", "--steps", fmt.Sprint(steps))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return cost{}, fmt.Errorf("controller run: %w: %s", err, &out)
	}
	return cost{cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), wall: time.Since(start)}, nil
}
