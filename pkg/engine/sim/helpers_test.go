package sim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

const modelPath = "../../../configs/models/tiny"

// byteTokenizer is the tiny model's tokenizer as far as these tests need it: a
// byte is a token, and the specials follow.
type byteTokenizer struct{}

var specials = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"}

const (
	endOfText = 256
	imEnd     = 258
	vocab     = 272
)

func (byteTokenizer) VocabSize() int { return vocab }

func (byteTokenizer) Encode(text string, _ bool) []int32 {
	var ids []int32
next:
	for len(text) > 0 {
		for i, s := range specials {
			if strings.HasPrefix(text, s) {
				ids, text = append(ids, int32(256+i)), text[len(s):]
				continue next
			}
		}
		ids, text = append(ids, int32(text[0])), text[1:]
	}
	return ids
}

func (byteTokenizer) Decode(ids []int32, skipSpecial bool) string {
	var b strings.Builder
	for _, id := range ids {
		switch {
		case id < 256:
			b.WriteByte(byte(id))
		case int(id)-256 < len(specials) && (!skipSpecial || id > imEnd):
			b.WriteString(specials[id-256])
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// question is the prompt of the quickstart.
func question(a, b int) string {
	return fmt.Sprintf("<|im_start|>user\n%d+%d=<|im_end|>\n<|im_start|>assistant\n", a, b)
}

// newEngine starts an engine on the tiny model; edit changes its config.
func newEngine(t testing.TB, edit func(*sim.Config)) *sim.Engine {
	t.Helper()
	config := sim.Config{ModelPath: modelPath, Tokenizer: byteTokenizer{}, EOS: []int32{imEnd, endOfText}}
	if edit != nil {
		edit(&config)
	}
	engine, err := sim.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	return engine
}

func speculate(c *sim.Config) { c.Speculation = &sim.Speculation{Algorithm: "EAGLE", Steps: 3} }

// object is decoded JSON; numbers stay as they were written.
type object = map[string]any

// call sends a request without a socket and returns status and body.
func call(t testing.TB, engine *sim.Engine, method, path, body string) (int, []byte) {
	t.Helper()
	recorder := httptest.NewRecorder()
	engine.Handler().ServeHTTP(recorder, httptest.NewRequest(method, path, strings.NewReader(body)))
	return recorder.Code, recorder.Body.Bytes()
}

// generate posts a request and returns the reply, which must be a success.
func generate(t testing.TB, engine *sim.Engine, body object) reply {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	status, answer := call(t, engine, http.MethodPost, "/generate", string(data))
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, answer)
	}
	return parse(t, answer)
}

// reply is a reply of /generate with its meta_info, both also as raw keys.
type reply struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	Meta      struct {
		ID           string `json:"id"`
		FinishReason *struct {
			Type    string `json:"type"`
			Matched any    `json:"matched"`
			Message string `json:"message"`
		} `json:"finish_reason"`
		Prompt     int       `json:"prompt_tokens"`
		Completion int       `json:"completion_tokens"`
		Cached     int       `json:"cached_tokens"`
		Version    string    `json:"weight_version"`
		Verify     int       `json:"spec_verify_ct"`
		Correct    int       `json:"spec_num_correct_drafts"`
		Proposed   int       `json:"spec_num_proposed_drafts"`
		Histogram  []int     `json:"spec_correct_drafts_histogram"`
		Logprobs   [][]any   `json:"output_token_logprobs"`
		Input      [][]any   `json:"input_token_logprobs"`
		Top        [][][]any `json:"output_top_logprobs"`
		Spans      []struct {
			Version    string
			Start, End int
		} `json:"weight_versions"`
		Latency float64 `json:"e2e_latency"`
	} `json:"meta_info"`
	Keys object `json:"-"`
}

func parse(t testing.TB, data []byte) reply {
	t.Helper()
	var r reply
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	var raw struct {
		Meta object `json:"meta_info"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&raw); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	r.Keys = raw.Meta
	return r
}
