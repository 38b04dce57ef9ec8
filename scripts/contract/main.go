// Command contract records what Sheaf's SGLang adapter sends and what the simulated
// engine answers, for each dialect, as JSON lines on stdout. check.py holds the
// record against the request and response models of the SGLang releases
// themselves. It is run by contract.sh.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/engine/sglang"
	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

const modelPath = "configs/models/tiny"

func main() {
	log.SetFlags(0)
	for _, release := range os.Args[1:] {
		for _, speculative := range []bool{false, true} {
			if err := record(release, speculative); err != nil {
				log.Fatalf("contract: %s: %v", release, err)
			}
		}
	}
}

// exchange is one line of the record.
type exchange struct {
	Release     string `json:"release"`
	Speculative bool   `json:"speculative"`
	Method      string `json:"method"`
	Path        string `json:"path"`
	Request     string `json:"request"`
	Status      int    `json:"status"`
	Response    string `json:"response"`
}

// recorder writes down what passes through a handler.
type recorder struct {
	next        http.Handler
	release     string
	speculative bool
	mu          sync.Mutex
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	copied := httptest.NewRecorder()
	rec.next.ServeHTTP(copied, r)
	rec.mu.Lock()
	line := json.NewEncoder(os.Stdout)
	err = line.Encode(exchange{rec.release, rec.speculative, r.Method, r.URL.Path, string(body), copied.Code, copied.Body.String()})
	rec.mu.Unlock()
	if err != nil {
		log.Fatal("contract: ", err)
	}
	for key, values := range copied.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(copied.Code)
	w.Write(copied.Body.Bytes())
}

const toolCall = `rules: [{contains: weather, texts: ["<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>"]}]`

func record(release string, speculative bool) error {
	dialect, err := sim.DialectNamed(release)
	if err != nil {
		return err
	}
	model, err := chat.Load(modelPath)
	if err != nil {
		return err
	}
	family, err := model.Family("qwen3")
	if err != nil {
		return err
	}
	script, err := sim.ParseScript([]byte(toolCall))
	if err != nil {
		return err
	}
	config := sim.Config{
		ModelPath: modelPath, Tokenizer: model.Tokenizer(), Conversations: family, ParseTools: true, ParseReasoning: true,
		CacheReport: true, EnableMetrics: true, Dialect: dialect, Script: script,
	}
	if speculative {
		config.Speculation = &sim.Speculation{Algorithm: "EAGLE", Steps: 3}
	}
	sut, err := sim.New(config)
	if err != nil {
		return err
	}
	defer sut.Close()
	server := httptest.NewServer(&recorder{next: sut.Handler(), release: release, speculative: speculative})
	defer server.Close()
	if err := drive(server.URL); err != nil {
		return err
	}
	return raw(server.URL, release)
}

// drive goes through Sheaf's own adapter.
func drive(url string) error {
	client, err := sglang.New(sglang.Config{URL: url})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	seed := int64(7)
	request := engine.Request{
		ID: strings.Repeat("a", 32), PromptIDs: []int32{257, 'u', 's', 'e', 'r', '\n', '3', '+', '4', '=', 258, '\n'}, Seed: &seed, RoutingKey: "k",
		Sampling: rollout.Sampling{Temperature: 1, TopP: 0.9, TopK: 20, MinP: 0.01, RepetitionPenalty: 1.1, MaxNewTokens: 20, Stop: []string{"never"}, StopTokenIDs: []int32{256}},
	}
	if _, err := client.Generate(ctx, request); err != nil {
		return err
	}
	request.ID = strings.Repeat("b", 32)
	if _, err := client.Stream(ctx, request, func(engine.Chunk) error { return nil }); err != nil {
		return err
	}
	if _, err := client.Info(ctx); err != nil {
		return err
	}
	if err := client.Health(ctx); err != nil {
		return err
	}
	if err := client.Abort(ctx, request.ID); err != nil {
		return err
	}
	_, err = client.Tokenize(ctx, "3+4=")
	return err
}

// raw sends the rest of the protocol as its clients do.
func raw(url, release string) error {
	message := `[{"role":"user","content":"3+4="}]`
	tools := `[{"type":"function","function":{"name":"get","description":"weather","parameters":{"type":"object","properties":{}}}}]`
	update := fmt.Sprintf(`{"model_path":%q,"weight_version":"2","abort_all_requests":false,"flush_cache":true,"keep_pause":false}`, modelPath)
	for _, call := range []struct {
		path, body string
		status     int
	}{
		{"/generate", `{"rid":"b","text":"3+4=","stream":true,"return_logprob":true,"logprob_start_len":-1,"sampling_params":{"max_new_tokens":12,"ignore_eos":true,"skip_special_tokens":false,"no_stop_trim":true,"spaces_between_special_tokens":false}}`, 200},
		{"/generate", `{"rid":"c","input_ids":[1,2,3],"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,"return_text_in_logprobs":true,"extra_key":"k","sampling_params":{"max_new_tokens":1,"temperature":0}}`, 200},
		{"/generate", `{"rid":"d","sampling_params":{"max_new_tokens":1}}`, 400},
		{"/generate", `{"rid":`, 400},
		{"/v1/chat/completions", `{"model":"tiny","messages":` + message + `,"max_tokens":12,"temperature":1.0,"top_p":0.9,"seed":3,"logprobs":true,"top_logprobs":2,"skip_special_tokens":false,"no_stop_trim":true}`, 200},
		{"/v1/chat/completions", `{"model":"tiny","messages":` + message + `,"input_ids":[1,2,3],"max_completion_tokens":12,"logprobs":true,"return_meta_info":true,"return_prompt_token_ids":true,"rid":"e"}`, 200},
		{"/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"weather"}],"tools":` + tools + `,"tool_choice":"auto","max_tokens":90,"chat_template_kwargs":{"enable_thinking":true},"separate_reasoning":true}`, 200},
		{"/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"weather"}],"tools":` + tools + `,"max_tokens":90,"stream":true,"stream_options":{"include_usage":true}}`, 200},
		{"/v1/chat/completions", `{"model":"tiny","messages":[]}`, 400},
		{"/pause_generation", `{"mode":"retract"}`, 200},
		{"/update_weights_from_disk", update, 200},
		{"/continue_generation", `{}`, 200},
		{"/update_weights_from_disk", `{"model_path":"/does/not/exist"}`, 400},
		{"/update_weight_version", `{"new_version":"3","abort_all_requests":false}`, 200},
		{"/release_memory_occupation", `{"tags":["weights","kv_cache"]}`, 200},
		{"/resume_memory_occupation", `{"tags":["weights","kv_cache"]}`, 200},
		{"/abort_request", `{"rid":"b","abort_all":false}`, 200},
	} {
		if err := post(url+call.path, call.body, call.status); err != nil {
			return err
		}
	}
	if release != "0.5.10" && release != "0.5.11" { // these render no messages there
		if err := post(url+"/v1/tokenize", `{"messages":`+message+`}`, 200); err != nil {
			return err
		}
	}
	for _, path := range []string{"/model_info", "/server_info", "/v1/loads", "/get_load", "/v1/models"} {
		response, err := http.Get(url + path)
		if err != nil {
			return err
		}
		response.Body.Close()
	}
	return nil
}

// post sends a body that has to be answered with status.
func post(url, body string, status int) error {
	response, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != status {
		return fmt.Errorf("%s answers %d where %d was expected: %s", url, response.StatusCode, status, answer)
	}
	return nil
}
