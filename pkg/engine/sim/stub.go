package sim

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// stub answers /generate with the same tokens every time: an engine that costs
// next to nothing, for measuring what drives engines. Of a request it reads only
// the id, the length of input_ids and max_new_tokens.
type stub struct {
	engine     *Engine
	counts     *counters
	completion int
	head, tail []byte // of the reply: the rid goes between them, the prompt length after
	buffers    sync.Pool
}

func newStub(e *Engine, n int) *stub {
	return &stub{
		engine: e, counts: e.sched.counts, completion: n,
		head: stubHead(e, n), tail: []byte(`,"prompt_tokens":`),
		buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }},
	}
}

// stubHead prepares a reply of n tokens, up to its id: digits and, as the last
// one, the first end-of-sequence token.
func stubHead(e *Engine, n int) []byte {
	ids, text := make([]int32, n), make([]byte, 0, n)
	for i := range n - 1 {
		text = append(text, byte('0'+i%10))
		ids[i] = int32(text[i])
	}
	ids[n-1] = e.config.EOS[0]
	head := append(append([]byte(`{"text":`), quote(string(text))...), `,"output_ids":`...)
	head = appendIDs(head, ids)
	head = appendFinish(append(head, `,"meta_info":{"finish_reason":`...), &finish{kind: finishStop, matched: ids[n-1]})
	head = append(append(head, `,"weight_version":`...), quote(e.config.WeightVersion)...)
	head = appendInt(append(head, `,"completion_tokens":`...), n)
	head = append(head, `,"cached_tokens":0,"e2e_latency":0,"input_token_logprobs":[],"output_token_logprobs":[`...)
	for i, id := range ids {
		if i > 0 {
			head = append(head, ',')
		}
		head = append(strconv.AppendFloat(append(head, '['), -0.5-float64(i%7)/8, 'g', -1, 32), ',')
		head = append(appendInt(head, int(id)), ",null]"...)
	}
	return append(head, `],"id":`...)
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	buf := s.buffers.Get().(*bytes.Buffer)
	defer s.buffers.Put(buf)
	buf.Reset()
	if _, err := io.Copy(buf, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		writeError(w, malformed(err))
		return
	}
	body := buf.Bytes()
	prompt := 0
	if ids := after(body, `"input_ids"`, '['); ids != nil {
		prompt = bytes.Count(ids[:max(0, bytes.IndexByte(ids, ']'))], []byte{','}) + 1
	}
	rid := after(body, `"rid"`, '"')
	rid = rid[:max(0, bytes.IndexByte(rid, '"'))]
	completion, head := s.completion, s.head
	if most := number(after(body, `"max_new_tokens"`, ':')); most > 0 && most < completion {
		// It asks whether the engine works. That is rare, and may cost something.
		completion, head = most, stubHead(s.engine, most)
	}
	s.counts.received.Inc()
	s.counts.prompt.Add(float64(prompt))
	s.counts.completion.Add(float64(completion))
	s.counts.fate(finishStop)
	n := len(body)
	buf.Write(head)
	buf.WriteByte('"')
	buf.Write(rid)
	buf.WriteByte('"')
	buf.Write(s.tail)
	buf.Write(strconv.AppendInt(buf.AvailableBuffer(), int64(prompt), 10))
	buf.WriteString("}}")
	answer := buf.Bytes()[n:]
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.Write(answer)
}

// after returns what follows the first open byte behind key, nil without either.
func after(body []byte, key string, open byte) []byte {
	i := bytes.Index(body, []byte(key))
	if i < 0 {
		return nil
	}
	rest := body[i+len(key):]
	j := bytes.IndexByte(rest, open)
	if j < 0 {
		return nil
	}
	return rest[j+1:]
}

// number is the number that b begins with, 0 for none.
func number(b []byte) int {
	n := 0
	for _, c := range bytes.TrimLeft(b, " ") {
		if c < '0' || c > '9' || n > 1<<30 {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}
