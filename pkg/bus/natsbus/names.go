package natsbus

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// names derives everything that a run is called on the bus.
type names struct {
	run  string
	root string // "sheaf.<run>."
}

var runName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// errRunName reports a run name that cannot be part of a subject.
var errRunName = errors.New("a run name is 1 to 40 of a-z, 0-9 and -")

func namesOf(run string) (names, error) {
	if !runName.MatchString(run) {
		return names{}, fmt.Errorf("run %q: %w", run, errRunName)
	}
	return names{run: run, root: "sheaf." + run + "."}, nil
}

const (
	tablePrefix = "sheaf_run_"
	runKey      = "run"
	engineKeys  = "engine."
	nodeKeys    = "node."
	workers     = "workers" // the durable consumer of the job stream
)

func (n names) ledger() string  { return "SHEAF_LEDGER_" + n.run }
func (n names) jobs() string    { return "SHEAF_JOBS_" + n.run }
func (n names) results() string { return "SHEAF_RESULTS_" + n.run }
func (n names) blobs() string   { return "SHEAF_BLOBS_" + n.run }
func (n names) table() string   { return tablePrefix + n.run }

func (n names) log() string      { return n.root + "led.log" }
func (n names) jobFence() string { return n.root + "jobs.fence" }
func (n names) resFence() string { return n.root + "res.fence" }

func (n names) waste() string { return n.root + "res.waste" }

func (n names) job(wave, group int64) string { return fmt.Sprintf("%sjobs.%d.%d", n.root, wave, group) }
func (n names) mark(wave, group int64) string {
	return fmt.Sprintf("%sres.%d.%d.L", n.root, wave, group)
}
func (n names) result(id rollout.EpisodeID) string {
	return fmt.Sprintf("%sres.%d.%d.%d", n.root, id.Wave, id.Group, id.Index)
}

// parseResult reads wave, group and episode from a result's subject; ok is false
// for a lease mark and a fence.
func (n names) parseResult(subject string) (id rollout.EpisodeID, ok bool) {
	tail, found := strings.CutPrefix(subject, n.root+"res.")
	parts := strings.Split(tail, ".")
	if !found || len(parts) != 3 {
		return id, false
	}
	wave, err1 := strconv.ParseInt(parts[0], 10, 64)
	group, err2 := strconv.ParseInt(parts[1], 10, 64)
	index, err3 := strconv.Atoi(parts[2])
	return rollout.EpisodeID{Wave: wave, Group: group, Index: index}, err1 == nil && err2 == nil && err3 == nil
}
