package sim

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// finish is how a request ended; its JSON is SGLang's finish_reason.
type finish struct {
	kind    finishKind
	matched int32  // the stop token, when stop == ""
	stop    string // the stop string that matched
	length  int
	message string // of an abort
	status  int    // of an abort that is an error; 0 for a user's abort
	errType string
	// inQueue marks the abort of a request that never ran or was waiting to run
	// again: its record has fewer keys.
	inQueue bool
}

// refusal is the error status that an abort by the engine itself has outside a
// stream: a rule of the request model broken, or no capacity.
func (f *finish) refusal() error {
	if f.status == http.StatusBadRequest {
		return invalid("%s", f.message)
	}
	return &statusError{status: f.status, errType: strconv.Itoa(f.status), message: f.message}
}

type finishKind string

const (
	finishStop   finishKind = "stop"
	finishLength finishKind = "length"
	finishAbort  finishKind = "abort"
	// finishToolCalls is what a stop becomes when a chat completion found calls.
	finishToolCalls finishKind = "tool_calls"
)

// span is where a weight version begins in the output; it ends where the next
// begins.
type span struct {
	version string
	start   int
}

// ranked is one entry of a top-logprobs list.
type ranked struct {
	token   int32
	logprob float32
}

// progress is a snapshot of a request. Its slices only grow behind what a snapshot
// shows, so it may be read while the request runs on. The speculative histogram is
// the exception: it is complete only when finish is set.
type progress struct {
	output   []int32
	logprobs []float32
	top      [][]ranked // per output token, when asked for
	spans    []span

	inputStart    int       // first prompt position whose log-prob is wanted, -1 = none
	inputLogprobs []float32 // from there on

	cached      int
	retractions int
	verify      int
	correct     int
	proposed    int
	histogram   []int

	version string // of the weights when the snapshot was made
	finish  *finish

	received, prefillStarted, prefillFinished, finished time.Time
}

// lastVersion is the version that sampled the last token, the current one for none.
func (p *progress) lastVersion() string {
	if n := len(p.spans); n > 0 {
		return p.spans[n-1].version
	}
	return p.version
}

// request is one generation. Its fields belong to the scheduler from submission
// on; the handler sees only what comes through updates.
type request struct {
	rid       string
	namespace string
	sampling  samplingParams
	warp      warp
	seed      uint64
	bias      map[int32]float32

	wantLogprobs bool
	topLogprobs  int
	stream       bool

	ids    []int32 // prompt, then output
	prompt int
	stops  map[int32]bool
	counts map[int32]int // output tokens so far, kept only for penalties
	prior  *prior        // a scripted reply, nil = none
	cut    *cut          // a scripted end, nil = none

	progress
	updates chan progress // holds the latest snapshot
}

// publish replaces the snapshot that the handler has not read yet. The scheduler
// is the only sender, so the channel has room after the receive.
func (r *request) publish() {
	r.output = r.ids[r.prompt:]
	select {
	case <-r.updates:
	default:
	}
	r.updates <- r.progress
}

// generated is the number of output tokens so far.
func (r *request) generated() int { return len(r.ids) - r.prompt }

// prepare derives what sampling needs from the parameters.
func (r *request) prepare(eos []int32) {
	r.warp = r.sampling.warp()
	r.stops = map[int32]bool{}
	if !r.sampling.IgnoreEOS {
		for _, id := range eos {
			r.stops[id] = true
		}
	}
	for _, id := range r.sampling.StopTokenIDs {
		r.stops[id] = true
	}
	if r.sampling.FrequencyPenalty != 0 || r.sampling.PresencePenalty != 0 || r.sampling.RepetitionPenalty != 1 {
		r.counts = map[int32]int{}
	}
	for key, value := range r.sampling.LogitBias {
		if id, err := strconv.Atoi(key); err == nil { // validate has seen to it
			if r.bias == nil {
				r.bias = map[int32]float32{}
			}
			r.bias[int32(id)] = float32(value)
		}
	}
}

// edit applies penalties, biases and the minimum length to the logits of the token
// that follows the output and then ahead, which are drafted tokens not yet emitted.
func (r *request) edit(logits []float32, ahead []int32, minusInf float32) {
	p := &r.sampling
	for id, value := range r.bias {
		logits[id] += value
	}
	if r.counts != nil {
		for id, n := range r.countsWith(ahead) {
			logits[id] -= float32(float64(p.FrequencyPenalty*float64(n)) + p.PresencePenalty)
		}
		if p.RepetitionPenalty != 1 {
			seen := map[int32]bool{}
			for _, list := range [][]int32{r.ids, ahead} {
				for _, id := range list {
					if seen[id] {
						continue
					}
					seen[id] = true
					if logits[id] > 0 {
						logits[id] /= float32(p.RepetitionPenalty)
					} else {
						logits[id] *= float32(p.RepetitionPenalty)
					}
				}
			}
		}
	}
	if r.generated()+len(ahead) < p.MinNewTokens {
		for id := range r.stops {
			if id >= 0 && int(id) < len(logits) { // nothing says that a stop is a token
				logits[id] = minusInf
			}
		}
	}
}

// countsWith returns the output's token counts with ahead added.
func (r *request) countsWith(ahead []int32) map[int32]int {
	if len(ahead) == 0 {
		return r.counts
	}
	counts := make(map[int32]int, len(r.counts)+len(ahead))
	for id, n := range r.counts {
		counts[id] = n
	}
	for _, id := range ahead {
		counts[id]++
	}
	return counts
}

// stopString finds a stop string in the text of the last tokens.
func (r *request) stopString(tok Tokenizer) (string, bool) {
	if tok == nil || len(r.sampling.Stop) == 0 {
		return "", false
	}
	longest := 0
	for _, s := range r.sampling.Stop {
		longest = max(longest, len(s))
	}
	// A token is at least one byte, so a match that this token completes begins at
	// most that many tokens back; one more covers a character cut in two.
	tail := tok.Decode(r.ids[max(r.prompt, len(r.ids)-longest-1):], false)
	for _, s := range r.sampling.Stop {
		if s != "" && strings.Contains(tail, s) {
			return s, true
		}
	}
	return "", false
}
