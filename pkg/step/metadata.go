package step

import (
	"bytes"
	"encoding/json"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// mismatch types of the session server's token comparison, as they are named in
// a sample's metadata.
var mismatchTypes = [...]string{"special_token_count", "special_token_type", "non_assistant_text", "assistant_text"}

// facts is what the metrics read from the samples' metadata.
type facts struct {
	// compared counts the samples that carry a mismatch list, mismatched those
	// whose list is not empty, byType those with an entry of each type.
	compared, mismatched int
	byType               [len(mismatchTypes)]int
	// categories counts samples by the value of [Config.Category], exits episodes
	// by the exit status of their agent.
	categories, exits counter[string]
}

func (f *facts) merge(o *facts) {
	f.compared += o.compared
	f.mismatched += o.mismatched
	for i := range f.byType {
		f.byType[i] += o.byType[i]
	}
	f.categories.merge(&o.categories)
	f.exits.merge(&o.exits)
}

// metadata reads the metadata of one sample and returns its agent's exit status,
// "" for none. A value that is not of the expected kind is not there.
func (f *facts) metadata(object json.RawMessage, category string) (exit string) {
	members(object, func(key, value []byte) {
		switch string(key) {
		case "tito_session_mismatch":
			f.mismatch(value)
		case "exit_status":
			exit = text(value)
		}
		if category != "" && string(key) == category {
			if value := text(value); value != "" {
				f.categories.add(value)
			}
		}
	})
	return exit
}

// text is the content of a JSON string, "" for any other value.
func text(value []byte) string {
	switch {
	case value[0] != '"':
		return ""
	case bytes.IndexByte(value, '\\') < 0:
		return string(value[1 : len(value)-1])
	default:
		return rollout.RawText(value)
	}
}

// mismatch counts one sample's mismatch list.
func (f *facts) mismatch(list []byte) {
	if len(list) == 2 && list[0] == '[' {
		f.compared++
		return
	}
	var entries []struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(list, &entries) != nil || entries == nil {
		return
	}
	f.compared++
	if len(entries) > 0 {
		f.mismatched++
	}
	for i, name := range mismatchTypes {
		for _, entry := range entries {
			if entry.Type == name {
				f.byType[i]++
				break
			}
		}
	}
}

// members calls visit with each member of a JSON object, key unquoted and value
// as it stands, and stops where the text is no valid object. It reads much faster
// than decoding would, and copies nothing but keys with escapes.
func members(object json.RawMessage, visit func(key, value []byte)) {
	i := skipSpace(object, 0)
	if i == len(object) || object[i] != '{' {
		return
	}
	i++
	for {
		i = skipSpace(object, i)
		if i < len(object) && object[i] == ',' {
			i = skipSpace(object, i+1)
		}
		if i == len(object) || object[i] != '"' {
			return
		}
		end := stringEnd(object, i)
		if end < 0 {
			return
		}
		key := object[i+1 : end-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = []byte(text(object[i:end]))
		}
		i = skipSpace(object, end)
		if i == len(object) || object[i] != ':' {
			return
		}
		i = skipSpace(object, i+1)
		if end = valueEnd(object, i); end <= i {
			return
		}
		visit(key, object[i:end])
		i = end
	}
}

// skipSpace returns the first index from i on that holds no space.
func skipSpace(s []byte, i int) int {
	for i < len(s) && s[i] <= ' ' {
		i++
	}
	return i
}

// stringEnd is the index after the JSON string that starts at i, −1 if it does
// not end.
func stringEnd(s []byte, i int) int {
	for at := i + 1; ; {
		quote := bytes.IndexByte(s[at:], '"')
		if quote < 0 {
			return -1
		}
		at += quote + 1
		escapes := 0
		for s[at-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
	}
}

// valueEnd is the index after the JSON value that starts at i, −1 if it does not
// end.
func valueEnd(s []byte, i int) int {
	depth := 0
	for i < len(s) {
		switch s[i] {
		case '"':
			if i = stringEnd(s, i); i < 0 || depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 { // after a number or a word
				return i
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return -1
}
