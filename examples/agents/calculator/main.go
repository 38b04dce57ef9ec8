// Command calculator is an agent in plain Go: a loop of chat completions and one
// tool. It knows nothing of Sheaf but the contract of an exec agent: the task comes
// on stdin, the chat API is where OPENAI_BASE_URL says, and the last line of stdout
// is the result.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"strings"
	"time"
)

// maxTurns bounds the conversation.
const maxTurns = 4

const tools = `[{"type":"function","function":{"name":"calculator","description":"Computes a sum, a difference or a product.",` +
	`"parameters":{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}}}]`

type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type result struct {
	ExitStatus string         `json:"exit_status"`
	Metadata   map[string]any `json:"metadata"`
	Metrics    struct {
		ToolTime float64 `json:"total_tool_time"`
	} `json:"agent_metrics"`
}

func main() {
	out, err := play(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "calculator:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, "calculator:", err)
		os.Exit(1)
	}
}

// play talks until the model answers without a tool.
func play(stdin io.Reader) (result, error) {
	var task struct {
		Model    string            `json:"model"`
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.NewDecoder(stdin).Decode(&task); err != nil {
		return result{}, fmt.Errorf("task: %w", err)
	}
	out := result{ExitStatus: "unresolved"}
	history := task.Messages
	for turn := range maxTurns {
		message, calls, err := complete(task.Model, history)
		if err != nil {
			return result{}, fmt.Errorf("turn %d: %w", turn, err)
		}
		out.Metadata = map[string]any{"turns": turn + 1}
		if len(calls) == 0 {
			out.ExitStatus = "resolved"
			return out, nil
		}
		history = append(history, message)
		start := time.Now()
		for _, c := range calls {
			reply, err := json.Marshal(map[string]string{"role": "tool", "tool_call_id": c.ID, "content": run(c)})
			if err != nil {
				return result{}, err
			}
			history = append(history, reply)
		}
		out.Metrics.ToolTime += time.Since(start).Seconds()
	}
	return out, nil
}

// complete asks for the next message. It is sent back later as it came.
func complete(model string, history []json.RawMessage) (message json.RawMessage, calls []toolCall, err error) {
	body, err := json.Marshal(map[string]any{"model": model, "messages": history, "tools": json.RawMessage(tools)})
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequest(http.MethodPost, os.Getenv("OPENAI_BASE_URL")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+os.Getenv("OPENAI_API_KEY"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("status %d: %s", resp.StatusCode, answer)
	}
	var completion struct {
		Choices []struct {
			Message json.RawMessage `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(answer, &completion); err != nil {
		return nil, nil, err
	}
	if len(completion.Choices) == 0 {
		return nil, nil, errors.New("a completion without choices")
	}
	var parts struct {
		ToolCalls []toolCall `json:"tool_calls"`
	}
	message = completion.Choices[0].Message
	err = json.Unmarshal(message, &parts)
	return message, parts.ToolCalls, err
}

// run is the tool. What it cannot do it says: the model may try again.
func run(c toolCall) string {
	var arguments struct {
		Expression string `json:"expression"`
	}
	if c.Function.Name != "calculator" {
		return "error: there is no tool " + c.Function.Name
	}
	if err := json.Unmarshal([]byte(c.Function.Arguments), &arguments); err != nil {
		return "error: " + err.Error()
	}
	for _, op := range []string{"+", "-", "*"} {
		left, right, ok := strings.Cut(arguments.Expression, op)
		if !ok {
			continue
		}
		a, okA := new(big.Int).SetString(strings.TrimSpace(left), 10)
		b, okB := new(big.Int).SetString(strings.TrimSpace(right), 10)
		if !okA || !okB {
			break
		}
		switch op {
		case "+":
			return a.Add(a, b).String()
		case "-":
			return a.Sub(a, b).String()
		default:
			return a.Mul(a, b).String()
		}
	}
	return "error: an expression is two whole numbers with +, - or * between them"
}
