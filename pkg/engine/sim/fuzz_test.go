package sim_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// FuzzRequests throws bodies at the routes that generate. Whatever comes, the
// engine answers with one of its statuses and lives on.
func FuzzRequests(f *testing.F) {
	f.Add(false, `{"text":"3+4=","return_logprob":true,"top_logprobs_num":2,"sampling_params":{"max_new_tokens":3,"stop":["a"],"logit_bias":{"3":1e300}}}`)
	f.Add(false, `{"input_ids":[1,2],"logprob_start_len":0,"return_logprob":true,"sampling_params":{"min_new_tokens":2,"max_new_tokens":4,"stop_token_ids":[-1,9999]}}`)
	f.Add(false, `{"text":"a","stream":true,"sampling_params":{"temperature":1e-9,"top_p":0.1,"top_k":3,"min_p":0.5,"max_new_tokens":2}}`)
	f.Add(true, `{"messages":[{"role":"user","content":"a"}],"max_tokens":2,"logprobs":true,"top_logprobs":1,"return_meta_info":true}`)
	f.Add(true, `{"messages":[{"role":"user","content":"a"}],"max_tokens":2,"stream":true,"tools":[{"type":"function"}]}`)
	engine := withChat(f, func(c *sim.Config) {
		speculate(c)
		c.ContextLength, c.ParseTools, c.ParseReasoning = 100, true, true
	})
	f.Fuzz(func(t *testing.T, chat bool, body string) {
		path := "/generate"
		if chat {
			path = "/v1/chat/completions"
		}
		request := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		engine.Handler().ServeHTTP(recorder, request)
		switch recorder.Code {
		case 200, 400, 500:
		default:
			t.Errorf("status %d for %q", recorder.Code, body)
		}
	})
}

// TestPromptIsReadExactly sends token lists with all kinds of spacing.
func TestPromptIsReadExactly(t *testing.T) {
	engine := newEngine(t, nil)
	rapid.Check(t, func(rt *rapid.T) {
		ids := rapid.SliceOfN(rapid.Int32Range(0, vocab-1), 1, 50).Draw(rt, "ids")
		list, err := json.MarshalIndent(ids, "", rapid.SampledFrom([]string{"", " ", "\t"}).Draw(rt, "indent"))
		if err != nil {
			rt.Fatal(err)
		}
		body := `{"input_ids": ` + string(list) + `, "return_prompt_token_ids": true, "sampling_params": {"max_new_tokens": 0}}`
		status, answer := call(t, engine, http.MethodPost, "/generate", body)
		var got struct {
			PromptTokenIDs []int32 `json:"prompt_token_ids"`
		}
		if err := json.Unmarshal(answer, &got); err != nil || status != 200 {
			rt.Fatalf("status %d, %v, %s", status, err, answer)
		}
		if len(got.PromptTokenIDs) != len(ids) {
			rt.Fatalf("%v became %v", ids, got.PromptTokenIDs)
		}
		for i := range ids {
			if got.PromptTokenIDs[i] != ids[i] {
				rt.Fatalf("%v became %v", ids, got.PromptTokenIDs)
			}
		}
	})
}
