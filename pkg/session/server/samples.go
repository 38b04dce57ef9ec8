package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/sheaf-rl/sheaf/pkg/session"
)

// sampleJSON is a sample under the field names of slime and miles.
type sampleJSON struct {
	Tokens         []int32    `json:"tokens"`
	ResponseLength int        `json:"response_length"`
	LossMask       []int      `json:"loss_mask"`
	LogProbs       []float32  `json:"rollout_log_probs"`
	Status         string     `json:"status"`
	Versions       []spanJSON `json:"weight_versions"`
	Spec           specJSON   `json:"spec_info"`
	Prefix         prefixJSON `json:"prefix_cache_info"`
	Untrainable    string     `json:"untrainable,omitempty"`
	Generations    []string   `json:"generations"`
	Leaf           int        `json:"leaf"`
	Turns          int        `json:"turns"`
}

type spanJSON struct {
	Version string `json:"version"`
	Start   int64  `json:"start"`
	End     int64  `json:"end"`
}

// specJSON and prefixJSON are null where no engine counted.
type specJSON struct {
	Verify     *int64 `json:"spec_verify_ct"`
	Correct    *int64 `json:"spec_accept_token_num"`
	Proposed   *int64 `json:"spec_draft_token_num"`
	Completion *int64 `json:"completion_token_num"`
}

type prefixJSON struct {
	Cached *int64 `json:"cached_tokens"`
	Prompt *int64 `json:"total_prompt_tokens"`
}

// samples assembles what a session has. Turns may go on meanwhile.
func (s *Server) samples(w http.ResponseWriter, r *http.Request) {
	sess, err := s.cfg.Store.Get(r.PathValue("id"))
	if err != nil {
		refuse(w, http.StatusNotFound, "session_not_found", err.Error())
		return
	}
	data, free, err := s.body(w, r)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer free()
	var req struct {
		MaxSeqLen int `json:"max_seq_len"`
	}
	if len(trim(data)) > 0 {
		if err := json.Unmarshal(data, &req); err != nil {
			s.fail(w, fmt.Errorf("%w: %w", session.ErrBadRequest, err))
			return
		}
	}
	leaves, err := sess.Assemble(req.MaxSeqLen)
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, "assembly_failed", err.Error())
		return
	}
	out := map[string]any{"samples": []sampleJSON{}}
	switch {
	case len(leaves) > 0:
		list := make([]sampleJSON, len(leaves))
		for i, l := range leaves {
			list[i] = sampleOf(l)
		}
		out["samples"] = list
	case sess.Stats().Turns == 0:
		out["empty_reason"] = "no_records"
	default:
		out["empty_reason"] = "all_truncated"
	}
	writeJSON(w, http.StatusOK, out)
}

func sampleOf(l session.Leaf) sampleJSON {
	s := l.Sample
	out := sampleJSON{
		Tokens: s.Tokens(), ResponseLength: s.ResponseLen(), LogProbs: s.LogProbs(), Status: string(s.Status()),
		LossMask: make([]int, s.ResponseLen()), Versions: []spanJSON{}, Untrainable: s.Untrainable(), Generations: s.Generations(),
		Spec:   specJSON{s.Spec().Verify, s.Spec().Correct, s.Spec().Proposed, s.Spec().Completion},
		Prefix: prefixJSON{s.Prefix().Cached, s.Prefix().Prompt},
		Leaf:   l.Node, Turns: l.Turns,
	}
	for i, m := range s.LossMask() {
		out.LossMask[i] = int(m)
	}
	for _, v := range s.Versions() {
		out.Versions = append(out.Versions, spanJSON(v))
	}
	return out
}
