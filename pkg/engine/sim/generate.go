package sim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// maxBody bounds a request body: a context of a million tokens fits.
const maxBody = 64 << 20

// generateBody is the part of SGLang's generate request that the simulation
// understands. Unknown keys are ignored, as SGLang does.
type generateBody struct {
	RID                  *string         `json:"rid"`
	Text                 *string         `json:"text"`
	InputIDs             tokenIDs        `json:"input_ids"`
	SamplingParams       *samplingParams `json:"sampling_params"`
	ReturnLogprob        bool            `json:"return_logprob"`
	LogprobStartLen      *int            `json:"logprob_start_len"`
	TopLogprobsNum       int             `json:"top_logprobs_num"`
	ReturnTextInLogprobs bool            `json:"return_text_in_logprobs"`
	ReturnPromptTokenIDs bool            `json:"return_prompt_token_ids"`
	Stream               bool            `json:"stream"`
	ExtraKey             string          `json:"extra_key"`
	CacheSalt            string          `json:"cache_salt"`
}

// generation is a request with what its reply needs beside the progress. Nothing
// in it changes once it is submitted.
type generation struct {
	*request
	input          []int32
	returnPrompt   bool
	textInLogprobs bool
	dialect        *Dialect
	reportedPrompt int // prompt_tokens

	// What a scripted fault does to the reply.
	alter          func(*progress)
	delay          time.Duration
	padding        int  // bytes of routed_experts
	extraReasoning int  // reasoning_tokens beyond the completion
	unfinished     bool // a stream ends before its last event
}

func (e *Engine) serveGenerate(w http.ResponseWriter, r *http.Request) {
	var body generateBody
	if err := readBody(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	gen, err := e.newGeneration(&body)
	if err == nil {
		if w = e.applyFault(w, r, gen); w == nil {
			return
		}
		err = e.submit(gen.request)
	}
	switch {
	case err != nil && body.Stream && !errors.Is(err, errUnknownParam):
		// A stream has answered 200 before anything is checked.
		streamError(w, err)
	case err != nil:
		writeError(w, err)
	case body.Stream:
		e.stream(w, r, gen)
	default:
		e.reply(w, r, gen)
	}
}

// applyFault lets the fault script have its way with a request. It returns the
// writer to answer through, nil when the fault has answered already.
func (e *Engine) applyFault(w http.ResponseWriter, r *http.Request, gen *generation) http.ResponseWriter {
	rule := e.faults.next(gen.rid)
	if rule == nil {
		return w
	}
	e.log.Info("scripted fault", "rid", gen.rid, "hazard", rule.Hazard, "fault", rule.Fault)
	effect := rule.effect()
	if effect.instead != nil {
		effect.instead(e, w, r, gen)
		return nil
	}
	if effect.prepare != nil {
		effect.prepare(gen, rule)
	}
	gen.alter = effect.alter
	if effect.transport != nil {
		w = effect.transport(w)
	}
	return w
}

// readBody decodes a JSON body, or says what a request model would say about it.
func readBody(w http.ResponseWriter, r *http.Request, body any) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return malformed(err)
	}
	if err := json.Unmarshal(data, body); err != nil {
		if errors.Is(err, errUnknownParam) {
			return err
		}
		return malformed(err)
	}
	return nil
}

// newGeneration checks a request.
func (e *Engine) newGeneration(body *generateBody) (*generation, error) {
	sampling := defaultSampling()
	if body.SamplingParams != nil {
		sampling = *body.SamplingParams
	}
	if err := sampling.validate(e.vocab); err != nil {
		return nil, invalid("%s", err)
	}
	if n := body.TopLogprobsNum; n < 0 || n > e.vocab {
		return nil, invalid("top_logprobs_num must be in [0, %d], got %d", e.vocab, n)
	}
	tok := e.config.Tokenizer
	ids := []int32(body.InputIDs)
	switch {
	case body.InputIDs == nil && body.Text == nil:
		return nil, invalid("Give text or input_ids.")
	case tok == nil && body.InputIDs == nil:
		return nil, invalid("This engine has no tokenizer: give input_ids, not text.")
	case tok == nil && (len(sampling.Stop) > 0 || sampling.MinNewTokens > 0):
		return nil, invalid("stop and min_new_tokens need a tokenizer, and this engine has none.")
	case body.InputIDs == nil:
		ids = tok.Encode(*body.Text, true)
	}
	if len(ids) == 0 {
		return nil, invalid("The input is empty.")
	}
	for _, id := range ids {
		if id < 0 || int(id) >= e.vocab {
			return nil, invalid("The input_ids contain %d, which is outside the vocabulary of %d tokens.", id, e.vocab)
		}
	}
	limit := e.config.ContextLength
	if len(ids) >= limit {
		return nil, invalid("The input has %d tokens; it has to be shorter than the model's context length, %d.", len(ids), limit)
	}
	if total := len(ids) + sampling.MaxNewTokens; total > limit {
		return nil, invalid("An input of %d tokens and %d new ones exceed the model's context length, %d.",
			len(ids), sampling.MaxNewTokens, limit)
	}
	rid := ""
	if body.RID != nil {
		rid = *body.RID
	}
	if rid == "" {
		rid = strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	room := min(sampling.MaxNewTokens+maxSteps+1, 1024)
	req := &request{
		rid:          rid,
		namespace:    body.ExtraKey + "\x00" + body.CacheSalt,
		sampling:     sampling,
		seed:         requestSeed(sampling.SamplingSeed, e.config.RandomSeed, rid),
		wantLogprobs: body.ReturnLogprob,
		topLogprobs:  body.TopLogprobsNum,
		stream:       body.Stream,
		ids:          append(make([]int32, 0, len(ids)+room), ids...),
		prompt:       len(ids),
		updates:      make(chan progress, 1),
	}
	req.inputStart = -1
	if body.ReturnLogprob && body.LogprobStartLen != nil && *body.LogprobStartLen >= 0 {
		req.inputStart = min(*body.LogprobStartLen, len(ids)-1)
	}
	req.prepare(e.config.EOS)
	req.prior = e.priorOf(ids, req.seed)
	return &generation{
		request: req, input: ids, dialect: &e.config.Dialect, reportedPrompt: len(ids),
		returnPrompt: body.ReturnPromptTokenIDs, textInLogprobs: body.ReturnTextInLogprobs,
	}, nil
}

// submit hands a request to the scheduler.
func (e *Engine) submit(r *request) error {
	var refused error
	if err := e.sched.do(func() { refused = e.sched.submit(r) }); err != nil {
		return err
	}
	return refused
}

// wait returns the next snapshot of a request. When the client has gone it aborts
// the request and returns false; what was generated until then stays counted.
func (e *Engine) wait(ctx context.Context, r *request) (progress, bool) {
	select {
	case p := <-r.updates:
		return p, true
	case <-ctx.Done():
		e.drop(r)
		return progress{}, false
	}
}

// drop aborts a request whose client has gone.
func (e *Engine) drop(r *request) {
	// The one error says that the scheduler has ended, and all its requests too.
	_ = e.sched.do(func() { e.sched.drop(r) })
}

// reply answers a request that does not stream: its only snapshot is the last.
func (e *Engine) reply(w http.ResponseWriter, r *http.Request, gen *generation) {
	p, ok := e.await(r.Context(), gen)
	if !ok {
		return
	}
	if f := p.finish; f.kind == finishAbort && f.status != 0 {
		writeError(w, f.refusal())
		return
	}
	buf := e.appendReply(nil, gen, &p, 0, e.finalText(gen, &p))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(buf)))
	w.Write(buf)
}

// stream answers with server-sent events. SGLang's default repeats everything in
// each event; the incremental mode sends what is new, but for the counts.
func (e *Engine) stream(w http.ResponseWriter, r *http.Request, gen *generation) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	text := textStream{tok: e.config.Tokenizer, skipSpecial: gen.sampling.SkipSpecialTokens}
	sent, sentText := 0, 0
	var buf []byte
	for {
		p, ok := e.await(r.Context(), gen)
		if !ok {
			return
		}
		if p.finish != nil && gen.unfinished {
			return
		}
		so := text.advance(p.output)
		if p.finish != nil {
			so = e.finalText(gen, &p)
		}
		from := 0
		if e.config.IncrementalStreaming {
			from = sent
			so, sentText = so[min(sentText, len(so)):], max(sentText, len(so))
		}
		buf = append(buf[:0], "data: "...)
		buf = e.appendReply(buf, gen, &p, from, so)
		buf = append(buf, "\n\n"...)
		if p.finish != nil {
			buf = append(buf, "data: [DONE]\n\n"...)
		}
		sent = len(p.output)
		_, err := w.Write(buf)
		if err == nil {
			err = flush.Flush()
		}
		if err != nil {
			e.drop(gen.request)
			return
		}
		if p.finish != nil {
			return
		}
	}
}

// streamError is how a stream says what was wrong with its request.
func streamError(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/event-stream")
	body := append([]byte(`data: {"error":{"message":`), quote(err.Error())...)
	w.Write(append(body, "}}\n\ndata: [DONE]\n\n"...))
}

// finalText is the text of a finished request: without the stop token or stop
// string that ended it, unless the request wants them.
func (e *Engine) finalText(gen *generation, p *progress) string {
	tok := e.config.Tokenizer
	if tok == nil {
		return ""
	}
	ids, f := p.output, p.finish
	trim := f.kind == finishStop && !gen.sampling.NoStopTrim
	if trim && f.stop == "" {
		ids = ids[:len(ids)-1]
	}
	text := strings.ToValidUTF8(tok.Decode(ids, gen.sampling.SkipSpecialTokens), "\uFFFD")
	if trim && f.stop != "" {
		if i := strings.Index(text, f.stop); i >= 0 {
			text = text[:i]
		}
	}
	return text
}

// textStream decodes a growing output. It holds back a character whose bytes are
// not all there yet.
type textStream struct {
	tok         Tokenizer
	skipSpecial bool
	text        strings.Builder
	// Decoding starts at prefix, a token boundary at which the text was whole;
	// read is the boundary up to which text has it.
	prefix, read int
}

// advance returns the text of output as far as it is whole.
func (t *textStream) advance(output []int32) string {
	if t.tok == nil || len(output) == t.read {
		return t.text.String()
	}
	known := t.tok.Decode(output[t.prefix:t.read], t.skipSpecial)
	now := t.tok.Decode(output[t.prefix:], t.skipSpecial)
	if len(now) > len(known) && !strings.HasSuffix(now, "\uFFFD") {
		t.text.WriteString(strings.ToValidUTF8(now[len(known):], "\uFFFD"))
		t.prefix, t.read = t.read, len(output)
	}
	return t.text.String()
}

// tokenIDs is a flat list of token ids.
type tokenIDs []int32

// UnmarshalJSON reads the list without going through the generic decoder, which
// takes several times as long on a long prompt.
func (t *tokenIDs) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	if data[0] != '[' {
		return errors.New("input_ids must be a list of token ids")
	}
	ids := make(tokenIDs, 0, len(data)/4)
	value, digits := int64(0), 0
	for _, c := range data[1:] {
		switch {
		case '0' <= c && c <= '9':
			value = value*10 + int64(c-'0')
			if digits++; digits > 9 {
				return errors.New("input_ids contain a number that is no token id")
			}
		case c == ',' || c == ']':
			if digits > 0 {
				ids = append(ids, int32(value))
			}
			value, digits = 0, 0
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
		case c == '[':
			return errors.New("input_ids must be one flat list: this simulation takes one prompt per request")
		default:
			return errors.New("input_ids contain something that is no token id")
		}
	}
	*t = ids
	return nil
}
