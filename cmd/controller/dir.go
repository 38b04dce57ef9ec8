package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// claimDir makes the run's folder and locks it for this process. Two controllers
// on one embedded store would damage it before any fence could tell.
func (r *runner) claimDir(fresh bool) error {
	state := filepath.Join(r.dir, ".state")
	if err := os.MkdirAll(state, 0o755); err != nil {
		return fmt.Errorf("%w: make the folder writable or choose another with run.out or --out", err)
	}
	lock, err := os.OpenFile(filepath.Join(state, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("%w: make the folder writable or choose another with run.out or --out", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, readErr := io.ReadAll(io.LimitReader(lock, 20))
		err = errors.Join(readErr, lock.Close())
		return errors.Join(fmt.Errorf("another controller (process %s) runs in %s: stop it, or give this run another run.name or --out",
			strings.TrimSpace(string(holder)), r.dir), err)
	}
	r.onRelease(lock.Close)
	if fresh {
		if err := clearDir(r.dir); err != nil {
			return err
		}
	}
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("lock %s: %w", r.dir, err)
	}
	_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	if err != nil {
		return fmt.Errorf("lock %s: %w", r.dir, err)
	}
	return nil
}

// clearDir removes what a run has written, and nothing else that may lie there.
// The lock stays.
func clearDir(dir string) error {
	steps, err := filepath.Glob(filepath.Join(dir, "step-[0-9]*"))
	if err != nil {
		return err
	}
	for _, path := range append(steps, filepath.Join(dir, "metrics.jsonl"), filepath.Join(dir, ".state", "jetstream")) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("--fresh: %w", err)
		}
	}
	return nil
}

// checkSteps refuses to go on where the ledger knows less than the files: it was
// lost or is another's, and the steps it would make anew are there already.
func checkSteps(dir string, next int64) error {
	steps, err := filepath.Glob(filepath.Join(dir, "step-[0-9]*"))
	if err != nil {
		return err
	}
	for _, path := range steps {
		n, err := strconv.ParseInt(strings.TrimPrefix(filepath.Base(path), "step-"), 10, 64)
		if err == nil && n > next {
			return usageError{fmt.Errorf("%s holds step %d, and its ledger knows of %d steps only: the ledger was lost or damaged; bring .state back, keep the files elsewhere, or throw them away with --fresh", dir, n, next)}
		}
	}
	return nil
}
