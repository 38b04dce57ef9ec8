//go:build unix

package proc_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/internal/leaktest"
	"github.com/sheaf-rl/sheaf/internal/proc"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func sh(script string) proc.Command {
	return proc.Command{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH"), "GREETING=hi"}}
}

func TestRun(t *testing.T) {
	c := sh(`read x; echo "$GREETING $x $HOME"; echo bad >&2; exit 3`)
	c.Stdin = []byte("there\n")
	res, err := proc.Run(t.Context(), c)
	if err != nil || string(res.Stdout) != "hi there \n" || string(res.Stderr) != "bad\n" || res.Code != 3 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := proc.Run(t.Context(), proc.Command{Args: []string{"/no/such/program"}}); !errors.Is(err, proc.ErrStart) {
		t.Errorf("error %v", err)
	}
	res, err = proc.Run(t.Context(), sh("kill -9 $$"))
	if err != nil || res.Signal != syscall.SIGKILL || res.Code != -1 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	c := sh(`i=0; while [ $i -lt 2000 ]; do echo "line $i"; i=$((i+1)); done`)
	c.MaxOutput = 100
	res, err := proc.Run(t.Context(), c)
	if err != nil || len(res.Stdout) > 200 || !strings.HasSuffix(string(res.Stdout), "line 1999\n") {
		t.Errorf("%d bytes: %q, %v", len(res.Stdout), res.Stdout, err)
	}
}

// alive tells whether a process runs: one that is dead and not yet waited for by
// init does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func TestTheWholeGroupEnds(t *testing.T) {
	deadline := errors.New("deadline")
	for _, c := range []struct {
		name, script string
		cancel       bool
	}{
		{"at the deadline", `sleep 60 & echo $!; wait`, true},
		{"with its leader", `sleep 60 & echo $!`, false},
		{"when the group is deaf", `trap '' TERM INT; (trap '' TERM; sleep 60) & echo $!; wait`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.cancel {
				timer := time.AfterFunc(300*time.Millisecond, func() { cancel(deadline) })
				defer timer.Stop()
			}
			res, err := proc.Run(ctx, sh(c.script))
			if c.cancel != errors.Is(err, deadline) {
				t.Errorf("error %v", err)
			}
			pid, parseErr := strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
			if parseErr != nil {
				t.Fatal(parseErr)
			}
			for end := time.Now().Add(5 * time.Second); alive(pid); time.Sleep(time.Millisecond) { // a signal takes a moment
				if time.Now().After(end) {
					t.Fatalf("process %d is left", pid)
				}
			}
		})
	}
}
