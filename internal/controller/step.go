package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
)

// wave is a planned wave with what came of it.
type wave struct {
	plan     rollout.Plan
	jobs     []rollout.Job
	receipts []bus.Receipt // one per episode, in order of group and episode
}

func (w *wave) episodes() int {
	n := 0
	for _, j := range w.jobs {
		n += len(j.Episodes)
	}
	return n
}

// maxRepairs bounds how often a step is gathered anew because stored results
// turned out to be damaged: a store that keeps losing them needs a person.
const maxRepairs = 5

// step does the next step, from its waves in the ledger where it has some.
func (c *Controller) step(ctx context.Context, state rollout.RunState) error {
	started := time.Now()
	var waves []*wave
	var loaded *results
	for repairs := 0; ; repairs++ {
		var err error
		if waves, err = c.gather(ctx, state.NextStep); err != nil {
			return err
		}
		c.board.phase(PhaseReducing)
		loaded, err = c.load(ctx, waves)
		if err == nil {
			break
		}
		var damaged *bus.Damaged
		if !errors.As(err, &damaged) || repairs == maxRepairs {
			return err
		}
		// To a controller that was replaced, results that its successor trimmed look
		// damaged.
		if err := c.Config.Run.Held(ctx); err != nil {
			return err
		}
		if err := c.regenerate(ctx, damaged); err != nil {
			return err
		}
	}
	for _, f := range loaded.failures {
		if !c.told[f.Key()] {
			c.told[f.Key()] = true
			c.Observer.Failed(f)
		}
	}
	if err := loaded.allFailed(); err != nil && !c.AllowEmptySteps {
		if err := c.drop(ctx, lastTries(waves)); err != nil {
			return err
		}
		return fmt.Errorf("step %d: %w; correct the cause and start the run again, which runs these episodes again, or allow such steps with rollout.allow_empty_steps: true", state.NextStep, err)
	}
	waste, wasteSeen, err := c.Config.Run.Waste(ctx, state.WasteSeen)
	if err != nil {
		return err
	}
	workers, err := c.Config.Run.Workers(ctx)
	if err != nil {
		return err
	}
	window := step.Window{Started: started, Finished: time.Now(), Waste: loaded.superseded, Retried: loaded.retried()}
	for _, w := range waste {
		window.Waste = append(window.Waste, step.Waste{Reason: w.Reason, Generations: w.Generations})
	}
	for _, w := range workers {
		window.Slots += w.Slots
	}
	cfg := c.Config.Step
	cfg.Step = state.NextStep
	c.meter(ctx, &cfg, &window)
	groups := step.Dispose(cfg, loaded.groups)
	result, err := step.Reduce(cfg, groups, window)
	if err != nil {
		return err
	}
	dir, files, err := writeStep(c.Dir, c.Codec, cfg, groups, result)
	if err != nil {
		return err
	}
	if err := c.metrics.step(result.Report); err != nil {
		return err
	}
	c.board.phase(PhaseCommitting)
	manifest := rollout.Manifest{Step: cfg.Step, Files: files, WasteSeen: wasteSeen}
	for _, w := range waves {
		for _, r := range w.receipts {
			manifest.Items = append(manifest.Items, rollout.ManifestItem{Episode: r.Episode, Sequence: r.Sequence, SHA256: r.SHA256})
		}
	}
	if err := c.Config.Run.Commit(ctx, manifest); err != nil {
		return err
	}
	c.board.mu.Lock()
	c.board.last = result.Report
	c.board.mu.Unlock()
	c.Observer.StepDone(cfg.Step, dir, result)
	return nil
}

// gather plans the step's waves, queues their jobs and waits for their results:
// first the wave of new groups, then, as long as budgets allow, waves that run
// failed episodes again. Waves that the ledger has already are taken up.
func (c *Controller) gather(ctx context.Context, n int64) ([]*wave, error) {
	var plans []rollout.Plan
	for _, p := range c.Config.Run.Open() {
		if p.Step == n {
			plans = append(plans, p)
		}
	}
	var waves []*wave
	for {
		if len(waves) == len(plans) {
			p, more := c.next(n, waves)
			if !more {
				return waves, nil
			}
			if err := c.Config.Run.Plan(ctx, p); err != nil {
				return nil, err
			}
			plans = append(plans, p)
		}
		w, err := c.run(ctx, plans[len(waves)])
		if err != nil {
			return nil, err
		}
		waves = append(waves, w)
	}
}

// next is the plan that the step needs after the given waves; more is false when
// it needs none.
func (c *Controller) next(n int64, waves []*wave) (p rollout.Plan, more bool) {
	state := c.Config.Run.State()
	p = rollout.Plan{
		Wave: state.NextWave, Step: n, FirstGroup: state.NextGroup, FirstPosition: state.Cursor, Episodes: c.Episodes,
	}
	if len(waves) == 0 {
		p.Groups = c.Groups
		return p, true
	}
	p.Retry = c.retry(waves)
	return p, len(p.Retry) > 0
}

// retry lists the failed episodes that may run again. An episode's last result
// counts, and the waves that hold it are its tries.
func (c *Controller) retry(waves []*wave) []rollout.RetryGroup {
	type key struct {
		group int64
		index int
	}
	last, tries := map[key]bus.Receipt{}, map[key]int{}
	for _, w := range waves {
		for _, r := range w.receipts {
			k := key{r.Episode.Group, r.Episode.Index}
			last[k] = r
			tries[k]++
		}
	}
	var groups []rollout.RetryGroup
	first := waves[0].plan
	for i, j := range waves[0].jobs {
		g := rollout.RetryGroup{Group: j.Group, Position: first.FirstPosition + int64(i)}
		for _, e := range j.Episodes {
			k := key{j.Group, e}
			if r := last[k]; r.Outcome == rollout.OutcomeFailed && r.Retryable && tries[k] <= c.Retries.Budget(r.Failure) {
				g.Episodes = append(g.Episodes, e)
			}
		}
		if len(g.Episodes) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// run queues a wave's jobs and waits for their results.
func (c *Controller) run(ctx context.Context, p rollout.Plan) (*wave, error) {
	w := &wave{plan: p}
	var err error
	if w.jobs, err = c.jobs(p); err != nil {
		return nil, err
	}
	c.board.phase(PhaseQueueing)
	c.board.update(func(s *Status) { s.Step, s.Episodes, s.Stored = p.Step, w.episodes(), 0 })
	if len(p.Retry) == 0 {
		c.Observer.StepStarted(p.Step, w.episodes())
	} else {
		c.Observer.Retrying(p.Step, w.episodes())
	}
	if err := c.Config.Run.Submit(ctx, w.jobs); err != nil {
		return nil, err
	}
	c.board.phase(PhaseCollecting)
	w.receipts, err = c.collect(ctx, w)
	return w, err
}

// jobs are the jobs of a wave: a pure function of its plan.
func (c *Controller) jobs(p rollout.Plan) ([]rollout.Job, error) {
	todo := p.Retry
	if len(todo) == 0 {
		all := make([]int, p.Episodes)
		for e := range all {
			all[e] = e
		}
		for i := range int64(p.Groups) {
			todo = append(todo, rollout.RetryGroup{Group: p.FirstGroup + i, Position: p.FirstPosition + i, Episodes: all})
		}
	}
	jobs := make([]rollout.Job, len(todo))
	for i, g := range todo {
		prompt, err := c.Prompts.At(g.Position)
		if err != nil {
			return nil, err
		}
		jobs[i] = c.job(p, g, prompt)
	}
	return jobs, nil
}

func (c *Config) job(p rollout.Plan, g rollout.RetryGroup, prompt rollout.Prompt) rollout.Job {
	return rollout.Job{
		Run: c.RunName, Wave: p.Wave, Group: g.Group, Step: p.Step, Episodes: g.Episodes,
		FirstRolloutID: g.Group * int64(p.Episodes), Prompt: prompt, Sampling: c.Sampling,
		MaxContext: c.MaxContext, EpisodeDeadline: c.EpisodeDeadline,
	}
}

// results are a step's results, laid out.
type results struct {
	groups []rollout.Group
	// superseded are the generations of failed tries that were run again.
	superseded []step.Waste
	// failures are those of all tries, in order.
	failures []*rollout.Failure
}

func (r *results) retried() map[string]int {
	count := map[string]int{}
	for _, w := range r.superseded {
		count[w.Reason]++
	}
	return count
}

// load reads the results of all waves and lays the last one of each episode out
// in its group.
func (c *Controller) load(ctx context.Context, waves []*wave) (*results, error) {
	first := waves[0]
	out := &results{groups: make([]rollout.Group, len(first.jobs))}
	at := map[int64]int{}
	for i, j := range first.jobs {
		at[j.Group] = i
		out.groups[i] = rollout.Group{
			Wave: first.plan.Wave, Index: j.Group, Want: first.plan.Episodes, Prompt: j.Prompt,
			Episodes: make([]rollout.Episode, first.plan.Episodes),
		}
	}
	for _, w := range waves {
		episodes := make(map[rollout.EpisodeID]*rollout.Episode, len(w.receipts))
		err := c.Config.Run.Load(ctx, w.receipts, func(r bus.Receipt, e *rollout.Episode) error {
			episodes[r.Episode] = e
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, r := range w.receipts { // in order, whatever the order of loading
			g, ok := at[r.Episode.Group]
			if !ok || r.Episode.Index < 0 || r.Episode.Index >= first.plan.Episodes {
				return nil, fmt.Errorf("result of episode %+v is not of step %d", r.Episode, first.plan.Step)
			}
			slot := &out.groups[g].Episodes[r.Episode.Index]
			if slot.Failure != nil {
				out.superseded = append(out.superseded, step.Waste{Reason: slot.Failure.Key(), Generations: slot.Generations})
			}
			*slot = *episodes[r.Episode]
			if slot.Failure != nil {
				out.failures = append(out.failures, slot.Failure)
			}
		}
	}
	return out, nil
}

// regenerate throws damaged results away, so that their episodes run again.
func (c *Controller) regenerate(ctx context.Context, d *bus.Damaged) error {
	c.Log.Error("stored results are damaged; their episodes run again", "results", len(d.Receipts), "err", d.Err)
	if err := c.drop(ctx, d.Receipts); err != nil {
		return err
	}
	return c.metrics.event(event{Kind: "event", Event: "damaged_results_regenerated", Epoch: c.Config.Run.State().Epoch, Step: c.Config.Run.State().NextStep, Count: len(d.Receipts)})
}

// drop removes stored results, so that their episodes run again.
func (c *Controller) drop(ctx context.Context, receipts []bus.Receipt) error {
	for _, r := range receipts {
		if err := c.Config.Run.Drop(ctx, r); err != nil {
			return err
		}
		delete(c.receipts, r.Episode)
	}
	c.refollow.fire() // an episode may be stored elsewhere already
	return nil
}
