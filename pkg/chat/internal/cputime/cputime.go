// Package cputime lets a benchmark report processor time, which on a shared
// machine says more than the wall clock.
package cputime

import (
	"syscall"
	"testing"
	"time"
)

// Loop runs op b.N times and reports the processor time of one run, of all
// threads of the process, as cpu-ns/op.
func Loop(b *testing.B, op func()) {
	b.Helper()
	var from time.Duration
	n := 0
	for b.Loop() {
		if n == 0 {
			from = used()
		}
		op()
		n++
	}
	b.ReportMetric(float64(used()-from)/float64(n), "cpu-ns/op")
}

func used() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
