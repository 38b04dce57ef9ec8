package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/session"
	"github.com/sheaf-rl/sheaf/pkg/session/server"
)

// Whatever a client sends is answered: a turn, or an error that nobody tries again.
func FuzzChat(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"tools":[` + calcTool + `],"tool_choice":"none"}`,
		`{"messages":[{"role":"tool","content":"1","tool_call_id":"c"}],"max_tokens":3,"max_completion_tokens":null,"stop":["a","b"]}`,
		`{"chat_template_kwargs":{"enable_thinking":false},"messages":[{"role":"developer","content":"x"},{"role":"user","content":"y"}]}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{"}}]}]}`,
		`{"messages":null}`, `{"n":1,"messages":[{"role":"user"}]} `, `{`, ``, `{"stop":{}}`, `{"tools":[1],"messages":[{"role":"user","content":""}]}`,
	} {
		f.Add(seed)
	}
	model, err := chat.Load("../../../configs/models/tiny")
	if err != nil {
		f.Fatal(err)
	}
	family, err := model.Family("qwen3")
	if err != nil {
		f.Fatal(err)
	}
	eng := quick{model.Tokenizer().Encode("It is done.<|im_end|>", false)}
	f.Fuzz(func(t *testing.T, body string) {
		store := session.NewStore()
		defer store.Close()
		s, err := store.Open(session.Config{Family: family, Engine: eng, Sampling: rollout.Sampling{MaxNewTokens: 64}, MaxSeqLen: 4096})
		if err != nil {
			t.Fatal(err)
		}
		handler := server.New(server.Config{Store: store})
		for range 2 { // the second time the history is known
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/sessions/"+s.ID()+"/v1/chat/completions", strings.NewReader(body)))
			if w.Code != http.StatusOK && (w.Code != http.StatusBadRequest || w.Header().Get("X-Should-Retry") != "false") {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
		}
	})
}
