package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/session"
)

// chat is one turn. The session has recorded it before its last byte is written.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	sess, err := s.session(r)
	if err != nil {
		s.fail(w, err)
		return
	}
	call, t, err := s.begin(w, r, sess)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer call.Release()
	reply := answer{w: w, call: call, turn: t, created: time.Now().Unix()}
	if t.Stream {
		s.stream(r.Context(), &reply)
		return
	}
	whole, err := call.Wait(r.Context())
	if err != nil {
		if r.Context().Err() == nil {
			s.fail(w, err)
		}
		return
	}
	call.Delivered()
	writeJSON(w, http.StatusOK, reply.whole(whole))
	reply.confirm(r.Context())
}

func (s *Server) begin(w http.ResponseWriter, r *http.Request, sess *session.Session) (*session.Call, turn, error) {
	data, free, err := s.body(w, r)
	if err != nil {
		return nil, turn{}, err
	}
	defer free()
	t, err := parse(data, sess)
	if err != nil {
		return nil, t, err
	}
	if t.overridden != "" {
		s.overridden.Do(func() {
			s.cfg.Log.Info("agents set sampling parameters; the run's are used instead", "parameter", t.overridden)
		})
	}
	call, err := sess.Begin(t.Request)
	return call, t, err
}

// answer writes the reply to one request.
type answer struct {
	w       http.ResponseWriter
	call    *session.Call
	turn    turn
	created int64
	started bool
	calls   int // tool calls begun
}

// confirm takes the delivery back if the client is no longer there.
func (a *answer) confirm(ctx context.Context) {
	if err := http.NewResponseController(a.w).Flush(); err != nil || ctx.Err() != nil {
		a.call.Lost()
	}
}

type functionJSON struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

type toolCallJSON struct {
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionJSON `json:"function"`
}

type messageJSON struct {
	Role      string         `json:"role"`
	Content   *string        `json:"content"`
	Reasoning string         `json:"reasoning_content,omitempty"`
	ToolCalls []toolCallJSON `json:"tool_calls,omitempty"`
}

type usageJSON struct {
	Prompt           int      `json:"prompt_tokens"`
	Completion       int      `json:"completion_tokens"`
	Total            int      `json:"total_tokens"`
	PromptDetail     *details `json:"prompt_tokens_details,omitempty"`
	CompletionDetail *details `json:"completion_tokens_details,omitempty"`
}

type details struct {
	Cached    *int64 `json:"cached_tokens,omitempty"`
	Reasoning *int64 `json:"reasoning_tokens,omitempty"`
}

func usage(r session.Reply) *usageJSON {
	u := &usageJSON{Prompt: r.Prompt, Completion: r.Completion, Total: r.Prompt + r.Completion}
	if r.Cached != nil {
		u.PromptDetail = &details{Cached: r.Cached}
	}
	if r.Thinking != nil {
		u.CompletionDetail = &details{Reasoning: r.Thinking}
	}
	return u
}

type choiceJSON struct {
	Index   int          `json:"index"`
	Message *messageJSON `json:"message,omitempty"`
	Delta   *deltaJSON   `json:"delta,omitempty"`
	Finish  *string      `json:"finish_reason"`
}

type deltaJSON struct {
	Role      string         `json:"role,omitempty"`
	Content   *string        `json:"content,omitempty"`
	Reasoning string         `json:"reasoning_content,omitempty"`
	ToolCalls []toolCallJSON `json:"tool_calls,omitempty"`
}

type completionJSON struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []choiceJSON `json:"choices"`
	Usage   *usageJSON   `json:"usage,omitempty"`
}

func (a *answer) envelope(object string, choices ...choiceJSON) completionJSON {
	if choices == nil {
		choices = []choiceJSON{}
	}
	return completionJSON{ID: "chatcmpl-" + a.call.ID(), Object: object, Created: a.created, Model: a.turn.model, Choices: choices}
}

func (a *answer) whole(r session.Reply) completionJSON {
	m := &messageJSON{Role: "assistant", Content: &r.Content, Reasoning: r.Reasoning}
	if r.Content == "" && len(r.ToolCalls) > 0 {
		m.Content = nil
	}
	for _, c := range r.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, toolCallJSON{ID: c.ID, Type: "function", Function: functionJSON{c.Name, c.Arguments}})
	}
	finish := string(r.Finish)
	out := a.envelope("chat.completion", choiceJSON{Message: m, Finish: &finish})
	out.Usage = usage(r)
	return out
}

// stream writes the pieces of the reply as they come.
func (s *Server) stream(ctx context.Context, a *answer) {
	wait := s.cfg.HeaderWait
	for from := 0; ; {
		bounded, cancel := context.WithTimeoutCause(ctx, wait, errQuiet)
		pieces, ended, err := a.call.Next(bounded, from)
		cancel()
		switch {
		case ctx.Err() != nil:
			return // the client is gone: the turn stays undelivered
		case errors.Is(err, errQuiet):
			wait = s.cfg.KeepAlive
			if !a.started {
				a.start()
			} else {
				a.line(": ping\n\n")
			}
			a.flush()
			continue
		case err != nil && !a.started:
			s.fail(a.w, err)
			return
		case err != nil:
			_, e, _ := verdict(err)
			a.event(map[string]any{"error": e})
			a.flush()
			return
		}
		if !a.started {
			wait = s.cfg.KeepAlive
			a.start()
		}
		for _, p := range pieces {
			a.piece(p)
		}
		from += len(pieces)
		if ended {
			a.call.Delivered()
			a.end()
			a.confirm(ctx)
			return
		}
		a.flush()
	}
}

// errQuiet is the cause for which a stream stops waiting, to show it is alive.
var errQuiet = errors.New("nothing to say yet")

func (a *answer) start() {
	a.started = true
	h := a.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	a.w.WriteHeader(http.StatusOK)
	empty := ""
	a.delta(deltaJSON{Role: "assistant", Content: &empty})
}

func (a *answer) delta(d deltaJSON) {
	a.event(a.envelope("chat.completion.chunk", choiceJSON{Delta: &d}))
}

func (a *answer) piece(p chat.Piece) {
	switch p.Kind {
	case chat.ReasoningPiece:
		a.delta(deltaJSON{Reasoning: p.Text})
	case chat.ContentPiece:
		a.delta(deltaJSON{Content: &p.Text})
	case chat.CallPiece:
		index := a.calls
		a.calls++
		a.delta(deltaJSON{ToolCalls: []toolCallJSON{{Index: &index, ID: p.Call.ID, Type: "function", Function: functionJSON{Name: p.Call.Name}}}})
		a.delta(deltaJSON{ToolCalls: []toolCallJSON{{Index: &index, Function: functionJSON{Arguments: p.Call.Arguments}}}})
	}
}

func (a *answer) end() {
	r := a.call.Reply()
	finish := string(r.Finish)
	a.event(a.envelope("chat.completion.chunk", choiceJSON{Delta: &deltaJSON{}, Finish: &finish}))
	if a.turn.includeUsage {
		last := a.envelope("chat.completion.chunk")
		last.Usage = usage(r)
		a.event(last)
	}
	a.line("data: [DONE]\n\n")
}

// event writes one event. A client that is gone shows in the request's context.
func (a *answer) event(v any) {
	a.line("data: ")
	encode(a.w, v)
	a.line("\n")
}

func (a *answer) line(text string) { _, _ = a.w.Write([]byte(text)) }

func (a *answer) flush() { _ = http.NewResponseController(a.w).Flush() }
