package chat

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// The marks of a reply's parts. All families here use the same ones.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
	callOpen   = "<tool_call>"
	callClose  = "</tool_call>"
)

// ReplyOptions say how a reply is to be read.
type ReplyOptions struct {
	// InReasoning says that the prompt has opened the reasoning already.
	InReasoning bool
	// Tools tell the types of arguments where the model writes them without quotes.
	Tools []json.RawMessage
}

// Reply is a model's text taken apart.
type Reply struct {
	// Reasoning is what the model thought; HasReasoning tells an empty thought from
	// none.
	Reasoning    string
	HasReasoning bool
	Content      string
	ToolCalls    []rollout.ToolCall
}

// PieceKind is what a piece of a reply is.
type PieceKind uint8

// The kinds of piece.
const (
	ReasoningPiece PieceKind = iota
	ContentPiece
	CallPiece
	// markPiece is a mark, or line ends beside one; it is nothing a client sees.
	markPiece
)

// Piece is a stretch of a reply.
type Piece struct {
	Kind PieceKind
	// Text is what the model wrote: for a call, the call with its marks.
	Text string
	// Call is what a CallPiece asks for.
	Call rollout.ToolCall
}

// ParseReply takes a whole reply apart. A tool call that cannot be read stays in
// the content as the model wrote it.
func (f *Family) ParseReply(text string, opt ReplyOptions) Reply {
	p := f.NewReplyParser(opt)
	r := joinPieces(append(p.Next(text), p.Finish()...))
	r.HasReasoning = p.reasoned
	return r
}

func joinPieces(pieces []Piece) Reply {
	var r Reply
	var reasoning, content strings.Builder
	for _, piece := range pieces {
		switch piece.Kind {
		case ReasoningPiece:
			reasoning.WriteString(piece.Text)
		case ContentPiece:
			content.WriteString(piece.Text)
		case CallPiece:
			r.ToolCalls = append(r.ToolCalls, piece.Call)
		}
	}
	r.Reasoning, r.Content = reasoning.String(), content.String()
	return r
}

// OpensReasoning tells whether the prompt that these options render ends inside
// the reasoning, so that a reply starts there.
func (f *Family) OpensReasoning(opt RenderOptions) (bool, error) {
	opt.AddGenerationPrompt = true
	text, err := f.Render([]rollout.Message{rollout.NewMessage("user", "hello")}, opt)
	if err != nil {
		return false, err
	}
	return strings.LastIndex(text, thinkOpen) > strings.LastIndex(text, thinkClose), nil
}

// TrimStop removes the token that ended a reply, if there is one: the end of the
// turn, the opener of the next message, or the model's end token.
func (f *Family) TrimStop(ids []int32) []int32 {
	if len(ids) == 0 {
		return ids
	}
	last := ids[len(ids)-1]
	eos, hasEOS := f.model.EOS()
	if last == f.endOfTurn || slices.Contains(f.openers, last) || hasEOS && last == eos {
		return ids[:len(ids)-1]
	}
	return ids
}

// ReplyParser takes a reply apart while it comes in. Text that may turn out to be
// part of a mark is held back. Together the texts of the pieces are the reply but
// for its marks and the line ends beside them.
type ReplyParser struct {
	calls    callReader
	state    replyState
	next     replyState // what follows the line ends of betweenParts
	held     string
	taken    int // bytes before held
	reasoned bool
	// closeAt is where the last end of a call was found, and up to searched there is
	// no later one, both counted from the start of the reply: what has been looked
	// through is not looked through again.
	closeAt, searched int
	broken            int // calls that were none
	// closes is where in held the ends of the call so far stand: a value can
	// contain what looks like an end.
	closes []int
}

type replyState uint8

const (
	replyStart   replyState = iota
	betweenParts            // behind a mark: line ends belong to the mark
	inReasoning
	inContent
	inCall
)

// NewReplyParser returns a parser of one reply.
func (f *Family) NewReplyParser(opt ReplyOptions) *ReplyParser {
	p := &ReplyParser{calls: callReader{syntax: f.rules.calls, tools: opt.Tools}, closeAt: -1}
	if opt.InReasoning {
		p.state, p.next, p.reasoned = betweenParts, inReasoning, true
	}
	return p
}

// Next takes more text and returns the pieces that are certain now.
func (p *ReplyParser) Next(text string) []Piece {
	p.held += text
	return visible(p.advance(false))
}

// Finish returns what is left at the end of the reply.
func (p *ReplyParser) Finish() []Piece { return visible(p.advance(true)) }

func visible(pieces []Piece) []Piece {
	return slices.DeleteFunc(pieces, func(p Piece) bool { return p.Kind == markPiece || p.Text == "" })
}

// take removes n bytes from what is held.
func (p *ReplyParser) take(kind PieceKind, n int) Piece {
	piece := Piece{Kind: kind, Text: p.held[:n]}
	p.held = p.held[n:]
	p.taken += n
	return piece
}

// advance goes on until it needs more text; with final there is none to come.
func (p *ReplyParser) advance(final bool) []Piece {
	var out []Piece
	for p.held != "" {
		left, state := len(p.held), p.state
		switch p.state {
		case replyStart:
			out = append(out, p.start(final)...)
		case betweenParts:
			out = append(out, p.take(markPiece, len(p.held)-len(strings.TrimLeft(p.held, "\n"))))
			if p.held != "" {
				p.state = p.next
			}
		case inReasoning:
			out = append(out, p.reasoning(final)...)
		case inContent:
			out = append(out, p.content(final)...)
		case inCall:
			out = append(out, p.call(final)...)
		}
		if len(p.held) == left && p.state == state {
			break
		}
	}
	return out
}

// start looks for an opening of the reasoning, which only counts before all else.
func (p *ReplyParser) start(final bool) []Piece {
	body := strings.TrimLeft(p.held, " \t\r\n")
	switch {
	case strings.HasPrefix(body, thinkOpen):
		p.state, p.next, p.reasoned = betweenParts, inReasoning, true
		return []Piece{p.take(markPiece, len(p.held)-len(body)+len(thinkOpen))}
	case final || !strings.HasPrefix(thinkOpen, body):
		p.state = inContent
	}
	return nil
}

func (p *ReplyParser) reasoning(final bool) []Piece {
	if end := strings.Index(p.held, thinkClose); end >= 0 {
		p.state, p.next = betweenParts, inContent
		n := len(strings.TrimRight(p.held[:end], "\n"))
		return []Piece{p.take(ReasoningPiece, n), p.take(markPiece, end-n+len(thinkClose))}
	}
	return []Piece{p.take(ReasoningPiece, p.certain(thinkClose, final))}
}

func (p *ReplyParser) content(final bool) []Piece {
	if p.calls.syntax == noCalls {
		return []Piece{p.take(ContentPiece, len(p.held))}
	}
	if at := strings.Index(p.held, callOpen); at >= 0 {
		p.state, p.closes = inCall, nil
		return []Piece{p.take(ContentPiece, len(strings.TrimRight(p.held[:at], "\n")))}
	}
	return []Piece{p.take(ContentPiece, p.certain(callOpen, final))}
}

// certain is how much of what is held can be neither part of a mark that is still
// coming nor line ends before it.
func (p *ReplyParser) certain(mark string, final bool) int {
	if final {
		return len(p.held)
	}
	n := len(p.held)
	for k := min(len(mark)-1, n); k > 0; k-- {
		if strings.HasSuffix(p.held, mark[:k]) {
			n -= k
			break
		}
	}
	return len(strings.TrimRight(p.held[:n], "\n"))
}

// maxBroken is how many broken calls a reply may have: what comes then is content,
// so that a reply full of marks is not read from each of them on.
const maxBroken = 100

// maxCloses bounds how many ends of a call are tried: what has more is no call.
const maxCloses = 16

// findClose returns where the next end of a call stands in what is held, at or
// after from, or -1.
func (p *ReplyParser) findClose(from int) int {
	if p.closeAt >= p.taken+from {
		return p.closeAt - p.taken
	}
	from = max(from, p.searched-p.taken)
	if from >= len(p.held) {
		return -1
	}
	at := strings.Index(p.held[from:], callClose)
	if at < 0 {
		p.searched = max(p.searched, p.taken+len(p.held)-len(callClose)+1)
		return -1
	}
	p.closeAt = p.taken + from + at
	p.searched = p.closeAt + len(callClose)
	return from + at
}

// call reads the call that is held, with line ends before it.
func (p *ReplyParser) call(final bool) []Piece {
	open := strings.Index(p.held, callOpen)
	from := open + len(callOpen)
	if n := len(p.closes); n > 0 {
		from = p.closes[n-1]
	}
	for len(p.closes) < maxCloses {
		at := p.findClose(from)
		if at < 0 {
			if final {
				break
			}
			return nil
		}
		end := at + len(callClose)
		call, result := p.calls.read(p.held[open+len(callOpen) : end-len(callClose)])
		p.closes = append(p.closes, end)
		from = end
		if result == callWhole {
			p.state, p.next = betweenParts, inContent
			mark := p.take(markPiece, open)
			piece := p.take(CallPiece, end-open)
			piece.Call = call
			return []Piece{mark, piece}
		}
		if result == callBroken {
			break
		}
	}
	// No call: its first mark is content, and the text behind it is looked at anew.
	p.state = inContent
	if p.broken++; p.broken == maxBroken {
		p.calls.syntax = noCalls
	}
	return []Piece{p.take(ContentPiece, open+len(callOpen))}
}
