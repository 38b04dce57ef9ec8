package chat

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

var replySeeds = []string{
	"<think>\nhm\n</think>\n\nHello", "plain text", "a</think>b", "<think>never ends",
	"I look\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
	"<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
	"<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>tail",
	"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}</tool_call>",
	"<tool_call>{\"name\": \"f\", \"arg</tool_call> and <tool_call>{\"name\": \"g\"}</tool_call>",
	"<tool_call><tool_call></tool_call></tool_call>", "\n\n<think></think>", "x <tool_c", "</tool_call>",
}

// FuzzReply checks that a reply comes apart the same in one piece and in many,
// and that nothing of it is lost.
func FuzzReply(f *testing.F) {
	for i, s := range replySeeds {
		f.Add(s, uint8(i), i%2 == 0)
	}
	tools := []json.RawMessage{json.RawMessage(`{"function":{"name":"f","parameters":{"properties":{"a":{"type":"integer"},"s":{"type":"string"}}}}}`)}
	f.Fuzz(func(t *testing.T, text string, chunk uint8, inReasoning bool) {
		for _, syntax := range []callSyntax{noCalls, jsonCalls, xmlCalls, argCalls} {
			family := &Family{rules: familyRules{calls: syntax}}
			opt := ReplyOptions{InReasoning: inReasoning, Tools: tools}

			p := family.NewReplyParser(opt)
			p.held = text
			all := p.advance(true)
			var joined strings.Builder
			for _, piece := range all {
				joined.WriteString(piece.Text)
				if piece.Kind == CallPiece && (piece.Call.Name == "" || !json.Valid([]byte(piece.Call.Arguments))) {
					// Python's JSON knows more numbers than JSON does.
					if !strings.Contains(piece.Call.Arguments, "NaN") && !strings.Contains(piece.Call.Arguments, "Infinity") {
						t.Fatalf("call %q of %q", piece.Call, text)
					}
				}
				if piece.Kind == markPiece && strings.Trim(strings.NewReplacer(thinkOpen, "", thinkClose, "").Replace(piece.Text), " \t\r\n") != "" {
					t.Fatalf("the mark %q of %q holds text", piece.Text, text)
				}
			}
			if joined.String() != text {
				t.Fatalf("%q comes apart as %q", text, joined.String())
			}

			whole := family.ParseReply(text, opt)
			stream := family.NewReplyParser(opt)
			var pieces []Piece
			for rest := text; rest != ""; {
				n := min(len(rest), int(chunk)%7+1)
				pieces = append(pieces, stream.Next(rest[:n])...)
				rest = rest[n:]
			}
			pieces = append(pieces, stream.Finish()...)
			streamed := joinPieces(pieces)
			streamed.HasReasoning = stream.reasoned
			if !reflect.DeepEqual(whole, streamed) {
				t.Fatalf("%q read at once is %+v, in pieces of %d it is %+v", text, whole, int(chunk)%7+1, streamed)
			}
		}
	})
}
