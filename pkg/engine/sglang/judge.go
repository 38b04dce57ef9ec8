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
	nullLogProb     = "null_logprob"     // hazard 8
	missingLogProb  = "missing_logprob"  // hazards 3, 4, 5
	positiveLogProb = "positive_logprob" // hazard 40
	// unknownToken: an id that our tokenizer has no token for. Models have a few
	// more rows than tokens, so an engine may well sample one; the text does not
	// show it, and a trainer may not have it (hazard 39).
	unknownToken = "unknown_token"
	// promptDiffers: the engine counts another number of prompt tokens than it was
	// given, as one does that may truncate prompts. What it answered is not known.
	promptDiffers = "prompt_differs"
)

// noise is what rounding may add to a log-prob of 0.
const noise = 1e-3

func bad(format string, args ...any) *engine.Error {
	return &engine.Error{Reason: engine.BadReply, Err: fmt.Errorf(format, args...)}
}

// judge turns a complete reply into the rest of a generation. Of a reply that it
// refuses, the record keeps how it ended and how many ids came: those were paid
// for, and nothing else in it can be believed.
func judge(r *reply, req *engine.Request, g *rollout.Generation) *engine.Error {
	if !r.hasIDs {
		r.ids = append(r.ids[:0], r.probIDs...)
	}
	g.OutputLen = len(r.ids)
	fault := judgeReply(r, req, g)
	if fault != nil {
		g.Meta, g.Untrainable = rollout.EngineMeta{Finish: g.Meta.Finish}, ""
	}
	return fault
}

func judgeReply(r *reply, req *engine.Request, g *rollout.Generation) *engine.Error {
	if r.fault != nil {
		return &engine.Error{Reason: reasonOfStatus(r.fault.Code, engine.Rejected), Status: r.fault.Code, Err: errors.New(r.fault.Message)}
	}
	meta, err := r.meta.engineMeta()
	g.Meta = meta
	if err != nil {
		return bad("meta_info contradicts itself: %w", err)
	}
	if id := r.meta.ID; id != nil && *id != req.ID {
		g.OutputLen = 0 // that request's
		return bad("the reply belongs to request %q, not to %q", *id, req.ID)
	}
	if r.meta.Finish == nil { // hazard 32
		return bad("the reply has no finish reason, so it is not complete")
	}
	if meta.Finish.Type == rollout.FinishAbort {
		return judgeAbort(r, req, g)
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
	return judgeTokens(r, req, g)
}

// judgeTokens checks that ids, log-probs, versions and counts fit each other and
// what was asked for, and copies them.
func judgeTokens(r *reply, req *engine.Request, g *rollout.Generation) *engine.Error {
	ids := r.ids
	if n := g.Meta.CompletionTokens; n != nil && *n != int64(len(ids)) { // hazard 6
		return bad("the reply has %d token ids and counts %d", len(ids), *n)
	}
	if most := req.Sampling.MaxNewTokens; len(ids) > most { // hazard 39
		return bad("the reply has %d token ids and at most %d were asked for", len(ids), most)
	}
	// A reply that is wrong of its weights cannot be corrected for them, and what
	// it says in place of it is the version at the end only (hazards 15 and 38).
	if err := rollout.CheckSpans(g.Meta.WeightVersions, len(ids)); err != nil {
		return bad("meta_info contradicts the token ids: %w", err)
	}
	if len(r.probs) != len(ids) { // hazards 3, 4, 5, 6
		g.LogProbs = make([]float32, len(ids))
		keepOut(g, missingLogProb)
	} else {
		if !slices.Equal(r.probIDs, ids) {
			return bad("the log-probs are of other token ids than the reply's")
		}
		g.LogProbs = slices.Clone(r.probs)
		for i, p := range g.LogProbs {
			switch {
			case isMissing(p):
				g.LogProbs[i] = 0
				keepOut(g, nullLogProb)
			case p > noise:
				keepOut(g, positiveLogProb)
			}
		}
	}
	g.OutputIDs = slices.Clone(ids)
	if size := req.VocabSize; size > 0 && slices.ContainsFunc(ids, func(id int32) bool { return int(id) >= size }) {
		keepOut(g, unknownToken)
	}
	believe(&g.Meta, int64(len(req.PromptIDs)), int64(len(ids)))
	return nil
}

// keepOut takes the tokens out of the loss. The first reason stands.
func keepOut(g *rollout.Generation, reason string) {
	if g.Untrainable == "" {
		g.Untrainable = reason
	}
}

// judgeAbort takes what an aborted request left behind, which may be nothing
// (hazards 9 and 10). An abort with a status is the engine's own error, and its
// counts mean nothing (hazard 35).
func judgeAbort(r *reply, req *engine.Request, g *rollout.Generation) *engine.Error {
	if status := g.Meta.Finish.StatusCode; status != nil {
		return &engine.Error{
			Reason: reasonOfStatus(int(*status), engine.Faulty), Status: int(*status),
			Err: fmt.Errorf("the engine ended the request: %s", g.Meta.Finish.Message),
		}
	}
	if judgeTokens(r, req, g) != nil || g.Untrainable == missingLogProb {
		// What came does not fit together; the tokens are lost, and counted. The
		// engine may repeat its last id only, so it can have made more than came.
		g.OutputIDs, g.LogProbs, g.Meta.WeightVersions = nil, nil, nil
		believe(&g.Meta, int64(len(req.PromptIDs)), int64(req.Sampling.MaxNewTokens))
		if g.OutputLen > 0 {
			g.Untrainable = missingLogProb
		}
	}
	g.Fate = rollout.FateAborted
	return nil
}
