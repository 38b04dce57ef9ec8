//go:build py

package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The real OpenAI SDK for Python talks in several turns, with a tool, streaming and
// not. Each prompt begins with the tokens of the turn before, and what the sample
// holds is what the engine saw and made. scripts/test-py.sh runs this.
func TestPythonSDK(t *testing.T) {
	python := os.Getenv("SHEAF_PYTHON")
	if python == "" {
		t.Fatal("SHEAF_PYTHON is not set: run scripts/test-py.sh")
	}
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			b := newBed(t)
			const call = "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"expression\":  \"%s\"}}\n</tool_call>"
			b.says("<think>\nI need the tool.\n</think>\n\nI add caf\u00e9 \u4f60\u597d.\n"+fmt.Sprintf(call, "12*7"),
				fmt.Sprintf(call, "84+1")+"\n"+fmt.Sprintf(call, "84-1"), "It is 85.")
			task, err := json.Marshal(map[string]any{"model": "m", "messages": []any{user("What is 12*7+1?")}})
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"../../../examples/agents/calculator.py"}
			if stream {
				args = append(args, "--stream")
			}
			cmd := exec.CommandContext(t.Context(), python, args...)
			cmd.Env = append(os.Environ(), "OPENAI_BASE_URL="+b.url+"/sessions/"+b.sess.ID()+"/v1", "OPENAI_API_KEY="+b.sess.ID())
			cmd.Stdin = bytes.NewReader(task)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.Bytes())
			}
			if !strings.Contains(string(out), `"exit_status": "resolved", "metadata": {"turns": 3}`) {
				t.Errorf("the agent says %s", out)
			}
			b.prefixes()
			s := b.sample()
			last := len(b.engine.prompts) - 1
			if last != 2 || !slices.Equal(s.Tokens(), slices.Concat(b.engine.prompts[last], b.engine.outputs[last])) {
				t.Errorf("%d turns; the sample's tokens are not what the engine saw and made", last+1)
			}
			trained := 0
			for _, o := range b.engine.outputs {
				trained += len(o)
			}
			if s.EffectiveLen() != trained {
				t.Errorf("%d tokens trained, want %d", s.EffectiveLen(), trained)
			}
			for _, text := range []string{"\n84\n", "\n85\n", "\n83\n"} {
				if !strings.Contains(b.engine.model.Tokenizer().Decode(s.Tokens(), false), "<tool_response>"+text) {
					t.Errorf("no tool said %q", text)
				}
			}
		})
	}
}
