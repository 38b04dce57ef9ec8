package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// BenchmarkStep runs steps of 1,024 samples against an engine that costs next to
// nothing and is another process: what a profile of it shows is Sheaf. make bench
// measures the same from outside.
//
//	go test -run '^$' -bench Step -benchtime 40x -cpuprofile cpu.out ./cmd/controller
func BenchmarkStep(b *testing.B) {
	dir := b.TempDir()
	config := filepath.Join(dir, "bench.yaml")
	// 256 tokens, as the tiny model's are bytes.
	row, err := json.Marshal(map[string]string{"prompt": strings.Repeat("How many squares? ", 15)[:256], "label": "42"})
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{
		"prompts.jsonl": string(row) + "\n",
		"bench.yaml": strings.Join([]string{
			"run: {name: bench, steps: 1, out: " + dir + "}",
			"model: {path: ../../configs/models/tiny}",
			"data: {prompts: " + filepath.Join(dir, "prompts.jsonl") + "}",
			"engines: [{url: '" + startStub(b, dir) + "'}]",
			"rollout: {batch_size: 128, n_samples_per_prompt: 8, sampling: {max_new_tokens: 256}}",
			"reward: {type: exact}",
		}, "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	if code := run([]string{"run", config, "--steps", fmt.Sprint(b.N)}); code != exitDone {
		b.Fatalf("exit code %d", code)
	}
}

func startStub(b *testing.B, dir string) string {
	b.Helper()
	path := filepath.Join(dir, "simengine")
	if out, err := exec.Command("go", "build", "-o", path, "../simengine").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(b.Context(), path, "--model-path", "../../configs/models/tiny", "--port", "0", "--stub", "256", "--log-level", "error")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill() // the context may have ended it
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url := regexp.MustCompile(`http://\S+`).FindString(line)
	if err != nil || url == "" {
		b.Fatalf("the engine printed %q: %v", line, err)
	}
	return url
}
