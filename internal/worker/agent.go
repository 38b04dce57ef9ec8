package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/sheaf-rl/sheaf/internal/proc"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// AgentTask is what an agent is told, as JSON.
type AgentTask struct {
	SessionID string `json:"session_id"`
	// BaseURL is the session's own address, OpenAIBaseURL the one for OpenAI clients.
	BaseURL       string            `json:"base_url"`
	OpenAIBaseURL string            `json:"openai_base_url"`
	APIKey        string            `json:"api_key"`
	Model         string            `json:"model"`
	Prompt        string            `json:"prompt,omitempty"`
	Messages      []rollout.Message `json:"messages,omitempty"`
	Tools         []json.RawMessage `json:"tools,omitempty"`
	Label         json.RawMessage   `json:"label,omitempty"`
	Metadata      json.RawMessage   `json:"metadata,omitempty"`
	Deadline      time.Time         `json:"deadline"`
	Run           string            `json:"run"`
	Group         int64             `json:"group"`
	Episode       int               `json:"episode"`
	Attempt       int               `json:"attempt"`
}

// AgentResult is what an agent says at its end. Every field may be absent, and an
// absent reward is not 0.
type AgentResult struct {
	Reward       *float64        `json:"reward"`
	ExitStatus   ExitStatus      `json:"exit_status"`
	Metadata     json.RawMessage `json:"metadata"`
	Artifacts    json.RawMessage `json:"artifacts"`
	AgentMetrics struct {
		ToolTime *float64 `json:"total_tool_time"`
	} `json:"agent_metrics"`
}

// ExitStatus is how an agent's attempt ended.
type ExitStatus string

// Exit statuses.
const (
	Resolved        ExitStatus = "resolved"
	Unresolved      ExitStatus = "unresolved"
	AgentTimeout    ExitStatus = "agent_timeout"
	ContextExceeded ExitStatus = "context_exceeded"
	EnvFailed       ExitStatus = "env_failed"
	EvalFailed      ExitStatus = "eval_failed"
	Killed          ExitStatus = "killed"
)

// treatment is what becomes of an episode that ended in a status.
type treatment string

const (
	train treatment = "train"
	mask  treatment = "mask"
	drop  treatment = "drop"
	retry treatment = "retry"
)

// treatmentOf applies the run's rules, and those that hold where it has none: what
// the environment broke says nothing about the policy.
func treatmentOf(rules map[string]string, s ExitStatus) treatment {
	if t, ok := rules[string(s)]; ok {
		return treatment(t)
	}
	switch s {
	case Resolved, Unresolved, ContextExceeded, "":
		return train
	case EnvFailed, EvalFailed:
		return drop
	default:
		return mask
	}
}

// Agent plays an episode against a session. An error says that it came to no result
// of its own; the status says how then.
type Agent interface {
	Play(ctx context.Context, task AgentTask) (AgentResult, ExitStatus, error)
}

// ExecAgent starts a command per episode.
type ExecAgent struct {
	Args []string
	// Env are NAME=value entries of the agent's own.
	Env []string
}

// inherited are the variables of ours that a program needs to run at all.
var inherited = []string{"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ"}

// Play runs the command with the task on stdin. The last line of its stdout is the
// result.
func (a ExecAgent) Play(ctx context.Context, task AgentTask) (AgentResult, ExitStatus, error) {
	stdin, err := json.Marshal(task)
	if err != nil {
		return AgentResult{}, EnvFailed, fmt.Errorf("task for the agent: %w", err)
	}
	var env []string
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	env = append(env,
		"OPENAI_BASE_URL="+task.OpenAIBaseURL, "OPENAI_API_KEY="+task.APIKey, "OPENAI_MODEL="+task.Model,
		"ANTHROPIC_BASE_URL="+task.BaseURL, "ANTHROPIC_API_KEY="+task.APIKey, "ANTHROPIC_MODEL="+task.Model,
		"SHEAF_SESSION_ID="+task.SessionID, "SHEAF_DEADLINE="+task.Deadline.UTC().Format(time.RFC3339Nano))
	env = append(env, a.Env...)
	res, err := proc.Run(ctx, proc.Command{Args: a.Args, Env: env, Stdin: append(stdin, '\n')})
	switch {
	case ctx.Err() != nil:
		return AgentResult{}, AgentTimeout, err
	case err != nil:
		return AgentResult{}, EnvFailed, err
	case res.Signal != 0:
		return AgentResult{}, Killed, fmt.Errorf("the agent was ended by %v: %s", res.Signal, lastWords(res.Stderr))
	case res.Code != 0:
		return AgentResult{}, Killed, fmt.Errorf("the agent ended with code %d: %s", res.Code, lastWords(res.Stderr))
	}
	out, err := readResult(lastLine(res.Stdout))
	if err != nil {
		return AgentResult{}, EnvFailed, fmt.Errorf("the last line of the agent's output: %w", err)
	}
	return out, out.ExitStatus, nil
}

func lastLine(out []byte) []byte {
	out = bytes.TrimRight(out, " \t\r\n")
	return out[bytes.LastIndexByte(out, '\n')+1:]
}

// lastWords is the end of what a program had to say before it failed.
func lastWords(stderr []byte) string {
	const most = 300
	stderr = bytes.TrimSpace(stderr)
	return string(stderr[max(0, len(stderr)-most):])
}

// readResult reads an agent's result; an agent may have nothing to say.
func readResult(data []byte) (AgentResult, error) {
	var out AgentResult
	if len(bytes.TrimSpace(data)) == 0 {
		return out, nil
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return AgentResult{}, err
	}
	switch out.ExitStatus {
	case "", Resolved, Unresolved, AgentTimeout, ContextExceeded, EnvFailed, EvalFailed, Killed:
		return out, nil
	default:
		return AgentResult{}, fmt.Errorf("unknown exit_status %q", out.ExitStatus)
	}
}

// HTTPAgent posts the task to a service, which answers with the result, or with 202
// and an address to ask for it.
type HTTPAgent struct {
	URL    string
	Client *http.Client
	// Poll is the time between questions; 1 s where 0.
	Poll time.Duration
}

// maxResult bounds a service's answer.
const maxResult = 1 << 20

// Play posts the task and waits for the result. At the end of ctx the service is
// told to stop.
func (a HTTPAgent) Play(ctx context.Context, task AgentTask) (AgentResult, ExitStatus, error) {
	body, err := json.Marshal(task)
	if err != nil {
		return AgentResult{}, EnvFailed, fmt.Errorf("task for the agent: %w", err)
	}
	status, answer, err := a.do(ctx, http.MethodPost, a.URL, body)
	if err == nil && status == http.StatusAccepted {
		answer, err = a.poll(ctx, answer)
	}
	switch {
	case ctx.Err() != nil:
		return AgentResult{}, AgentTimeout, context.Cause(ctx)
	case err != nil:
		return AgentResult{}, EnvFailed, fmt.Errorf("the agent's service: %w", err)
	}
	out, err := readResult(answer)
	if err != nil {
		return AgentResult{}, EnvFailed, fmt.Errorf("the answer of the agent's service: %w", err)
	}
	return out, out.ExitStatus, nil
}

// poll asks for the result until it is there.
func (a HTTPAgent) poll(ctx context.Context, accepted []byte) ([]byte, error) {
	var to struct {
		URL string `json:"poll_url"`
	}
	if err := json.Unmarshal(accepted, &to); err != nil || to.URL == "" {
		return nil, errors.New("202 without a poll_url")
	}
	every := a.Poll
	if every == 0 {
		every = time.Second
	}
	defer func() {
		if ctx.Err() == nil {
			return
		}
		// The service is to stop; should it not hear of it, its session is closed.
		late, done := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer done()
		_, _, _ = a.do(late, http.MethodDelete, to.URL, nil)
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		status, answer, err := a.do(ctx, http.MethodGet, to.URL, nil)
		if err != nil || status == http.StatusOK {
			return answer, err
		}
	}
}

// do makes one exchange; a status that is neither 200 nor 202 is an error.
func (a HTTPAgent) do(ctx context.Context, method, url string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.Client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResult))
	if err != nil {
		return 0, nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted {
		return 0, nil, fmt.Errorf("status %d: %s", resp.StatusCode, lastWords(answer))
	}
	return resp.StatusCode, answer, nil
}
