package sim

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// appendReply appends the JSON object that answers /generate: everything from
// output token from on. It is written by hand because replies are most of what an
// engine without a GPU spends its time on.
func (e *Engine) appendReply(buf []byte, gen *generation, p *progress, from int, text string) []byte {
	f := p.finish
	buf = append(buf, '{')
	if e.config.Tokenizer != nil {
		buf = append(append(buf, `"text":`...), quote(text)...)
		buf = append(buf, ',')
	}
	if !(f != nil && f.inQueue && gen.dialect.bareQueueAbort) {
		buf = append(buf, `"output_ids":`...)
		buf = appendIDs(buf, p.output[from:])
		buf = append(buf, ',')
	}
	if gen.returnPrompt {
		buf = append(buf, `"prompt_token_ids":`...)
		buf = appendIDs(buf, gen.input)
		buf = append(buf, ',')
	}
	buf = append(buf, `"meta_info":`...)
	buf = e.appendMeta(buf, gen, p, from)
	return append(buf, '}')
}

// appendMeta appends meta_info. Which keys it has depends on the dialect, on
// whether the request has finished, and on whether it was aborted in the queue.
func (e *Engine) appendMeta(buf []byte, gen *generation, p *progress, from int) []byte {
	d, f := gen.dialect, p.finish
	buf = append(append(buf, `{"id":`...), quote(gen.rid)...)
	buf = appendFinish(append(buf, `,"finish_reason":`...), f)
	if f != nil && f.inQueue && d.bareQueueAbort {
		return append(buf, `,"prompt_tokens":0,"completion_tokens":0}`...)
	}
	version := p.version
	if d.spans {
		// Then the one version is that of the last token, not the current one.
		version = p.lastVersion()
		buf = appendSpans(append(buf, `,"weight_versions":`...), p)
	}
	buf = append(append(buf, `,"weight_version":`...), quote(version)...)
	buf = appendInt(append(buf, `,"completion_tokens":`...), len(p.output))
	if gen.wantLogprobs {
		buf = e.appendLogprobs(buf, gen, p, from)
	}
	if f != nil {
		buf = appendSeconds(append(buf, `,"e2e_latency":`...), p.finished.Sub(p.received))
	}
	if f != nil && f.inQueue {
		return append(buf, '}')
	}
	buf = appendInt(append(buf, `,"prompt_tokens":`...), gen.reportedPrompt)
	buf = appendInt(append(buf, `,"cached_tokens":`...), p.cached)
	if d.reasoning {
		reasoning := 0
		if gen.extraReasoning > 0 {
			reasoning = len(p.output) + gen.extraReasoning
		}
		buf = appendInt(append(buf, `,"reasoning_tokens":`...), reasoning)
	}
	if d.retractions != "" {
		buf = appendInt(append(append(append(buf, `,"`...), d.retractions...), `":`...), p.retractions)
	}
	if e.config.EnableMetrics {
		buf = appendTimes(buf, p)
	}
	if f != nil {
		if gen.padding > 0 {
			buf = append(append(buf, `,"routed_experts":"`...), bytes.Repeat([]byte{'A'}, gen.padding)...)
			buf = append(buf, '"')
		}
		buf = appendEpoch(append(buf, `,"response_sent_to_client_ts":`...), p.finished)
		if e.config.Speculation != nil {
			buf = d.appendSpeculation(buf, p)
		}
	}
	return append(buf, '}')
}

// appendSpeculation appends the counters of a finished request. A request that
// was over before its first verify has none, except where a release always says
// how many verifies there were.
func (d *Dialect) appendSpeculation(buf []byte, p *progress) []byte {
	if d.proposed == nil {
		return appendInt(append(buf, `,"spec_verify_ct":`...), p.verify)
	}
	if p.verify == 0 {
		return buf
	}
	buf = appendFloat(append(buf, `,"spec_accept_rate":`...), float64(p.correct)/float64(p.proposed))
	buf = appendFloat(append(buf, `,"spec_accept_length":`...), float64(len(p.output))/float64(p.verify))
	buf = appendInt(append(buf, `,"spec_verify_ct":`...), p.verify)
	for _, key := range d.proposed {
		buf = appendInt(append(append(append(buf, `,"`...), key...), `":`...), p.proposed)
	}
	for _, key := range d.correct {
		buf = appendInt(append(append(append(buf, `,"`...), key...), `":`...), p.correct)
	}
	for _, key := range d.histogram {
		buf = append(append(append(buf, `,"`...), key...), `":[`...)
		for i, n := range p.histogram {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = appendInt(buf, n)
		}
		buf = append(buf, ']')
	}
	return buf
}

// appendLogprobs appends the log-prob keys, from output token from on.
func (e *Engine) appendLogprobs(buf []byte, gen *generation, p *progress, from int) []byte {
	entry := func(buf []byte, id int32, logprob float32) []byte {
		buf = append(buf, '[')
		if math.IsNaN(float64(logprob)) || math.IsInf(float64(logprob), 0) {
			buf = append(buf, "null"...) // as SGLang's JSON has it, hazard 8
		} else {
			buf = strconv.AppendFloat(buf, float64(logprob), 'g', -1, 32)
		}
		buf = strconv.AppendInt(append(buf, ','), int64(id), 10)
		if gen.textInLogprobs && e.config.Tokenizer != nil {
			buf = append(append(buf, ','), quote(e.config.Tokenizer.Decode([]int32{id}, false))...)
			return append(buf, ']')
		}
		return append(buf, ",null]"...)
	}
	buf = append(buf, `,"input_token_logprobs":[`...)
	for i, lp := range p.inputLogprobs {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = entry(buf, gen.input[p.inputStart+i], lp)
	}
	buf = append(buf, `],"output_token_logprobs":[`...)
	for i, lp := range p.logprobs[from:] {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = entry(buf, p.output[from+i], lp)
	}
	buf = appendInt(append(buf, `],"output_token_logprobs_length":`...), len(p.logprobs))
	if gen.topLogprobs == 0 {
		return buf
	}
	buf = append(buf, `,"output_top_logprobs":[`...)
	for i, list := range p.top[from:] {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = append(buf, '[')
		for j, t := range list {
			if j > 0 {
				buf = append(buf, ',')
			}
			buf = entry(buf, t.token, t.logprob)
		}
		buf = append(buf, ']')
	}
	return append(buf, ']')
}

// appendFinish appends a finish_reason. The abort of a running request has a
// status and an error type that are null for a user's abort; the abort of a
// waiting one lacks the keys.
func appendFinish(buf []byte, f *finish) []byte {
	switch {
	case f == nil:
		return append(buf, "null"...)
	case f.kind == finishLength:
		return append(appendInt(append(buf, `{"type":"length","length":`...), f.length), '}')
	case f.kind == finishStop && f.stop != "":
		return append(append(append(buf, `{"type":"stop","matched":`...), quote(f.stop)...), '}')
	case f.kind == finishToolCalls:
		return append(buf, `{"type":"tool_calls","matched":null}`...)
	case f.kind == finishStop:
		return append(appendInt(append(buf, `{"type":"stop","matched":`...), int(f.matched)), '}')
	}
	buf = append(append(buf, `{"type":"abort","message":`...), quote(f.message)...)
	switch {
	case f.inQueue:
		return append(buf, '}')
	case f.status == 0:
		return append(buf, `,"status_code":null,"err_type":null}`...)
	}
	buf = appendInt(append(buf, `,"status_code":`...), f.status)
	return append(append(append(buf, `,"err_type":`...), quote(f.errType)...), '}')
}

// appendSpans appends the weight versions with the output tokens they sampled; no
// tokens make one empty span.
func appendSpans(buf []byte, p *progress) []byte {
	spans := p.spans
	if len(spans) == 0 {
		spans = []span{{version: p.version}}
	}
	buf = append(buf, '[')
	for i, s := range spans {
		end := len(p.output)
		if i+1 < len(spans) {
			end = spans[i+1].start
		}
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = append(append(buf, `{"version":`...), quote(s.version)...)
		buf = appendInt(append(buf, `,"start":`...), s.start)
		buf = append(appendInt(append(buf, `,"end":`...), end), '}')
	}
	return append(buf, ']')
}

// appendTimes appends the time keys of an engine that keeps metrics.
func appendTimes(buf []byte, p *progress) []byte {
	if !p.prefillStarted.IsZero() {
		buf = appendSeconds(append(buf, `,"queue_time":`...), p.prefillStarted.Sub(p.received))
		buf = appendEpoch(append(buf, `,"forward_entry_time":`...), p.prefillStarted)
	}
	if !p.prefillFinished.IsZero() {
		buf = appendEpoch(append(buf, `,"prefill_finished_time":`...), p.prefillFinished)
	}
	if p.finish == nil {
		return buf
	}
	buf = appendEpoch(append(buf, `,"request_received_ts":`...), p.received)
	buf = appendEpoch(append(buf, `,"request_finished_ts":`...), p.finished)
	if took := p.finished.Sub(p.prefillFinished).Seconds(); len(p.output) > 1 && took > 0 {
		buf = appendFloat(append(buf, `,"decode_throughput":`...), float64(len(p.output)-1)/took)
	}
	return buf
}

func appendIDs(buf []byte, ids []int32) []byte {
	buf = append(buf, '[')
	for i, id := range ids {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = strconv.AppendInt(buf, int64(id), 10)
	}
	return append(buf, ']')
}

func appendInt(buf []byte, n int) []byte { return strconv.AppendInt(buf, int64(n), 10) }

func appendFloat(buf []byte, x float64) []byte { return strconv.AppendFloat(buf, x, 'g', -1, 64) }

func appendSeconds(buf []byte, d time.Duration) []byte { return appendFloat(buf, d.Seconds()) }

// appendEpoch appends a time as seconds since 1970.
func appendEpoch(buf []byte, t time.Time) []byte {
	return strconv.AppendFloat(buf, float64(t.UnixMicro())/1e6, 'f', 6, 64)
}

// quote is the JSON string of s.
func quote(s string) []byte {
	data, err := json.Marshal(s)
	if err != nil { // a string always encodes
		return []byte(`""`)
	}
	return data
}
