//go:build e2e

package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// bin is the folder with the binaries under test.
var bin string

func TestMain(m *testing.M) {
	if os.Getenv(natsEnv) != "" {
		serveNATS()
		return
	}
	dir, err := os.MkdirTemp("", "sheaf-e2e-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = dir
	build := exec.Command("go", "build", "-o", bin+"/", "./cmd/...")
	build.Dir = root()
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// root is the repository's folder: configs name files relative to it.
func root() string {
	dir, err := filepath.Abs("..")
	if err != nil {
		panic(err)
	}
	return dir
}

// process is a started binary.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	out  output
	done chan struct{}
	code int
}

// output collects what a process prints and lets readers wait for more.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p)
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return len(p), nil
}

func (o *output) read() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.buf.String(), o.more
}

// start starts a binary in the repository's folder; it is killed with the test.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, filepath.Join(bin, name), args...)
}

// startWith starts a program with more environment.
func startWith(t *testing.T, env []string, path string, args ...string) *process {
	t.Helper()
	name := filepath.Base(path)
	p := &process{t: t, name: name, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Dir = root()
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit code says it
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text, _ := p.out.read()
			t.Logf("%s %v printed:\n%s", name, args, text)
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %s: %v", p.name, err)
	}
}

// wait waits for the end of the process and returns its exit code and output.
func (p *process) wait(within time.Duration) (int, string) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Fatalf("%s did not end within %s", p.name, within)
	}
	text, _ := p.out.read()
	return p.code, text
}

// until waits for output that matches and returns the match's groups.
func (p *process) until(pattern string, within time.Duration) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	ctx, cancel := context.WithTimeout(p.t.Context(), within)
	defer cancel()
	for {
		text, more := p.out.read()
		if m := re.FindStringSubmatch(text); m != nil {
			return m
		}
		select {
		case <-more:
		case <-p.done:
			if text, _ := p.out.read(); re.MatchString(text) {
				return re.FindStringSubmatch(text)
			}
			p.t.Fatalf("%s ended without printing %q", p.name, pattern)
		case <-ctx.Done():
			p.t.Fatalf("%s did not print %q within %s", p.name, pattern, within)
		}
	}
}

// config writes a config file and returns its path.
func config(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// rows writes a prompts file and returns its path.
func rows(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
