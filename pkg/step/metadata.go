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
// as it stands, and stops where the text is no valid object. It reads a large
// object much faster than decoding it, and copies nothing but keys with escapes.
func members(object json.RawMessage, visit func(key, value []byte)) {
	s := skipSpace(object)
	if len(s) == 0 || s[0] != '{' {
		return
	}
	s = s[1:]
	for {
		if s = skipSpace(s); len(s) > 0 && s[0] == ',' {
			s = skipSpace(s[1:])
		}
		n := valueLen(s)
		if n < 2 || s[0] != '"' {
			return
		}
		key := s[1 : n-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = []byte(text(s[:n]))
		}
		s = skipSpace(s[n:])
		if len(s) == 0 || s[0] != ':' {
			return
		}
		s = skipSpace(s[1:])
		if n = valueLen(s); n == 0 {
			return
		}
		visit(key, s[:n])
		s = s[n:]
	}
}

func skipSpace(s []byte) []byte {
	for len(s) > 0 && (s[0] == ' ' || s[0] == '\t' || s[0] == '\r' || s[0] == '\n') {
		s = s[1:]
	}
	return s
}

// valueLen is the length of the JSON value at the start of s, 0 if there is none.
func valueLen(s []byte) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
			}
			if i >= len(s) {
				return 0
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		case ',', ' ', '\t', '\r', '\n', ':':
			if depth == 0 {
				return i
			}
			continue
		default:
			if depth == 0 && i+1 < len(s) {
				continue
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return 0
}
