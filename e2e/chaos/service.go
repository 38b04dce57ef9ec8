package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// service is a process with a supervisor, which starts it again whenever it ends
// until it is retired or ends with code 0.
type service struct {
	name string
	args func(incarnation int) []string // program and arguments
	log  *os.File
	exit func(s *service, e ending) // told of every end

	mu      sync.Mutex
	proc    *os.Process
	forced  bool          // the end to come is our doing
	pause   time.Duration // before the next start
	retired bool
	starts  int
	wake    chan struct{} // closed when retired
	done    chan struct{} // closed when the supervisor has gone
	last    ending
}

// ending is how an incarnation ended.
type ending struct {
	code   int // -1 for a signal
	forced bool
	at     time.Time
}

// restartPause is before a start that follows an end that nobody forced: a
// process that ends at once would else be started a thousand times.
const restartPause = 200 * time.Millisecond

// supervise starts a service. Its output is appended to a file.
func supervise(name, log string, exit func(*service, ending), args func(incarnation int) []string) (*service, error) {
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	s := &service{name: name, args: args, log: f, exit: exit, wake: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s, nil
}

func (s *service) run() {
	defer close(s.done)
	defer func() { _ = s.log.Close() }() // the processes have written, not we
	for {
		wait := s.start()
		if wait == nil {
			return
		}
		e := wait()
		s.mu.Lock()
		e.forced, s.forced = s.forced, false
		pause := s.pause
		if !e.forced {
			pause = restartPause
		}
		s.proc, s.last, s.pause = nil, e, 0
		over := s.retired || e.code == 0
		s.mu.Unlock()
		s.exit(s, e)
		if over {
			return
		}
		select {
		case <-s.wake:
			return
		case <-time.After(pause):
		}
	}
}

// start starts the next incarnation and returns what waits for its end; nil when
// the service was retired.
func (s *service) start() func() ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return nil
	}
	args := s.args(s.starts)
	s.starts++
	fmt.Fprintf(s.log, "%s --- start %d: %v\n", time.Now().Format(clock), s.starts, args)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(s.log, err)
		return func() ending { return ending{code: -1, at: time.Now()} }
	}
	s.proc = cmd.Process
	return func() ending {
		_ = cmd.Wait() // the exit code says it
		fmt.Fprintf(s.log, "%s --- end: %s\n", time.Now().Format(clock), cmd.ProcessState)
		return ending{code: cmd.ProcessState.ExitCode(), at: time.Now()}
	}
}

const clock = "15:04:05.000"

// lastWords is the last line that a service's processes have printed.
func (s *service) lastWords() string {
	text, err := os.ReadFile(s.log.Name())
	if err != nil {
		return err.Error()
	}
	words := ""
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, " --- ") {
			words = strings.TrimSpace(line)
		}
	}
	return words
}

// kill kills the process; the supervisor waits for pause before it starts the
// next. It says whether there was a process.
func (s *service) kill(pause time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.Kill() != nil {
		return false
	}
	s.forced, s.pause = true, pause
	return true
}

// freeze stops the process and returns what lets the same process go on; nil
// when there is none.
func (s *service) freeze() (thaw func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	proc := s.proc
	if proc == nil || proc.Signal(syscall.SIGSTOP) != nil {
		return nil
	}
	return func() { _ = proc.Signal(syscall.SIGCONT) } // it may have been killed
}

// retire lets the process run to its end and starts no other.
func (s *service) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.retired {
		s.retired = true
		close(s.wake)
	}
}

// stop asks the process to end and kills it after a while. It returns how it
// ended.
func (s *service) stop(within time.Duration) ending {
	s.retire()
	s.mu.Lock()
	if s.proc != nil {
		_ = s.proc.Signal(syscall.SIGCONT) // it may have ended
		_ = s.proc.Signal(syscall.SIGTERM)
	}
	s.mu.Unlock()
	select {
	case <-s.done:
	case <-time.After(within):
		s.kill(0)
		<-s.done
	}
	return s.last
}
