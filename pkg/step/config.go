package step

import (
	"time"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Estimator names the advantage estimator that the trainer uses. It decides how
// rewards are normalised and which metrics make sense.
type Estimator string

// Estimators.
const (
	GRPO              Estimator = "grpo"
	GSPO              Estimator = "gspo"
	CISPO             Estimator = "cispo"
	ReinforceBaseline Estimator = "reinforce_plus_plus_baseline"
	Reinforce         Estimator = "reinforce_plus_plus"
	PPO               Estimator = "ppo"
)

// Filter names a dynamic filter: a rule that drops whole groups.
type Filter string

// Filters.
const (
	// FilterNone keeps every group.
	FilterNone Filter = "none"
	// FilterNonzeroStd drops groups whose rewards do not differ: they teach
	// nothing to a group-relative estimator.
	FilterNonzeroStd Filter = "nonzero_std"
	// FilterNoAborted drops groups in which an episode was aborted.
	FilterNoAborted Filter = "no_aborted"
)

// Config says what a step is made of and how it is reduced.
type Config struct {
	Run  string
	Step int64
	// Epoch counts the trainer's attaches. WeightVersion is the version that the
	// step trains; nil when the run is unmanaged.
	Epoch         uint64
	WeightVersion *uint64

	// BatchSize is the number of groups in a batch; 0 takes all.
	BatchSize int
	// SamplesPerPrompt is the number of episodes planned for each group.
	SamplesPerPrompt int
	// MinValid is the number of episodes that must have something to train on for
	// a group to count; 0 means all that were wanted.
	MinValid int
	Filter   Filter
	// Partial says that aborted episodes are continued later: they are recycled
	// instead of discarded.
	Partial bool

	Estimator Estimator
	// Normalize subtracts the group's mean reward; StdNormalize also divides by
	// its standard deviation, where the estimator does that.
	Normalize    bool
	StdNormalize bool
	// MaskTruncated takes truncated samples out of the loss.
	MaskTruncated bool

	// Temperature is the sampling temperature, for the trainer's log-probs.
	Temperature float64
	// MaxContext is the bound on prompt plus response, in tokens; 0 = unknown.
	MaxContext int
	// GPUs is the number of GPUs that generate; 0 = unknown.
	GPUs int
	// Speculates says by engine id whether the engine decodes speculatively. An
	// engine that is missing may or may not.
	Speculates map[string]bool
	// Sessions says that episodes are agent sessions, for which the agent/ keys
	// are reported.
	Sessions bool
	// SkippedRows is how many bad rows of the prompts were left out; nil in a run
	// that leaves none out.
	SkippedRows *int
	// Category names a string in the samples' metadata by whose values samples
	// are counted (rollout/error_cat/…); "" for none.
	Category string
}

// Window is what a clock and the services said about the time in which the step
// was made. It feeds the perf/ keys, the timing section and the totals that no
// sample knows; the zero value knows nothing.
type Window struct {
	// Started and Finished bound the step's rollout: from the first job published
	// to the data being ready.
	Started, Finished time.Time
	// Slots is the number of episodes that could run at once.
	Slots int
	// TrainSeconds and TrainWaitSeconds are how long the trainer trained and how
	// long it waited for this step; nil when it did not say.
	TrainSeconds, TrainWaitSeconds *float64

	// Waste holds the generation records of attempts that no result carries:
	// fenced, killed or abandoned ones.
	Waste []Waste
	// Retried counts failed tries that were run again, by their failure's key. Their
	// generations are in Waste.
	Retried map[string]int
	// ProbeTokens counts completion tokens of probes and canaries.
	ProbeTokens int64
	// EngineTokens is the growth of the engines' own completion token counters
	// over the window; nil when it is not known of every engine.
	EngineTokens *int64

	// Queue describes the queue of finished groups of an asynchronous run; nil
	// for a synchronous one.
	Queue *Queue
}

// Seconds is the length of the window, 0 when it is not known.
func (w Window) Seconds() float64 {
	if w.Started.IsZero() || w.Finished.IsZero() {
		return 0
	}
	return w.Finished.Sub(w.Started).Seconds()
}

// Waste is what one attempt generated in vain.
type Waste struct {
	// Reason is a short snake_case word.
	Reason      string
	Generations []rollout.GenerationRecord
}

// Queue is the state of an asynchronous run's queue of finished groups. Staleness
// counts weight versions between a group's oldest token and the trainer.
type Queue struct {
	// Size is the number of groups left in the queue.
	Size int
	// Aborted and Stale count groups refused since the last step.
	Aborted, Stale int
	// Seen holds the staleness of every group looked at for this step, refused
	// ones included; Left that of the groups still queued.
	Seen, Left []int64
}
