package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const tiny = "../../configs/models/tiny"

func TestServesUntilToldToStop(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	out, stdout := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--model-path", tiny, "--port", "0", "--served-model-name", "tiny", "--tp-size", "8", "--mem-fraction-static", "0.8"}, stdout, &stderr)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "simengine listening on ")
	if !ok {
		t.Fatalf("the first line is %q", line)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || !strings.Contains(string(body), `"id":"tiny"`) {
		t.Errorf("models: %s, %v", body, err)
	}
	stop()
	if got := <-code; got != exitDone {
		t.Errorf("exit code %d, stderr %s", got, &stderr)
	}
	if !strings.Contains(stderr.String(), "simulated engine") {
		t.Errorf("the log does not say that this is a simulation: %s", &stderr)
	}
}

func TestRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	tests := []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no model", nil, exitUsage, "--model-path"},
		{"an unknown flag", []string{"--model-path", tiny, "--nope"}, exitUsage, "--nope"},
		{"a missing folder", []string{"--model-path", "/does/not/exist"}, exitFailed, "/does/not/exist"},
		{"a folder without a tokenizer", []string{"--model-path", "."}, exitFailed, "tokenizer.json"},
		{"a folder without weights", []string{"--model-path", ".", "--skip-tokenizer-init"}, exitFailed, "model.safetensors"},
		{"a parser for another model", []string{"--model-path", tiny, "--tool-call-parser", "llama3"}, exitUsage, "llama3"},
		{"a missing script", []string{"--model-path", tiny, "--script", "/does/not/exist"}, exitUsage, "--script"},
		{"a port in use", []string{"--model-path", tiny, "--port", port}, exitFailed, "another --port"},
		{"an unknown dialect", []string{"--model-path", tiny, "--dialect", "9"}, exitUsage, "0.5.12"},
		{"an algorithm that is not simulated", []string{"--model-path", tiny, "--speculative-algorithm", "NGRAM"}, exitUsage, "EAGLE"},
		{"a tree of drafts", []string{"--model-path", tiny, "--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "2"}, exitUsage, "chain"},
		{"a negative scale", []string{"--model-path", tiny, "--latency-scale=-1"}, exitUsage, "negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), tt.args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			text := strings.TrimSpace(stderr.String())
			if lines := strings.Split(text, "\n"); !strings.Contains(lines[len(lines)-1], tt.says) {
				t.Errorf("stderr says %q, want something about %q", text, tt.says)
			}
		})
	}
}

func TestHelpNamesTheSimulation(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &stdout, &stderr); code != exitDone || !strings.Contains(stdout.String(), "simulated engine") {
		t.Errorf("code %d, help %s", code, &stdout)
	}
}
