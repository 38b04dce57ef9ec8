package rollout

import (
	"encoding/json"
	"time"
)

// Modes of a run.
const (
	ModeDirect  = "direct"
	ModeSession = "session"
)

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
	// Session is set in session mode.
	Session *SessionSpec `json:",omitempty"`
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

// RewardByAgent is the reward type of runs whose agents give the rewards.
const RewardByAgent = "agent"

// SessionSpec says how episodes are played in session mode.
type SessionSpec struct {
	// Matcher compares an agent's history with ours; Linear refuses branches.
	Matcher string
	Linear  bool
	// MaxSeqLen bounds a conversation in tokens, MaxTurns in engine calls.
	MaxSeqLen int
	MaxTurns  int
	TTL       time.Duration
	// Listen is the address of a worker's session server, Advertise the URL under
	// which agents reach it; "" is the listening address.
	Listen    string
	Advertise string
	// AgentExec or AgentHTTP is the agent. AgentEnv names variables of the worker's
	// environment that it gets; their values are no part of the spec.
	AgentExec []string
	AgentHTTP string
	AgentEnv  []string
	// ExitStatus maps an agent's exit status to train, mask, drop or retry.
	ExitStatus map[string]string
	// MaxSamples bounds the samples of one episode; 0 is no limit. DivideReward
	// divides an episode's reward among them, instead of giving it to each.
	MaxSamples   int
	DivideReward bool
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
	// MaxInflight bounds concurrent requests over all workers, Credits those of
	// each worker: its share, which the controller hands out anew as workers come
	// and go. 0 = unbounded.
	MaxInflight int
	Credits     int
}
