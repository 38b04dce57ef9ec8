package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/reward"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/session"
)

// Sessions is what a worker needs to play episodes through agents.
type Sessions struct {
	Store  *session.Store
	Family *chat.Family
	// BaseURL is where agents reach the session server.
	BaseURL string
	Agent   Agent
	// Model is the name that agents ask for; any is served.
	Model string
}

// errAgentDeadline is the cause with which an agent's time ends, before that of its
// episode: what is left is for assembly and scoring.
var errAgentDeadline = errors.New("agent deadline")

// agentShare is the part of an episode's time that is the agent's.
const agentShare = 0.9

// session plays one episode: an agent talks to a session of its own, and what the
// session holds at the end becomes the samples, however the agent ended.
//
//	open ──> agent plays ──> close (what runs is cancelled) ──> assemble ──> score
func (a *attempt) session(ctx context.Context, e *rollout.Episode) *rollout.Failure {
	spec := a.w.spec.Session
	sess, err := a.w.Sessions.Store.Open(a.sessionConfig(spec))
	if err != nil {
		return rollout.NewFailure(rollout.BoundarySession, "open", true, err)
	}
	// The session is over before its records are read, so that all are there.
	start := time.Now()
	res, status, playErr := a.play(ctx, sess)
	if err := a.w.Sessions.Store.Delete(sess.ID()); err != nil {
		sess.Close()
	}
	elapsed := time.Since(start)
	e.Generations = sess.Records()
	for _, g := range e.Generations {
		e.Timing.Generation += g.Seconds
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errDeadline) {
		return rollout.NewFailure(rollout.BoundaryAgent, "cancelled", true, context.Cause(ctx))
	}
	stats := sess.Stats()
	if status == "" && stats.Overflowed {
		status = ContextExceeded
	}
	treat := treatmentOf(spec.ExitStatus, status)
	if treat == drop || treat == retry {
		return rollout.NewFailure(rollout.BoundaryAgent, string(status), treat == retry, playErr)
	}
	leaves, err := sess.Assemble(spec.MaxSeqLen)
	switch {
	case err != nil:
		return rollout.NewFailure(rollout.BoundarySession, "assembly", false, err)
	case len(leaves) == 0 && playErr != nil:
		return rollout.NewFailure(rollout.BoundaryAgent, string(status), false, playErr)
	case len(leaves) == 0:
		return a.empty(e, stats)
	}
	if spec.MaxSamples > 0 && len(leaves) > spec.MaxSamples {
		a.w.Log.Warn("an episode made more samples than allowed", "job", a.job.ID(), "episode", a.index, "samples", len(leaves), "kept", spec.MaxSamples)
		leaves = leaves[:spec.MaxSamples]
	}
	if err := a.fill(e, sess, leaves, res, status, treat, elapsed-stats.Busy); err != nil {
		return rollout.NewFailure(rollout.BoundaryAgent, "metadata", false, err)
	}
	return a.reward(ctx, e, leaves, res, spec)
}

// empty says why an agent's session holds nothing.
func (a *attempt) empty(e *rollout.Episode, stats session.Stats) *rollout.Failure {
	for _, g := range e.Generations {
		if g.Failure != nil {
			return g.Failure
		}
	}
	if stats.Overflowed {
		return rollout.NewFailure(rollout.BoundaryPrompt, "too_long", false, errors.New("the first prompt left no room for a reply"))
	}
	return rollout.NewFailure(rollout.BoundaryAgent, "no_turns", false, errors.New("the agent ended without a turn"))
}

func (a *attempt) sessionConfig(spec *rollout.SessionSpec) session.Config {
	limit := spec.MaxSeqLen
	if a.job.MaxContext > 0 && (limit == 0 || a.job.MaxContext < limit) {
		limit = a.job.MaxContext
	}
	return session.Config{
		Family: a.w.Sessions.Family, Engine: a.w.Engine, Sampling: a.job.Sampling, Kwargs: a.w.spec.Model.TemplateKwargs,
		Matcher: session.Matcher(spec.Matcher), Linear: spec.Linear, MaxSeqLen: limit, MaxTurns: spec.MaxTurns,
		Seed: func(turn int) int64 {
			return rollout.SamplingSeed(a.w.spec.Seed, a.job.Group, a.index, turn)
		},
		RoutingKey: fmt.Sprintf("%s/%d", a.job.ID(), a.index), Attempt: a.number, TTL: spec.TTL, VocabSize: a.w.Text.VocabSize(),
	}
}

// play lets the agent talk until it is done or its time is over.
func (a *attempt) play(ctx context.Context, sess *session.Session) (AgentResult, ExitStatus, error) {
	allowed := time.Duration(float64(a.job.EpisodeDeadline) * agentShare)
	ctx, cancel := context.WithTimeoutCause(ctx, allowed, errAgentDeadline)
	defer cancel()
	deadline, _ := ctx.Deadline()
	base := a.w.Sessions.BaseURL + "/sessions/" + sess.ID()
	p := a.job.Prompt
	return a.w.Sessions.Agent.Play(ctx, AgentTask{
		SessionID: sess.ID(), BaseURL: base, OpenAIBaseURL: base + "/v1", APIKey: sess.ID(), Model: a.w.Sessions.Model,
		Prompt: p.Text, Messages: p.Messages, Tools: p.Tools, Label: p.Label, Metadata: p.Metadata, Deadline: deadline,
		Run: a.job.Run, Group: a.job.Group, Episode: a.index, Attempt: a.number,
	})
}

// fill makes the episode's samples of the leaves.
func (a *attempt) fill(e *rollout.Episode, sess *session.Session, leaves []session.Leaf, res AgentResult, status ExitStatus, treat treatment, outside time.Duration) error {
	toolTime := max(0, outside.Seconds())
	if res.AgentMetrics.ToolTime != nil {
		toolTime = *res.AgentMetrics.ToolTime
	}
	for _, l := range leaves {
		s := l.Sample
		metadata, err := a.metadata(sess, l, res, status)
		if err != nil {
			return err
		}
		text := a.w.Text.Decode(s.Tokens()[:s.PromptLen()], false)
		s.SampleInfo = rollout.SampleInfo{
			GroupIndex: a.job.Group, Index: e.RolloutID, RolloutID: e.RolloutID, Prompt: text,
			Response: a.w.Text.Decode(s.ResponseTokens(), false), Label: a.job.Prompt.Label, Metadata: metadata,
			NonGenerationTime: toolTime, Remove: treat == mask,
		}
		e.Samples = append(e.Samples, s)
	}
	e.Outcome = rollout.OutcomeOf(e.Samples[0].Status())
	if status == ContextExceeded {
		e.Outcome = rollout.OutcomeTruncated
	}
	return nil
}

// mismatch is one entry of the comparison of a sample's tokens with its messages, as
// the step metrics read it.
type mismatch struct {
	Type     chat.MismatchKind `json:"type"`
	Segment  int               `json:"segment"`
	Expected string            `json:"expected"`
	Actual   string            `json:"actual"`
}

// metadata is the prompt's, with what the session and the agent say. The agent's own
// words stand under a key of their own, so that they hide none of ours.
func (a *attempt) metadata(sess *session.Session, l session.Leaf, res AgentResult, status ExitStatus) (json.RawMessage, error) {
	all := map[string]any{}
	if own := a.job.Prompt.Metadata; len(own) > 0 {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(own, &fields); err != nil {
			return nil, fmt.Errorf("the prompt's metadata: %w", err)
		}
		for k, v := range fields {
			all[k] = v
		}
	}
	found, ok, err := sess.Mismatches(l.Node)
	if err != nil {
		a.w.Log.Warn("a session's tokens cannot be compared with its messages", "job", a.job.ID(), "episode", a.index, "err", err)
	}
	if ok {
		list := []mismatch{}
		for _, m := range found {
			list = append(list, mismatch{m.Kind, m.Segment, m.Expected, m.Actual})
		}
		all["tito_session_mismatch"] = list
	}
	if status != "" {
		all["exit_status"] = status
	}
	said := map[string]any{}
	if len(res.Metadata) > 0 {
		said["metadata"] = res.Metadata
	}
	if len(res.Artifacts) > 0 {
		said["artifacts"] = res.Artifacts
	}
	if len(said) > 0 {
		all["agent"] = said
	}
	return json.Marshal(all)
}

// reward takes the agent's reward, or asks the verifier about the last reply of the
// longest conversation. Samples of one episode share it.
func (a *attempt) reward(ctx context.Context, e *rollout.Episode, leaves []session.Leaf, res AgentResult, spec *rollout.SessionSpec) *rollout.Failure {
	value := res.Reward
	if value == nil && a.w.Scorer != nil {
		start := time.Now()
		scored, err := a.w.Scorer.Score(ctx, reward.Input{Prompt: a.job.Prompt, Response: leaves[0].Reply})
		e.Timing.Reward = time.Since(start).Seconds()
		if err != nil {
			return rewardFailure(ctx, err)
		}
		value = scored.Reward
	}
	if value == nil {
		return nil
	}
	share := *value
	if spec.DivideReward {
		share /= float64(len(e.Samples))
	}
	for _, s := range e.Samples {
		s.Reward = rollout.Ptr(share)
	}
	return nil
}
