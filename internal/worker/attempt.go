package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/reward"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// attempt is one try of one episode.
type attempt struct {
	w          *Worker
	job        rollout.Job
	index      int
	number     int
	promptIDs  []int32
	promptText string
	// taken is set by run when the work was taken from this worker, which is no
	// end of the episode.
	taken bool
}

// run returns the episode, ended one way or another, unless it was taken.
func (a *attempt) run(ctx context.Context, promptErr error) (e *rollout.Episode) {
	start := time.Now()
	e = &rollout.Episode{
		ID:        rollout.EpisodeID{Wave: a.job.Wave, Group: a.job.Group, Index: a.index},
		RolloutID: a.job.FirstRolloutID + int64(a.index), Attempt: a.number, Worker: a.w.ID,
	}
	// A fault in our own code costs this episode and shows in the report; the
	// other episodes of the worker go on.
	defer func() {
		if r := recover(); r != nil {
			a.w.Log.Error("an episode panicked", "job", a.job.ID(), "episode", a.index, "panic", r, "stack", string(debug.Stack()))
			fail(e, rollout.NewFailure(rollout.BoundaryWorker, "panic", false, fmt.Errorf("%v", r)))
		}
		e.Timing.Total = time.Since(start).Seconds()
	}()
	switch {
	case a.w.spec.MaxAttempts > 0 && a.number > a.w.spec.MaxAttempts:
		fail(e, rollout.NewFailure(rollout.BoundaryWorker, "poison", false,
			fmt.Errorf("%d leases of the job ended without its results", a.number-1)))
		return e
	case promptErr != nil:
		fail(e, rollout.NewFailure(rollout.BoundaryPrompt, "encode", false, promptErr))
		return e
	}
	bounded, cancel := context.WithTimeoutCause(ctx, a.job.EpisodeDeadline, errDeadline)
	defer cancel()
	play := a.direct
	if a.w.spec.Mode == rollout.ModeSession {
		play = a.session
	}
	failure := play(bounded, e)
	if failure != nil {
		a.taken = ctx.Err() != nil
		fail(e, failure)
	}
	return e
}

// fail ends the episode as failed. Its generations stay: they were paid for.
func fail(e *rollout.Episode, f *rollout.Failure) {
	e.Outcome, e.Failure, e.Samples = rollout.OutcomeFailed, f, nil
}

// direct generates one answer and scores it.
func (a *attempt) direct(ctx context.Context, e *rollout.Episode) *rollout.Failure {
	sampling := a.job.Sampling
	if a.job.MaxContext > 0 {
		sampling.MaxNewTokens = min(sampling.MaxNewTokens, a.job.MaxContext-len(a.promptIDs))
	}
	if sampling.MaxNewTokens <= 0 {
		return rollout.NewFailure(rollout.BoundaryPrompt, "too_long", false,
			fmt.Errorf("the prompt has %d tokens and max_context_len is %d", len(a.promptIDs), a.job.MaxContext))
	}
	gen, err := a.w.Engine.Generate(ctx, engine.Request{
		ID: engine.NewID(), PromptIDs: a.promptIDs, Sampling: sampling, VocabSize: a.w.Text.VocabSize(),
		Seed:       rollout.Ptr(rollout.SamplingSeed(a.w.spec.Seed, a.job.Group, a.index, 0)),
		RoutingKey: a.job.ID(), Attempt: a.number,
	})
	e.Generations = append(e.Generations, gen.GenerationRecord)
	e.Timing.Generation = gen.Seconds
	if err != nil {
		return engineFailure(ctx, err)
	}
	s := &rollout.Sample{SampleInfo: rollout.SampleInfo{
		GroupIndex: a.job.Group, Index: e.RolloutID, RolloutID: e.RolloutID,
		Prompt: a.promptText, Label: a.job.Prompt.Label, Metadata: a.job.Prompt.Metadata,
	}}
	if err := s.Append(gen); err != nil {
		return rollout.NewFailure(rollout.BoundaryEngine, "bad_reply", true, err)
	}
	s.Response = a.w.Text.Decode(s.ResponseTokens(), false)
	e.Samples = []*rollout.Sample{s}
	e.Outcome = rollout.OutcomeOf(s.Status())
	if e.Outcome == rollout.OutcomeAborted {
		return nil // there is nothing to score
	}
	return a.score(ctx, e, s)
}

func (a *attempt) score(ctx context.Context, e *rollout.Episode, s *rollout.Sample) *rollout.Failure {
	start := time.Now()
	res, err := a.w.Scorer.Score(ctx, reward.Input{
		Prompt: a.job.Prompt, Response: a.w.Text.Decode(s.ResponseTokens(), true),
	})
	e.Timing.Reward = time.Since(start).Seconds()
	if err != nil {
		return rewardFailure(ctx, err)
	}
	s.Reward = res.Reward
	return nil
}

// engineFailure is an engine's error as the episode records it. A call that the
// episode's own deadline ended says so.
func engineFailure(ctx context.Context, err error) *rollout.Failure {
	if errors.Is(context.Cause(ctx), errDeadline) {
		return rollout.NewFailure(rollout.BoundaryEngine, "episode_deadline", true, err)
	}
	var e *engine.Error
	if errors.As(err, &e) {
		return e.Failure()
	}
	return rollout.NewFailure(rollout.BoundaryEngine, "unknown", false, err)
}

func rewardFailure(ctx context.Context, err error) *rollout.Failure {
	if errors.Is(context.Cause(ctx), errDeadline) {
		return rollout.NewFailure(rollout.BoundaryReward, "episode_deadline", true, err)
	}
	return rollout.NewFailure(rollout.BoundaryReward, "error", false, err)
}
