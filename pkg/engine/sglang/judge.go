package sglang

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Reasons for which tokens must not be trained on.
const (
	nullLogProb    = "null_logprob"    // hazard 8
	missingLogProb = "missing_logprob" // hazards 3, 4, 5
	// promptDiffers: the engine counts another number of prompt tokens than it was
	// given, as one does that may truncate prompts. What it answered is not known.
	promptDiffers = "prompt_differs"
)

// judge turns a complete reply into the rest of a generation. The meta data is
// filled in also when it returns an error: the engine did spend those tokens.
func judge(r *reply, req *engine.Request, g *rollout.Generation) *engine.Error {
	bad := func(format string, args ...any) *engine.Error {
		return &engine.Error{Reason: engine.BadReply, Err: fmt.Errorf(format, args...)}
	}
	if r.fault != nil {
		return &engine.Error{Reason: reasonOfStatus(r.fault.Code, engine.Rejected), Status: r.fault.Code, Err: errors.New(r.fault.Message)}
	}
	meta, err := r.meta.engineMeta()
	g.Meta = meta
	if err != nil {
		return bad("meta_info contradicts itself: %w", err)
	}
	if id := r.meta.ID; id != nil && *id != req.ID {
		return bad("the reply belongs to request %q, not to %q", *id, req.ID)
	}
	if r.meta.Finish == nil { // hazard 32
		return bad("the reply has no finish reason, so it is not complete")
	}
	if meta.Finish.Type == rollout.FinishAbort {
		return judgeAbort(r, g)
	}
	if _, ok := meta.Finish.Status(); !ok {
		return bad("unknown finish reason %q", meta.Finish.Type)
	}
	if text := meta.Finish.MatchedText; text != "" && !slices.Contains(req.Sampling.Stop, text) { // hazard 36
		return &engine.Error{Reason: engine.Faulty, Err: fmt.Errorf("the engine stopped on %q, which is none of our stops: it met an error of its own", text)}
	}
	if n := meta.PromptTokens; n != nil && *n != int64(len(req.PromptIDs)) {
		g.Untrainable = promptDiffers
	}
	return judgeTokens(r, g)
}

// judgeTokens checks that ids, log-probs and count are of one length, and copies
// them (hazards 1, 3 and 6).
func judgeTokens(r *reply, g *rollout.Generation) *engine.Error {
	ids := r.ids
	if !r.hasIDs {
		ids = r.probIDs
	}
	if n := g.Meta.CompletionTokens; n != nil && *n != int64(len(ids)) {
		return &engine.Error{Reason: engine.BadReply, Err: fmt.Errorf("the reply has %d token ids and counts %d", len(ids), *n)}
	}
	g.OutputIDs = slices.Clone(ids)
	g.OutputLen = len(ids)
	switch {
	case len(r.probs) != len(ids):
		g.LogProbs = make([]float32, len(ids))
		g.Untrainable = missingLogProb
	case !slices.Equal(r.probIDs, ids):
		g.OutputIDs = nil
		return &engine.Error{Reason: engine.BadReply, Err: errors.New("the log-probs are of other token ids than the reply's")}
	default:
		g.LogProbs = slices.Clone(r.probs)
		for i, p := range g.LogProbs {
			if isMissing(p) {
				g.LogProbs[i] = 0
				g.Untrainable = nullLogProb
			}
		}
	}
	return nil
}

// judgeAbort takes what an aborted request left behind, which may be nothing
// (hazards 9 and 10). An abort with a status is the engine's own error, and its
// counts mean nothing (hazard 35).
func judgeAbort(r *reply, g *rollout.Generation) *engine.Error {
	if status := g.Meta.Finish.StatusCode; status != nil {
		g.Meta.PromptTokens, g.Meta.CachedTokens, g.Meta.CompletionTokens, g.Meta.ReasoningTokens = nil, nil, nil, nil
		g.Meta.Spec = rollout.SpecMeta{}
		return &engine.Error{
			Reason: reasonOfStatus(int(*status), engine.Faulty), Status: int(*status),
			Err: fmt.Errorf("the engine ended the request: %s", g.Meta.Finish.Message),
		}
	}
	if judgeTokens(r, g) != nil || g.Untrainable == missingLogProb {
		// What came does not fit together; the tokens are lost, and counted.
		g.OutputIDs, g.LogProbs = nil, nil
		g.OutputLen = len(r.ids)
		if g.OutputLen > 0 {
			g.Untrainable = missingLogProb
		}
	}
	g.Fate = rollout.FateAborted
	return nil
}
