package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Conversations renders messages and takes replies apart; a [chat.Family] does.
type Conversations interface {
	EncodeChat(messages []rollout.Message, opt chat.RenderOptions) ([]int32, error)
	NewReplyParser(opt chat.ReplyOptions) *chat.ReplyParser
	OpensReasoning(opt chat.RenderOptions) (bool, error)
}

// chatBody is the part of SGLang's chat completion request that the simulation
// understands. What is null has SGLang's default.
type chatBody struct {
	Messages            []rollout.Message          `json:"messages"`
	Model               string                     `json:"model"`
	InputIDs            tokenIDs                   `json:"input_ids"`
	Tools               []json.RawMessage          `json:"tools"`
	ToolChoice          json.RawMessage            `json:"tool_choice"`
	ChatTemplateKwargs  map[string]json.RawMessage `json:"chat_template_kwargs"`
	MaxTokens           *int                       `json:"max_tokens"`
	MaxCompletionTokens *int                       `json:"max_completion_tokens"`
	MinTokens           int                        `json:"min_tokens"`
	Temperature         *float64                   `json:"temperature"`
	TopP                *float64                   `json:"top_p"`
	TopK                *int                       `json:"top_k"`
	MinP                *float64                   `json:"min_p"`
	FrequencyPenalty    float64                    `json:"frequency_penalty"`
	PresencePenalty     float64                    `json:"presence_penalty"`
	RepetitionPenalty   *float64                   `json:"repetition_penalty"`
	LogitBias           map[string]float64         `json:"logit_bias"`
	Seed                *int64                     `json:"seed"`
	N                   *int                       `json:"n"`
	Stop                stringList                 `json:"stop"`
	StopTokenIDs        []int32                    `json:"stop_token_ids"`
	IgnoreEOS           bool                       `json:"ignore_eos"`
	NoStopTrim          bool                       `json:"no_stop_trim"`
	SkipSpecialTokens   *bool                      `json:"skip_special_tokens"`
	SeparateReasoning   *bool                      `json:"separate_reasoning"`
	Logprobs            bool                       `json:"logprobs"`
	TopLogprobs         int                        `json:"top_logprobs"`
	Stream              bool                       `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	RID                  *string `json:"rid"`
	ExtraKey             string  `json:"extra_key"`
	CacheSalt            string  `json:"cache_salt"`
	ReturnMetaInfo       bool    `json:"return_meta_info"`
	ReturnPromptTokenIDs bool    `json:"return_prompt_token_ids"`
}

// chatGeneration is a generation on behalf of a chat completion.
type chatGeneration struct {
	*generation
	body  *chatBody
	model string
	reply *chat.ReplyParser // nil = the text is the content
}

func (e *Engine) serveChat(w http.ResponseWriter, r *http.Request) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		writeError(w, malformed(errNotJSON))
		return
	}
	var body chatBody
	if err := readBody(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	gen, err := e.newChat(&body)
	if err == nil {
		if w = e.applyFault(w, r, gen.generation); w == nil {
			return
		}
		err = e.submit(gen.request)
	}
	if err != nil {
		writeError(w, openAIError(err))
		return
	}
	if body.Stream {
		e.streamChat(w, r, gen)
		return
	}
	p, ok := e.await(r.Context(), gen.generation)
	if !ok {
		return
	}
	if f := p.finish; f.kind == finishAbort && f.status != 0 {
		writeError(w, openAIError(f.refusal()))
		return
	}
	writeJSON(w, http.StatusOK, e.chatReply(gen, &p))
}

// openAIError is a refusal in the flat shape that the OpenAI routes have.
func openAIError(err error) error {
	var refusal *statusError
	if errors.As(err, &refusal) && refusal.errType == "" {
		return &statusError{status: refusal.status, errType: "BadRequestError", message: refusal.message}
	}
	return err
}

// newChat checks a chat completion and turns it into a generation.
func (e *Engine) newChat(body *chatBody) (*chatGeneration, error) {
	d := &e.config.Dialect
	if !d.chatIDs { // an older release does not know these keys
		body.InputIDs, body.ReturnMetaInfo, body.ReturnPromptTokenIDs = nil, false, false
	}
	switch {
	case e.config.Conversations == nil || e.config.Tokenizer == nil:
		return nil, invalid("This engine has no tokenizer, and so no chat completions.")
	case len(body.Messages) == 0:
		return nil, invalid("There are no messages.")
	case body.Stream && body.ReturnMetaInfo:
		return nil, invalid("return_meta_info is not supported with streaming.")
	case body.Stream && body.ReturnPromptTokenIDs:
		return nil, invalid("return_prompt_token_ids is not supported with streaming.")
	}
	if string(body.ToolChoice) == `"none"` {
		body.Tools = nil
	}
	options := chat.RenderOptions{Tools: body.Tools, AddGenerationPrompt: true, Kwargs: body.ChatTemplateKwargs, Now: e.config.Clock.Now()}
	ids := body.InputIDs
	if ids == nil {
		var err error
		if ids, err = e.config.Conversations.EncodeChat(body.Messages, options); err != nil {
			return nil, invalid("The messages cannot be rendered: %s", err)
		}
	}
	sampling := defaultSampling()
	sampling.MaxNewTokens = max(0, e.config.ContextLength-len(ids)-1)
	for _, limit := range []*int{body.MaxTokens, body.MaxCompletionTokens} {
		if limit != nil {
			sampling.MaxNewTokens = *limit
		}
	}
	take(&sampling.Temperature, body.Temperature)
	take(&sampling.TopP, body.TopP)
	take(&sampling.TopK, body.TopK)
	take(&sampling.MinP, body.MinP)
	take(&sampling.RepetitionPenalty, body.RepetitionPenalty)
	take(&sampling.N, body.N)
	take(&sampling.SkipSpecialTokens, body.SkipSpecialTokens)
	sampling.MinNewTokens = body.MinTokens
	sampling.FrequencyPenalty, sampling.PresencePenalty = body.FrequencyPenalty, body.PresencePenalty
	sampling.LogitBias, sampling.SamplingSeed = body.LogitBias, body.Seed
	sampling.Stop, sampling.StopTokenIDs, sampling.IgnoreEOS = body.Stop, body.StopTokenIDs, body.IgnoreEOS
	sampling.NoStopTrim = body.NoStopTrim
	gen, err := e.newGeneration(&generateBody{
		RID: body.RID, InputIDs: ids, SamplingParams: &sampling, Stream: body.Stream,
		ReturnLogprob: body.Logprobs, TopLogprobsNum: body.TopLogprobs, ReturnTextInLogprobs: true,
		ReturnPromptTokenIDs: body.ReturnPromptTokenIDs, ExtraKey: body.ExtraKey, CacheSalt: body.CacheSalt,
	})
	if err != nil {
		return nil, err
	}
	l, err := e.load()
	if err != nil {
		return nil, err
	}
	c := &chatGeneration{generation: gen, body: body, model: cmp.Or(body.Model, l.served)}
	reasoning := e.config.ParseReasoning && (body.SeparateReasoning == nil || *body.SeparateReasoning)
	if reasoning || e.config.ParseTools && len(body.Tools) > 0 {
		opens, err := e.config.Conversations.OpensReasoning(options)
		if err != nil {
			return nil, fmt.Errorf("find out whether the template opens the reasoning: %w", err)
		}
		c.reply = e.config.Conversations.NewReplyParser(chat.ReplyOptions{InReasoning: opens, Tools: body.Tools})
	}
	return c, nil
}

// take sets dst when a request has a value for it.
func take[T any](dst *T, value *T) {
	if value != nil {
		*dst = *value
	}
}

// callID is the id of a tool call: 24 hex digits that follow from the request, so
// that a repeated run gives the same reply.
func (c *chatGeneration) callID(index int) string {
	high, low := mix(c.seed+uint64(index)), mix(c.seed^uint64(index+1))
	return fmt.Sprintf("call_%016x%08x", high, uint32(low))
}

// chatMessage is a reply, and the delta of a stream.
type chatMessage struct {
	Role      string         `json:"role,omitempty"`
	Content   *string        `json:"content"`
	Reasoning *string        `json:"reasoning_content"`
	ToolCalls []chatToolCall `json:"tool_calls,omitempty"`
}

type chatToolCall struct {
	ID       string           `json:"id"`
	Index    int              `json:"index"`
	Type     string           `json:"type"`
	Function chatToolFunction `json:"function"`
}

type chatToolFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// add puts pieces of a reply into a message; calls counts the tool calls so far.
func (c *chatGeneration) add(m *chatMessage, pieces []chat.Piece, calls *int) {
	extend := func(text **string, more string) {
		if *text == nil {
			*text = new(string)
		}
		**text += more
	}
	for _, piece := range pieces {
		switch {
		case piece.Kind == chat.ReasoningPiece && c.body.reasons():
			extend(&m.Reasoning, piece.Text)
		case piece.Kind == chat.CallPiece:
			m.ToolCalls = append(m.ToolCalls, chatToolCall{
				ID: c.callID(*calls), Index: *calls, Type: "function",
				Function: chatToolFunction{Name: piece.Call.Name, Arguments: piece.Call.Arguments},
			})
			*calls++
		case piece.Kind == chat.ReasoningPiece || piece.Kind == chat.ContentPiece:
			extend(&m.Content, piece.Text)
		}
	}
}

// reasons says whether the request wants its reasoning apart.
func (b *chatBody) reasons() bool { return b.SeparateReasoning == nil || *b.SeparateReasoning }

// usage is the token count of a completion.
func (e *Engine) usage(gen *generation, p *progress) map[string]any {
	var details any
	if e.config.CacheReport {
		details = map[string]any{"cached_tokens": p.cached}
	}
	return map[string]any{
		"prompt_tokens": gen.reportedPrompt, "completion_tokens": len(p.output), "total_tokens": gen.reportedPrompt + len(p.output),
		"reasoning_tokens": 0, "prompt_tokens_details": details,
	}
}

// chatReply is the answer to a chat completion that does not stream.
func (e *Engine) chatReply(c *chatGeneration, p *progress) map[string]any {
	text := e.finalText(c.generation, p)
	empty := ""
	message := chatMessage{Role: "assistant"}
	calls := 0
	if c.reply == nil {
		message.Content = &text
	} else {
		c.add(&message, append(c.reply.Next(text), c.reply.Finish()...), &calls)
	}
	if message.Content == nil && e.config.Dialect.chatIDs {
		message.Content = &empty
	}
	if f := p.finish; calls > 0 && f.kind == finishStop {
		p.finish = &finish{kind: finishToolCalls} // in meta_info too, as SGLang has it
	}
	choice := map[string]any{
		"index": 0, "message": message, "logprobs": nil,
		"finish_reason": p.finish.kind, "matched_stop": p.finish.matchedStop(),
	}
	if c.wantLogprobs {
		choice["logprobs"] = map[string]any{"content": e.chatLogprobs(c, p, 0)}
	}
	if c.returnPrompt {
		choice["prompt_token_ids"] = c.input
	}
	if c.body.ReturnMetaInfo {
		choice["meta_info"] = json.RawMessage(e.appendMeta(nil, c.generation, p, 0))
	}
	return map[string]any{
		"id": c.rid, "object": "chat.completion", "created": p.received.Unix(), "model": c.model,
		"choices": []any{choice}, "usage": e.usage(c.generation, p), "metadata": e.chatMetadata(p),
	}
}

// chatMetadata is the version part of a chat completion.
func (e *Engine) chatMetadata(p *progress) map[string]any {
	metadata := map[string]any{"weight_version": p.version}
	if e.config.Dialect.spans {
		metadata["weight_version"] = p.lastVersion()
		metadata["weight_versions"] = json.RawMessage(appendSpans(nil, p))
	}
	return metadata
}

// matchedStop is what ended a completion: a token id, a string, or nothing.
func (f *finish) matchedStop() any {
	switch {
	case f.kind == finishStop && f.stop != "":
		return f.stop
	case f.kind == finishStop:
		return f.matched
	}
	return nil
}

// chatLogprobs are the log-probs in OpenAI's shape, from output token from on.
// There are no token ids in it.
func (e *Engine) chatLogprobs(c *chatGeneration, p *progress, from int) []any {
	entry := func(id int32, logprob float32) map[string]any {
		token := e.config.Tokenizer.Decode([]int32{id}, false)
		spelled := make([]int, len(token))
		for i := range len(token) {
			spelled[i] = int(token[i])
		}
		var number any = json.RawMessage(strconv.AppendFloat(nil, float64(logprob), 'g', -1, 32))
		if logprob != logprob {
			number = nil
		}
		return map[string]any{"token": token, "bytes": spelled, "logprob": number, "top_logprobs": []any{}}
	}
	list := []any{}
	for i := from; i < len(p.logprobs); i++ {
		one := entry(p.output[i], p.logprobs[i])
		if c.topLogprobs > 0 {
			top := []any{}
			for _, t := range p.top[i] {
				alternative := entry(t.token, t.logprob)
				delete(alternative, "top_logprobs")
				top = append(top, alternative)
			}
			one["top_logprobs"] = top
		}
		list = append(list, one)
	}
	return list
}

// streamChat answers with chunks. A reply that is taken apart is parsed as it
// comes in.
func (e *Engine) streamChat(w http.ResponseWriter, r *http.Request, c *chatGeneration) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	text := textStream{tok: e.config.Tokenizer, skipSpecial: c.sampling.SkipSpecialTokens}
	sent, sentTokens, calls := 0, 0, 0
	role := "assistant"
	for {
		p, ok := e.await(r.Context(), c.generation)
		if !ok {
			return
		}
		if p.finish != nil && c.unfinished {
			return
		}
		so := text.advance(p.output)
		if p.finish != nil {
			so = e.finalText(c.generation, &p)
		}
		fresh := so[min(sent, len(so)):]
		sent = max(sent, len(so))
		delta := chatMessage{Role: role}
		if c.reply == nil {
			delta.Content = &fresh
		} else {
			pieces := c.reply.Next(fresh)
			if p.finish != nil {
				pieces = append(pieces, c.reply.Finish()...)
			}
			c.add(&delta, pieces, &calls)
		}
		choice := map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": nil, "matched_stop": nil}
		if c.wantLogprobs {
			choice["logprobs"] = map[string]any{"content": e.chatLogprobs(c, &p, sentTokens)}
		}
		role, sentTokens = "", len(p.output)
		if f := p.finish; f != nil {
			choice["finish_reason"], choice["matched_stop"] = f.kind, f.matchedStop()
			if calls > 0 && f.kind == finishStop {
				choice["finish_reason"], choice["matched_stop"] = finishToolCalls, nil
			}
		}
		chunks := []map[string]any{c.chunk(&p, []any{choice})}
		if p.finish != nil && c.body.StreamOptions.IncludeUsage {
			last := c.chunk(&p, []any{})
			last["usage"] = e.usage(c.generation, &p)
			chunks = append(chunks, last)
		}
		err := writeChunks(w, chunks, p.finish != nil)
		if err == nil {
			err = flush.Flush()
		}
		if err != nil {
			e.drop(c.request)
			return
		}
		if p.finish != nil {
			return
		}
	}
}

func (c *chatGeneration) chunk(p *progress, choices []any) map[string]any {
	return map[string]any{
		"id": c.rid, "object": "chat.completion.chunk", "created": p.received.Unix(), "model": c.model,
		"choices": choices, "usage": nil,
	}
}

// writeChunks writes events, and the end mark behind the last.
func writeChunks(w http.ResponseWriter, chunks []map[string]any, done bool) error {
	var buf bytes.Buffer
	for _, chunk := range chunks {
		data, err := json.Marshal(chunk)
		if err != nil {
			return err
		}
		buf.WriteString("data: ")
		buf.Write(data)
		buf.WriteString("\n\n")
	}
	if done {
		buf.WriteString("data: [DONE]\n\n")
	}
	_, err := w.Write(buf.Bytes())
	return err
}
