package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/internal/worker"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/reward"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/session"
	"github.com/sheaf-rl/sheaf/pkg/session/server"
)

// player is an agent inside the test.
type player func(ctx context.Context, task worker.AgentTask) (worker.AgentResult, worker.ExitStatus, error)

func (p player) Play(ctx context.Context, task worker.AgentTask) (worker.AgentResult, worker.ExitStatus, error) {
	return p(ctx, task)
}

// stage is a bed whose worker plays sessions.
type stage struct {
	*bed
	store *session.Store
	model *chat.Model
}

// modelText is the real model as a worker uses it.
type modelText struct{ model *chat.Model }

func (m modelText) EncodePrompt(rollout.Prompt) ([]int32, string, error) {
	return nil, "", errors.New("an agent makes its own prompts")
}

func (m modelText) Decode(ids []int32, skip bool) string {
	return m.model.Tokenizer().Decode(ids, skip)
}

func (m modelText) VocabSize() int { return m.model.Tokenizer().VocabSize() }

func newStage(t *testing.T, agent worker.Agent, score reward.Scorer, slots int, change ...func(*rollout.SessionSpec)) *stage {
	t.Helper()
	model, err := chat.Load("../../configs/models/tiny")
	if err != nil {
		t.Fatal(err)
	}
	family, err := model.Family("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{store: session.NewStore(), model: model}
	srv := httptest.NewServer(server.New(server.Config{Store: s.store}))
	t.Cleanup(func() {
		s.store.Close()
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	spec := rollout.SessionSpec{Matcher: "strict", MaxSeqLen: 4096, MaxTurns: 100}
	for _, f := range change {
		f(&spec)
	}
	gen := generator(func(_ context.Context, req engine.Request) (rollout.Generation, error) {
		out := model.Tokenizer().Encode("fine<|im_end|>", false)
		g := rollout.Generation{PromptIDs: req.PromptIDs, OutputIDs: out, LogProbs: make([]float32, len(out))}
		g.ID, g.Turn, g.Attempt, g.Fate, g.PromptLen, g.OutputLen = req.ID, req.Turn, req.Attempt, rollout.FateFinished, len(req.PromptIDs), len(out)
		g.Meta.Finish.Type = rollout.FinishStop
		g.Meta.CompletionTokens = rollout.Ptr(int64(len(out)))
		return g, nil
	})
	s.bed = newBedOf(t, rollout.RunSpec{Run: "r", Seed: 1, Slots: slots, MaxAttempts: 3, Mode: rollout.ModeSession, Session: &spec}, worker.Config{
		Engine: gen, Text: modelText{model}, Scorer: score,
		Sessions: &worker.Sessions{Store: s.store, Family: family, BaseURL: srv.URL, Model: "m", Agent: agent},
	})
	return s
}

// say is one turn of an agent.
func say(ctx context.Context, base string, texts ...string) error {
	var list []map[string]string
	for i, t := range texts {
		list = append(list, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": t})
	}
	body, err := json.Marshal(map[string]any{"messages": list, "model": "m"})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, answer)
	}
	return err
}

func TestAnAgentPlaysAnEpisode(t *testing.T) {
	var scored string
	s := newStage(t, player(func(ctx context.Context, task worker.AgentTask) (worker.AgentResult, worker.ExitStatus, error) {
		if task.Prompt != "add" || string(task.Label) != `"ok"` || task.Deadline.IsZero() || task.APIKey != task.SessionID {
			t.Errorf("task %+v", task)
		}
		err := errors.Join(say(ctx, task.OpenAIBaseURL, "one"), say(ctx, task.OpenAIBaseURL, "one", "fine", "two"), say(ctx, task.OpenAIBaseURL, "one", "fine", "other"))
		res := worker.AgentResult{Metadata: []byte(`{"note":1}`)}
		res.AgentMetrics.ToolTime = rollout.Ptr(1.5)
		return res, worker.Resolved, err
	}), scorer(func(_ context.Context, in reward.Input) (reward.Result, error) {
		scored = in.Response
		return reward.Result{Reward: rollout.Ptr(1.0)}, nil
	}), 2, func(spec *rollout.SessionSpec) { spec.DivideReward = true })
	s.submit(job("add", 0))
	for _, e := range s.results(1) {
		if e.Outcome != rollout.OutcomeCompleted || len(e.Samples) != 2 || len(e.Generations) != 3 || scored != "fine" {
			t.Fatalf("%+v, scored %q", e, scored)
		}
		trained := 0
		for _, sample := range e.Samples {
			trained += sample.EffectiveLen()
			if *sample.Reward != 0.5 || sample.RolloutID != e.RolloutID || sample.NonGenerationTime != 1.5 || string(sample.Metadata) != `{"agent":{"metadata":{"note":1}},"exit_status":"resolved","tito_session_mismatch":[]}` {
				t.Errorf("sample %+v", sample.SampleInfo)
			}
		}
		if n := len(s.model.Tokenizer().Encode("fine<|im_end|>", false)); trained != 3*n {
			t.Errorf("%d tokens trained, want those of three replies of %d", trained, n)
		}
	}
	if n := s.store.Len(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

func TestHowAgentsEnd(t *testing.T) {
	const turn, none = "turn", ""
	one := scorer(one)
	for _, c := range []struct {
		name    string
		status  worker.ExitStatus
		err     error
		does    string
		rules   map[string]string
		outcome rollout.Outcome
		failure string
		removed bool
	}{
		{"resolved", worker.Resolved, nil, turn, nil, rollout.OutcomeCompleted, "", false},
		{"no turn", worker.Resolved, nil, none, nil, rollout.OutcomeFailed, "agent/no_turns", false},
		{"killed after a turn", worker.Killed, errors.New("killed"), turn, nil, rollout.OutcomeCompleted, "", true},
		{"killed before", worker.Killed, errors.New("killed"), none, nil, rollout.OutcomeFailed, "agent/killed", false},
		{"environment", worker.EnvFailed, errors.New("no docker"), turn, nil, rollout.OutcomeFailed, "agent/env_failed", false},
		{"environment, masked by rule", worker.EnvFailed, errors.New("no docker"), turn, map[string]string{"env_failed": "mask"}, rollout.OutcomeCompleted, "", true},
		{"retry by rule", worker.Unresolved, nil, turn, map[string]string{"unresolved": "retry"}, rollout.OutcomeFailed, "agent/unresolved", false},
		{"context", worker.ContextExceeded, nil, turn, nil, rollout.OutcomeTruncated, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, player(func(ctx context.Context, task worker.AgentTask) (worker.AgentResult, worker.ExitStatus, error) {
				if c.does == turn {
					if err := say(ctx, task.OpenAIBaseURL, "one"); err != nil {
						t.Error(err)
					}
				}
				return worker.AgentResult{}, c.status, c.err
			}), one, 1, func(spec *rollout.SessionSpec) { spec.ExitStatus = c.rules })
			s.submit(job("add", 0))
			for _, e := range s.results(1) {
				failure := ""
				if e.Failure != nil {
					failure = e.Failure.Key()
				}
				if e.Outcome != c.outcome || failure != c.failure || len(e.Samples) > 0 && e.Samples[0].Remove != c.removed || (len(e.Generations) == 1) != (c.does == turn) {
					t.Errorf("outcome %s, failure %q, %d samples, %d generations", e.Outcome, failure, len(e.Samples), len(e.Generations))
				}
			}
		})
	}
}

func TestExecAgentContract(t *testing.T) {
	task := worker.AgentTask{SessionID: "s1", BaseURL: "http://h/sessions/s1", OpenAIBaseURL: "http://h/sessions/s1/v1", APIKey: "s1", Prompt: "p"}
	t.Setenv("SECRET_OF_THE_WORKER", "x")
	for _, c := range []struct {
		name, script string
		status       worker.ExitStatus
		fails        bool
	}{
		{"a result", `read task; echo noise; echo '{"reward":0.5,"exit_status":"resolved"}'`, worker.Resolved, false},
		{"nothing", `true`, "", false},
		{"environment", `[ "$OPENAI_BASE_URL" = http://h/sessions/s1/v1 ] && [ "$ANTHROPIC_BASE_URL" = http://h/sessions/s1 ] && [ "$OPENAI_API_KEY" = s1 ] && [ "$MINE" = 1 ] && [ -z "$SECRET_OF_THE_WORKER" ] && [ -n "$SHEAF_DEADLINE" ] && echo '{"exit_status":"resolved"}'`, worker.Resolved, false},
		{"a code", `echo no >&2; exit 3`, worker.Killed, true},
		{"a signal", `kill -9 $$`, worker.Killed, true},
		{"no JSON", `echo done`, worker.EnvFailed, true},
		{"an unknown status", `echo '{"exit_status":"fine"}'`, worker.EnvFailed, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, status, err := worker.ExecAgent{Args: []string{"/bin/sh", "-c", c.script}, Env: []string{"MINE=1"}}.Play(t.Context(), task)
			if status != c.status || (err != nil) != c.fails {
				t.Errorf("status %q, %v", status, err)
			}
			if c.name == "a result" && (res.Reward == nil || *res.Reward != 0.5) {
				t.Errorf("result %+v", res)
			}
		})
	}
}

func TestHTTPAgentContract(t *testing.T) {
	cancelled := make(chan struct{})
	late, giveUp := context.WithCancel(t.Context())
	var once sync.Once
	polls := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /now":
			fmt.Fprint(w, `{"exit_status":"resolved","reward":1}`)
		case "POST /later", "POST /never":
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintf(w, `{"poll_url":"http://%s%s/1"}`, r.Host, r.URL.Path)
		case "GET /later/1":
			if polls++; polls < 3 {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			fmt.Fprint(w, `{"exit_status":"unresolved"}`)
		case "GET /never/1":
			giveUp()
			w.WriteHeader(http.StatusAccepted)
		case "DELETE /never/1":
			once.Do(func() { close(cancelled) })
		default:
			http.Error(w, "broken", http.StatusInternalServerError)
		}
	}))
	defer srv.Close()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		path   string
		status worker.ExitStatus
		fails  bool
	}{{"/now", worker.Resolved, false}, {"/later", worker.Unresolved, false}, {"/broken", worker.EnvFailed, true}, {"/never", worker.AgentTimeout, true}} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if c.path == "/never" {
			cancel()
			ctx, cancel = late, giveUp
		}
		_, status, err := worker.HTTPAgent{URL: srv.URL + c.path, Client: client, Poll: 5 * time.Millisecond}.Play(ctx, worker.AgentTask{})
		cancel()
		if status != c.status || (err != nil) != c.fails {
			t.Errorf("%s: status %q, %v", c.path, status, err)
		}
	}
	select {
	case <-cancelled:
	case <-time.After(5 * time.Second):
		t.Error("the service was not told to stop")
	}
}

// testAgent is an agent that talks until it is killed, beside a child of its own.
func testAgent() {
	child := exec.Command("/bin/sleep", "300")
	if err := child.Start(); err != nil {
		os.Exit(2)
	}
	name := filepath.Join(os.Getenv("SHEAF_TEST_AGENT"), strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(name, []byte(strconv.Itoa(child.Process.Pid)), 0o644); err != nil {
		os.Exit(2)
	}
	texts := []string{"hello"}
	for {
		if err := say(context.Background(), os.Getenv("OPENAI_BASE_URL"), texts...); err != nil {
			os.Exit(1)
		}
		texts = append(texts, "fine", "and on "+strconv.Itoa(len(texts)))
	}
}

// alive tells whether a process runs: a dead one that nobody waited for does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

// Fifty agents die at random moments, by a signal or by their deadline. What they
// had said is kept, and no process and no session is left; the package's leak check
// covers goroutines.
func TestFiftyAgentsKilled(t *testing.T) {
	const agents = 50
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t, worker.ExecAgent{Args: []string{self}, Env: []string{"SHEAF_TEST_AGENT=" + dir}}, scorer(one), 16)
	j := job("add")
	for i := range agents {
		j.Episodes = append(j.Episodes, i)
	}
	j.EpisodeDeadline = 4 * time.Second
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond): // the moments are the test
			}
			list, err := os.ReadDir(dir)
			if err != nil || len(list) == 0 {
				continue
			}
			if pid, err := strconv.Atoi(list[rand.IntN(len(list))].Name()); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may be dead already
			}
		}
	})
	s.submit(j)
	turns := 0
	for id, e := range s.results(agents) {
		turns += len(e.Generations)
		if e.Outcome != rollout.OutcomeCompleted && e.Outcome != rollout.OutcomeTruncated && e.Failure == nil {
			t.Errorf("episode %v: %s without a failure", id, e.Outcome)
		}
		for _, sample := range e.Samples {
			if !sample.Remove && e.Failure == nil && sample.Status() == rollout.StatusAborted {
				t.Errorf("episode %v: %s", id, sample.Status())
			}
		}
	}
	close(stop)
	killer.Wait()
	if turns == 0 {
		t.Error("no agent had a turn")
	}
	if n := s.store.Len(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{f.Name(), string(data)} {
			pid, err := strconv.Atoi(text)
			if err != nil {
				continue // it was killed while it wrote
			}
			for end := time.Now().Add(5 * time.Second); alive(pid); time.Sleep(time.Millisecond) { // a signal takes a moment
				if time.Now().After(end) {
					t.Fatalf("process %d is left", pid)
				}
			}
		}
	}
	t.Logf("%d agents, %d turns", len(list), turns)
}
