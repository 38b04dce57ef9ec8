package rollout

import "encoding/json"

// RunSpec is all that a worker must know of a run. The controller puts it in the
// run table; it holds no secret.
type RunSpec struct {
	Run  string
	Seed int64
	// Mode is "direct" or "session".
	Mode  string
	Model ModelSpec
	// Reward says how episodes are scored.
	Reward RewardSpec
	// Slots is how many episodes a worker runs at once unless it was told
	// otherwise.
	Slots int
	// MaxAttempts is the number of leases after which a job counts as poison and
	// its episodes fail.
	MaxAttempts int
}

// ModelSpec names the model whose tokenizer and chat template a worker loads.
type ModelSpec struct {
	// Path is the model's folder; Hash is over its tokenizer and template, and a
	// worker whose own folder hashes otherwise refuses to join.
	Path           string
	Hash           string
	Family         string
	TemplateKwargs map[string]json.RawMessage
}

// RewardSpec configures a verifier.
type RewardSpec struct {
	Type string
}

// EngineState is where an engine stands. Only the controller writes it.
type EngineState string

// Engine states.
const (
	EngineProbing  EngineState = "probing"
	EngineServing  EngineState = "serving"
	EngineDraining EngineState = "draining"
	EngineDead     EngineState = "dead"
)

// EngineEntry is one row of the run's engine table.
type EngineEntry struct {
	ID    string
	URL   string
	Owner string
	// Incarnation counts restarts of the engine behind the URL.
	Incarnation     uint64
	RequiredVersion *uint64
	State           EngineState
	// Deterministic says that the engine honours sampling_seed.
	Deterministic bool
	// Speculative says that it decodes speculatively; nil = unknown.
	Speculative *bool
	// Version is the engine's own, as it reports it; "" when it does not.
	Version string
	// MaxInflight bounds concurrent requests over all workers; 0 = unbounded.
	MaxInflight int
}
