// Package failpoint lets a test end or stop a process at an exact place.
//
// The places are compiled in and do nothing, unless the environment names one
// when the process starts:
//
//	SHEAF_FAILPOINT=c3=exit    kill -9 itself where c3 is hit
//	SHEAF_FAILPOINT=w2:3=stop  SIGSTOP itself where w2 is hit for the third time
//
// The environment is read once, into the only variable of the package: a place
// deep inside an adapter would otherwise have to be handed through everything
// above it. docs/ledger.md lists the places.
package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Env is the environment variable that arms a place.
const Env = "SHEAF_FAILPOINT"

// settle lets what was sent before leave the process, and the signal arrive.
const settle = 50 * time.Millisecond

// point is an armed place.
type point struct {
	name string
	at   int64 // the hit that counts
	sig  syscall.Signal
	hits atomic.Int64
}

var armed = mustParse(os.Getenv(Env))

// Hit is a place. It returns true once the process was stopped there and goes on
// again: an answer that the caller was waiting for counts as lost then.
func Hit(name string) bool {
	if armed == nil {
		return false
	}
	return armed.hit(name, func(sig syscall.Signal) error { return syscall.Kill(os.Getpid(), sig) })
}

func (p *point) hit(name string, kill func(syscall.Signal) error) bool {
	if name != p.name || p.hits.Add(1) != p.at {
		return false
	}
	time.Sleep(settle)
	fmt.Fprintln(os.Stderr, "failpoint", name)
	if err := kill(p.sig); err != nil {
		panic(fmt.Errorf("failpoint %s: %w", name, err))
	}
	time.Sleep(settle)
	return true
}

func mustParse(text string) *point {
	p, err := parse(text)
	if err != nil {
		panic(err)
	}
	return p
}

// parse reads NAME[:COUNT]=exit|stop; nil for "".
func parse(text string) (*point, error) {
	if text == "" {
		return nil, nil
	}
	place, action, _ := strings.Cut(text, "=")
	name, count, counted := strings.Cut(place, ":")
	p := &point{name: name, at: 1}
	if counted {
		var err error
		if p.at, err = strconv.ParseInt(count, 10, 64); err != nil || p.at < 1 {
			return nil, fmt.Errorf("%s=%q: count %q: want 1 or more", Env, text, count)
		}
	}
	switch action {
	case "exit":
		p.sig = syscall.SIGKILL
	case "stop":
		p.sig = syscall.SIGSTOP
	default:
		return nil, fmt.Errorf("%s=%q: want NAME=exit or NAME=stop", Env, text)
	}
	return p, nil
}
