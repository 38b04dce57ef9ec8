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
	// categories counts samples by the value of [Config.Category].
	categories map[string]int
	// exits counts episodes by the exit status of their agent.
	exits map[string]int
}

// readMetadata reads the metadata of the batch's samples. A value that is not of
// the expected kind is not there.
func (v *view) readMetadata(cfg Config) facts {
	f := facts{categories: map[string]int{}, exits: map[string]int{}}
	for _, e := range v.episodes {
		exit := ""
		for _, s := range v.samples[e.start:e.end] {
			members(s.Metadata, func(key, value []byte) {
				switch string(key) {
				case "tito_session_mismatch":
					f.mismatch(value)
				case "exit_status":
					if text := rollout.RawText(value); exit == "" && value[0] == '"' {
						exit = text
					}
				}
				if cfg.Category != "" && string(key) == cfg.Category && value[0] == '"' {
					f.categories[rollout.RawText(value)]++
				}
			})
		}
		if exit != "" {
			f.exits[exit]++
		}
	}
	return f
}

// mismatch counts one sample's mismatch list.
func (f *facts) mismatch(list json.RawMessage) {
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
	s := bytes.TrimLeft(object, " \t\r\n")
	if len(s) == 0 || s[0] != '{' {
		return
	}
	s = s[1:]
	for {
		s = bytes.TrimLeft(s, " \t\r\n,")
		n := valueLen(s)
		if n < 2 || s[0] != '"' {
			return
		}
		key := s[1 : n-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = []byte(rollout.RawText(s[:n]))
		}
		s = bytes.TrimLeft(s[n:], " \t\r\n")
		if len(s) == 0 || s[0] != ':' {
			return
		}
		s = bytes.TrimLeft(s[1:], " \t\r\n")
		if n = valueLen(s); n == 0 {
			return
		}
		visit(key, s[:n])
		s = s[n:]
	}
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
