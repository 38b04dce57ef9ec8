package bus

import (
	"context"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Lease is a worker's claim on one job. Its methods are safe for concurrent use.
type Lease interface {
	// Job is the job with only those episodes that have no stored result yet.
	Job() rollout.Job
	// Attempt numbers the leases of the job from 1.
	Attempt() int
	// Fenced is closed once the claim is known to be lost: stop working on it.
	Fenced() <-chan struct{}
	// Publish stores one result. It repeats the write until it is stored, ctx
	// ends, or the claim turns out to be lost (ErrFenced).
	Publish(ctx context.Context, e *rollout.Episode) error
	// Waste reports what was generated in vain, for the books. It is not fenced:
	// that is what it is for. It tries for a while only.
	Waste(ctx context.Context, w rollout.Waste) error
	// Done removes the job, after all its results are stored.
	Done(ctx context.Context) error
	// Release gives the job back at once, for another worker.
	Release(ctx context.Context) error
}

// Queue is where a worker finds jobs.
type Queue interface {
	// Lease waits for a job until ctx ends.
	Lease(ctx context.Context) (Lease, error)
}

// Member is a worker's view of a run.
type Member interface {
	Queue
	// Spec is what the worker must know of the run.
	Spec() rollout.RunSpec
	// Engines returns the engine table and then each new state of it, until ctx
	// ends. The channel holds the newest state only.
	Engines(ctx context.Context) (<-chan []rollout.EngineEntry, error)
	// Ended is closed once the run is finished: no more jobs will come.
	Ended() <-chan struct{}
	// Stalled is closed once this process was stopped for so long that its leases
	// may be another's, and one of them turned out to be.
	Stalled() <-chan struct{}
	// Announce keeps the worker visible until ctx ends.
	Announce(ctx context.Context, slots int) error
}

// Receipt is what the head of a stored result says.
type Receipt struct {
	Episode  rollout.EpisodeID
	Sequence uint64
	SHA256   [32]byte
	Attempt  int
	Outcome  rollout.Outcome
	// Failure is the key of a failed episode's failure, Retryable says that the
	// episode may succeed if run again.
	Failure   string
	Retryable bool
	// Reward is nil when the result has none, or several that differ.
	Reward *float64
	// CompletionTokens is what the episode cost.
	CompletionTokens int64
	// Size of the stored record in bytes.
	Size int
}

// Worker is a worker as it announced itself.
type Worker struct {
	ID    string `json:"id"`
	Host  string `json:"host"`
	Slots int    `json:"slots"`
}

// Run is a controller's claim on a run.
type Run interface {
	// State is where the ledger stands, Open the plans of waves not trimmed.
	State() rollout.RunState
	Open() []rollout.Plan

	// Plan, Commit, Trimmed and Close append to the ledger. Each fails with
	// ErrFenced when another controller has taken over.
	Plan(ctx context.Context, p rollout.Plan) error
	Commit(ctx context.Context, m rollout.Manifest) error
	Close(ctx context.Context) error
	// Trim removes the results and jobs of all waves below the given one, and
	// says so in the ledger.
	Trim(ctx context.Context, below int64) error

	// Sweep purges again what was trimmed and came back: a server that was killed
	// can bring purged messages back. It does nothing while there was no outage
	// since the last sweep.
	Sweep(ctx context.Context) error
	// Outage is for how long there has been no connection to the bus, 0 when there
	// is one.
	Outage() time.Duration

	// Held looks whether this claim is the newest. It is ErrFenced once another
	// controller has taken over, which one that writes nothing would not notice.
	Held(ctx context.Context) error
	// Broken is an error when the store can take nothing more until a person has
	// mended something, which the error says.
	Broken() error

	// Submit makes sure that each job is queued, or was and has all its results.
	// It is idempotent.
	Submit(ctx context.Context, jobs []rollout.Job) error
	// Follow calls f for the head of every stored result, those stored before
	// first, until ctx ends or f fails. After a loss of the connection it begins
	// again from the first.
	Follow(ctx context.Context, f func(Receipt) error) error
	// Load reads stored results and calls f for each, in any order. Records that do
	// not match their receipts are reported as [*Damaged], after the others were read.
	// One that matches and cannot be decoded comes as a failed episode.
	Load(ctx context.Context, receipts []Receipt, f func(Receipt, *rollout.Episode) error) error

	// Drop removes a stored result, so that its episode can be run again.
	Drop(ctx context.Context, r Receipt) error
	// Waste returns the waste reported behind a sequence, and the sequence of the
	// last record returned.
	Waste(ctx context.Context, behind uint64) ([]rollout.Waste, uint64, error)

	// PutEngine writes a row of the engine table.
	PutEngine(ctx context.Context, e rollout.EngineEntry) error
	// Workers lists the workers that announced themselves lately.
	Workers(ctx context.Context) ([]Worker, error)
}
