// Package assemble puts a worker together from its adapters. The worker command
// and the controller's embedded worker are the same worker.
package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/sheaf-rl/sheaf/internal/buildinfo"
	"github.com/sheaf-rl/sheaf/internal/worker"
	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine/pool"
	"github.com/sheaf-rl/sheaf/pkg/engine/sglang"
	"github.com/sheaf-rl/sheaf/pkg/reward"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Options of a worker. What is left out comes from the run table.
type Options struct {
	Member natsbus.MemberConfig
	// ModelDir replaces the model folder that the run names.
	ModelDir string
	// Slots replaces the run's number of slots.
	Slots int
	// AgentEnv are NAME=value entries of agents' environments that the run table
	// does not hold.
	AgentEnv []string
	Log      *slog.Logger
}

// ErrModel reports a model folder that is not the run's.
var ErrModel = errors.New("this is not the run's model")

// Worker is a worker with all it needs.
type Worker struct {
	inner *worker.Worker
	// Run is the run that was joined, Slots what the worker runs at once.
	Run    rollout.RunSpec
	Slots  int
	member *natsbus.Member
	pool   *pool.Pool
	// sessions is nil in direct mode.
	sessions *sessions
	tables   sync.WaitGroup
	cancel   context.CancelFunc
}

// NewWorker joins the run and makes a worker for it.
func NewWorker(ctx context.Context, conn *natsbus.Conn, opt Options) (*Worker, error) {
	opt.Member.Version = buildinfo.Version()
	member, err := natsbus.Join(ctx, conn, opt.Member)
	if err != nil {
		return nil, err
	}
	w, err := newWorker(ctx, member, opt)
	if err != nil {
		member.Close()
		return nil, err
	}
	return w, nil
}

func newWorker(ctx context.Context, member *natsbus.Member, opt Options) (*Worker, error) {
	spec := member.Spec()
	dir := spec.Model.Path
	if opt.ModelDir != "" {
		dir = opt.ModelDir
	}
	model, err := chat.Load(dir)
	if err != nil {
		return nil, err
	}
	if model.Hash() != spec.Model.Hash {
		return nil, fmt.Errorf("%w: the tokenizer and chat template in %s are not those of run %s: name the right folder with --model", ErrModel, dir, spec.Run)
	}
	var scorer reward.Scorer
	if spec.Reward.Type != rollout.RewardByAgent {
		if scorer, err = reward.New(spec.Reward); err != nil {
			return nil, err
		}
	}
	slots := spec.Slots
	if opt.Slots > 0 {
		slots = opt.Slots
	}
	engines := pool.New(pool.Config{Log: opt.Log, Dial: func(e rollout.EngineEntry) (pool.Engine, error) {
		return sglang.New(sglang.Config{ID: e.ID, URL: e.URL})
	}})
	sessions, err := openSessions(spec, model, opt)
	if err != nil {
		return nil, errors.Join(err, engines.Close())
	}
	inner, err := worker.New(worker.Config{
		ID: opt.Member.Worker, Member: member, Engine: engines, Text: text{model, spec.Model}, Scorer: scorer,
		Sessions: sessions.forWorker(), Slots: slots, Log: opt.Log,
	})
	if err != nil {
		return nil, errors.Join(err, sessions.close(), engines.Close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	tables, err := member.Engines(ctx)
	if err != nil {
		cancel()
		return nil, errors.Join(err, sessions.close(), engines.Close())
	}
	w := &Worker{inner: inner, Run: spec, Slots: slots, member: member, pool: engines, sessions: sessions, cancel: cancel}
	w.tables.Go(func() {
		for table := range tables {
			engines.Set(table)
		}
	})
	return w, nil
}

// Work runs the run's jobs; see [worker.Worker.Run].
func (w *Worker) Work(ctx context.Context) error { return w.inner.Run(ctx) }

// Drain makes Work return once the jobs held are done.
func (w *Worker) Drain() { w.inner.Drain() }

// Close releases what the worker holds. Work has returned.
func (w *Worker) Close() error {
	w.cancel()
	w.tables.Wait()
	w.member.Close()
	return errors.Join(w.sessions.close(), w.pool.Close())
}

// text is a chat model as a worker uses it.
type text struct {
	model *chat.Model
	spec  rollout.ModelSpec
}

// EncodePrompt renders messages by the chat template; plain text is taken as it
// is.
func (t text) EncodePrompt(p rollout.Prompt) ([]int32, string, error) {
	if len(p.Messages) == 0 {
		return t.model.Tokenizer().Encode(p.Text, true), p.Text, nil
	}
	rendered, err := t.model.Render(p.Messages, chat.RenderOptions{
		Tools: p.Tools, AddGenerationPrompt: true, Kwargs: t.spec.TemplateKwargs,
	})
	if err != nil {
		return nil, "", err
	}
	return t.model.Tokenizer().Encode(rendered, false), rendered, nil
}

func (t text) Decode(ids []int32, skipSpecial bool) string {
	return t.model.Tokenizer().Decode(ids, skipSpecial)
}

func (t text) VocabSize() int { return t.model.Tokenizer().VocabSize() }
