package bus

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Damaged reports stored results that are not what they were stored as, or are
// not there any more. It is an ErrDamaged.
type Damaged struct {
	Receipts []Receipt
	// Err says what is wrong with the first.
	Err error
}

func (d *Damaged) Error() string {
	return fmt.Sprintf("%d stored results are damaged, the first: %v", len(d.Receipts), d.Err)
}

func (d *Damaged) Unwrap() error { return ErrDamaged }

// Differs reports a run that is stored under another fingerprint. It is an
// ErrFingerprint.
type Differs struct {
	// ModelHash and Config are what the stored run was opened with; empty where it
	// is not known.
	ModelHash string
	Config    json.RawMessage
}

func (d *Differs) Error() string { return ErrFingerprint.Error() }

func (d *Differs) Unwrap() error { return ErrFingerprint }

// Errors that callers branch on. Adapters wrap them.
var (
	// ErrFenced: somebody newer holds this job or this run, or the wave is
	// trimmed. Stop, and write nothing more under this claim.
	ErrFenced = errors.New("fenced: a newer holder exists")
	// ErrMaybeStored comes with ErrFenced when an earlier try of the same write had
	// no answer: it may be stored.
	ErrMaybeStored = errors.New("an earlier try may have been stored")
	// ErrFull: the store has no room; the write may be repeated once there is.
	ErrFull = errors.New("store is full")
	// ErrUnavailable: the broker gave no answer in time.
	ErrUnavailable = errors.New("broker does not answer")
	// ErrNoRun: no run of that name is on the bus.
	ErrNoRun = errors.New("no such run")
	// ErrManyRuns: several runs are on the bus and none was named.
	ErrManyRuns = errors.New("several runs")
	// ErrVersion: controller and worker are of different versions.
	ErrVersion = errors.New("versions differ")
	// ErrFingerprint: the store belongs to a run with another config.
	ErrFingerprint = errors.New("config differs from the stored run's")
	// ErrDamaged: a stored record does not have the digest that it was stored
	// with.
	ErrDamaged = errors.New("stored record is damaged")
)
