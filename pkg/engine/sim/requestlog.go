package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// requestLog writes a line of JSON per request that ended: what was generated,
// whatever became of the reply. It is the engine's own testimony, for those who
// check a client's books from outside.
//
// A line is written, in one call, before the reply can leave. So a client never
// holds tokens that the log does not have, also where the engine is killed.
type requestLog struct {
	out io.Writer // nil = none
	log *slog.Logger
}

// requestLine is a request that ended. Scripted faults change replies, and not
// what is said here.
type requestLine struct {
	RID      string       `json:"rid"`
	Seed     *int64       `json:"sampling_seed"`
	Prompt   []int32      `json:"prompt_ids"`
	Output   []int32      `json:"output_ids"`
	LogProbs []float32    `json:"logprobs"`
	Cached   int          `json:"cached_tokens"`
	Verify   int          `json:"spec_verify_ct"`
	Correct  int          `json:"spec_correct"`
	Proposed int          `json:"spec_proposed"`
	Versions []versionLog `json:"versions"`
	Finish   finishKind   `json:"finish"`
	Received int64        `json:"received_ns"`
	Finished int64        `json:"finished_ns"`
}

// versionLog says which weights made the output from a token on.
type versionLog struct {
	Version string `json:"version"`
	Start   int    `json:"start"`
}

func (l *requestLog) write(r *request) {
	if l.out == nil {
		return
	}
	line := requestLine{
		RID: r.rid, Seed: r.sampling.SamplingSeed, Prompt: r.ids[:r.prompt], Output: r.ids[r.prompt:], LogProbs: r.logprobs,
		Cached: r.cached, Verify: r.verify, Correct: r.correct, Proposed: r.proposed, Versions: []versionLog{},
		Finish: r.finish.kind, Received: r.received.UnixNano(), Finished: r.finished.UnixNano(),
	}
	for _, s := range r.spans {
		line.Versions = append(line.Versions, versionLog{s.version, s.start})
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	if err != nil {
		l.log.Error("the request log has a gap", "rid", r.rid, "err", fmt.Errorf("write request log: %w", err))
	}
}
