package server

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/session"
)

// maxKept bounds the buffers that are kept for the next body.
const maxKept = 16 << 20

// body reads a request's body into a buffer that free gives back.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (data []byte, free func(), err error) {
	buf, _ := s.bodies.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	free = func() {
		if cap(*buf) <= maxKept {
			s.bodies.Put(buf)
		}
	}
	rc := http.NewResponseController(w)
	// Not every writer has deadlines; without one the client's own limits hold.
	_ = rc.SetReadDeadline(time.Now().Add(s.cfg.BodyWait))
	*buf, err = s.readAll((*buf)[:0], r)
	// What is read from here on is only whether the client is still there.
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		free()
		return nil, nil, err
	}
	return *buf, free, nil
}

func (s *Server) readAll(buf []byte, r *http.Request) ([]byte, error) {
	var src io.Reader = r.Body
	size := r.ContentLength
	switch r.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip":
		zipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return buf, fmt.Errorf("%w: gzip: %w", session.ErrBadRequest, err)
		}
		src, size = zipped, -1
	default:
		return buf, fmt.Errorf("%w: send the body as it is, or in gzip", errEncoding)
	}
	if size > s.cfg.MaxBody {
		return buf, fmt.Errorf("%w: %d bytes, at most %d", errTooLarge, size, s.cfg.MaxBody)
	}
	want := int64(64 << 10)
	if size >= 0 {
		want = size + 1 // room to see the end
	}
	if int64(cap(buf)) < want {
		buf = make([]byte, 0, want)
	}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > s.cfg.MaxBody {
			return buf, fmt.Errorf("%w: more than %d bytes", errTooLarge, s.cfg.MaxBody)
		}
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, fmt.Errorf("%w: reading the body: %w", session.ErrBadRequest, err)
		}
	}
}

// turn is a chat request, read.
type turn struct {
	session.Request
	model        string
	includeUsage bool
	// overridden is a sampling parameter that the client set and the run decides.
	overridden string
}

// parse reads a chat request in one pass. The messages are looked up in the session
// on the way, so that those it knows are not read again.
func parse(data []byte, sess *session.Session) (turn, error) {
	var t turn
	var choice string
	matched := false
	end, err := session.Fields(data, func(key string, at int) (int, error) {
		if key == "messages" {
			m, n, err := sess.Match(data[at:])
			t.Match, matched = m, true
			return at + n, err
		}
		raw, end, err := session.Value(data, at)
		if err != nil || string(raw) == "null" {
			return end, err
		}
		switch key {
		case "model":
			err = json.Unmarshal(raw, &t.model)
		case "stream":
			err = json.Unmarshal(raw, &t.Stream)
		case "stream_options":
			var o struct {
				IncludeUsage bool `json:"include_usage"`
			}
			err = json.Unmarshal(raw, &o)
			t.includeUsage = o.IncludeUsage
		case "tools":
			if string(raw) != "[]" {
				t.Tools = raw
			}
		case "tool_choice":
			choice = string(raw)
		case "chat_template_kwargs":
			t.Kwargs = raw
		case "max_tokens":
			if t.MaxTokens == 0 {
				err = json.Unmarshal(raw, &t.MaxTokens)
			}
		case "max_completion_tokens":
			err = json.Unmarshal(raw, &t.MaxTokens)
		case "stop":
			t.Stop, err = stops(raw)
		case "n":
			if string(raw) != "1" {
				err = errors.New("a turn has one reply")
			}
		case "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias":
			t.overridden = key
		}
		if err != nil {
			err = fmt.Errorf("%w: %s: %w", session.ErrBadRequest, key, err)
		}
		return end, err
	})
	switch {
	case err != nil:
		return t, err
	case len(trim(data[end:])) > 0:
		return t, fmt.Errorf("%w: there is text after the body", session.ErrBadRequest)
	case !matched:
		return t, fmt.Errorf("%w: there are no messages", session.ErrBadRequest)
	case t.MaxTokens < 0:
		return t, fmt.Errorf("%w: max_tokens is negative", session.ErrBadRequest)
	}
	if choice == `"none"` {
		t.Tools = nil // as engines do
	}
	return t, nil
}

func trim(data []byte) []byte {
	for len(data) > 0 && (data[0] == ' ' || data[0] == '\n' || data[0] == '\r' || data[0] == '\t') {
		data = data[1:]
	}
	return data
}

// stops reads a text or a list of texts.
func stops(raw []byte) ([]string, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	err := json.Unmarshal(raw, &many)
	return many, err
}
