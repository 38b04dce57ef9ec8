//go:build unix

// Package proc runs a command together with everything that it starts: they are
// one process group, and none of them is left when Run returns.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// Command is what to run.
type Command struct {
	// Args is the program and its arguments.
	Args []string
	// Env is the whole environment: nothing is inherited.
	Env   []string
	Dir   string
	Stdin []byte
	// MaxOutput bounds what is kept of stdout and of stderr, from the end; 1 MiB
	// where 0.
	MaxOutput int
}

// Result is how a command ended.
type Result struct {
	// Stdout and Stderr are the ends of what was written.
	Stdout, Stderr []byte
	// Code is the exit code, -1 for a command that a signal ended.
	Code int
	// Signal ended the command, 0 for none.
	Signal syscall.Signal
}

// ErrStart reports a command that could not be started.
var ErrStart = errors.New("the command did not start")

// grace is how long descendants that outlive a command may hold its output open.
const grace = 200 * time.Millisecond

// Run runs a command to its end, or to the end of ctx, which kills its whole group
// at once. A command that ran and failed is no error: the result says how. When ctx
// ended it, the error is the context's cause.
func Run(ctx context.Context, c Command) (Result, error) {
	if len(c.Args) == 0 {
		return Result{}, fmt.Errorf("%w: it is empty", ErrStart)
	}
	if c.MaxOutput == 0 {
		c.MaxOutput = 1 << 20
	}
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env, cmd.Dir = c.Env, c.Dir
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would inherit ours
	}
	cmd.Stdin = bytes.NewReader(c.Stdin)
	stdout, stderr := &tail{max: c.MaxOutput}, &tail{max: c.MaxOutput}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrStart, err)
	}
	err := cmd.Wait()
	// What the command left behind would run for ever. The group's number cannot
	// be another's while one of it is alive.
	_ = killGroup(cmd.Process.Pid)
	res := Result{Stdout: stdout.data, Stderr: stderr.data, Code: cmd.ProcessState.ExitCode()}
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		res.Signal = st.Signal()
	}
	if ctx.Err() != nil {
		return res, context.Cause(ctx)
	}
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) {
		return res, nil
	}
	return res, fmt.Errorf("run %s: %w", c.Args[0], err)
}

func killGroup(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }

// tail keeps the end of what is written to it.
type tail struct {
	max  int
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if len(t.data) > 2*t.max {
		t.data = append(t.data[:0], t.data[len(t.data)-t.max:]...)
	}
	return len(p), nil
}
