package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Tokenizer is what the engine needs of a model's tokenizer.
type Tokenizer interface {
	Encode(text string, addSpecial bool) []int32
	Decode(ids []int32, skipSpecial bool) string
	VocabSize() int
}

// maxSteps bounds what a verify can add to a request.
const maxSteps = 16

// Speculation is speculative decoding with one chain of drafted tokens.
type Speculation struct {
	// Algorithm is the name that /server_info reports, such as EAGLE.
	Algorithm string
	// Steps is the number of tokens the draft proposes per verify.
	Steps int
}

// Config is what an engine is made of. The zero value of every field but ModelPath
// means the default.
type Config struct {
	// ModelPath is a folder with model.safetensors and, for speculation,
	// draft/model.safetensors.
	ModelPath string
	// Tokenizer turns text to ids and back. Without one the engine behaves like
	// SGLang's --skip-tokenizer-init: ids in, ids out, no text.
	Tokenizer Tokenizer
	// Conversations renders chat completions; without it there are none.
	Conversations Conversations
	// ParseTools and ParseReasoning take chat replies apart, as SGLang does when it
	// is given a tool call parser and a reasoning parser.
	ParseTools, ParseReasoning bool
	// CacheReport adds the cached tokens to the usage of chat completions.
	CacheReport bool
	// EOS are the tokens that end a response unless a request says ignore_eos.
	// Default: what generation_config.json or config.json in ModelPath names, else
	// the policy's padding token.
	EOS []int32

	ServedModelName string // default: ModelPath
	WeightVersion   string // default: "default"
	RandomSeed      int64
	MaxRunning      int // default: 256 requests in a batch
	MaxQueued       int // default: no limit
	ContextLength   int // default: 32768
	CacheTokens     int // size of the prefix cache, default: 1,048,576

	Speculation *Speculation // nil = plain decoding
	Dialect     Dialect      // default: the latest
	Latency     Latency      // default: none
	Clock       Clock        // default: real time

	// APIKey, when set, has to come as a bearer token with every call but health
	// checks and metrics.
	APIKey string
	// Stub, when above 0, answers /generate with that many fixed tokens, without
	// sampling: a zero-latency engine for measuring its clients.
	Stub int

	// Script is a prior on what replies say, nil = none.
	Script *Script
	// Faults is a script of what goes wrong; see [ParseFaults].
	Faults []FaultRule

	// IncrementalStreaming makes streams send what is new, not all so far.
	IncrementalStreaming bool
	// EnableMetrics adds the time keys to meta_info.
	EnableMetrics bool

	// RequestLog gets a line of JSON per request that ended, before its reply
	// leaves; nil = none. Requests that Stub answers are not in it.
	RequestLog io.Writer

	Log      *slog.Logger         // default: discard
	Registry *prometheus.Registry // default: a registry of its own
}

// Engine is a simulated engine. Make it with [New], reach it over HTTP through
// [Engine.Handler] or [Engine.Serve], and release it with [Engine.Close].
type Engine struct {
	config   Config
	vocab    int
	sched    *scheduler
	registry *prometheus.Registry
	faults   faultScript
	log      *slog.Logger
	handler  http.Handler
	started  time.Time
	cancel   context.CancelFunc
	closing  sync.Once
}

// New loads the model and starts the engine's scheduler.
func New(config Config) (*Engine, error) {
	config.ServedModelName = cmp.Or(config.ServedModelName, config.ModelPath)
	config.WeightVersion = cmp.Or(config.WeightVersion, "default")
	config.MaxRunning = cmp.Or(config.MaxRunning, 256)
	config.ContextLength = cmp.Or(config.ContextLength, 32768)
	config.CacheTokens = cmp.Or(config.CacheTokens, 1<<20)
	if config.Dialect.Name == "" {
		config.Dialect = dialects[len(dialects)-1]
	}
	if config.Clock == nil {
		config.Clock = WallClock{}
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Registry == nil {
		config.Registry = prometheus.NewRegistry()
	}
	if s := config.Speculation; s != nil && (s.Steps < 1 || s.Steps > maxSteps) {
		return nil, fmt.Errorf("the number of speculative steps must be in [1, %d], got %d", maxSteps, s.Steps)
	}
	model, err := loadWeights(config.ModelPath, config.Speculation != nil)
	if err != nil {
		return nil, err
	}
	vocab := model.target.shape.Vocab
	if tok := config.Tokenizer; tok != nil && tok.VocabSize() != vocab {
		return nil, fmt.Errorf("the tokenizer has %d tokens and the weights in %s have %d: they do not belong together",
			tok.VocabSize(), config.ModelPath, vocab)
	}
	if config.EOS == nil {
		if config.EOS, err = readEOS(config.ModelPath, model.target.shape.Pad); err != nil {
			return nil, err
		}
	}
	counts, err := newCounters(config.Registry, config.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("register the engine's metrics: %w", err)
	}
	steps := 0
	if config.Speculation != nil {
		steps = config.Speculation.Steps
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		config: config, vocab: vocab, registry: config.Registry, log: config.Log,
		started: config.Clock.Now(), cancel: cancel,
		sched: &scheduler{
			limits:  limits{running: config.MaxRunning, queued: config.MaxQueued},
			model:   model,
			version: config.WeightVersion,
			path:    config.ModelPath,
			served:  config.ServedModelName,
			tok:     config.Tokenizer,
			clock:   config.Clock,
			latency: config.Latency,
			counts:  counts,
			journal: requestLog{out: config.RequestLog, log: config.Log},
			sampler: newSampler(vocab, steps),
			inbox:   make(chan func(), 256),
			ctx:     ctx,
			ended:   make(chan struct{}),
			live:    map[string]*request{},
			cache:   newPrefixCache(config.CacheTokens),
		},
	}
	e.faults.rules = config.Faults
	e.handler = e.routes()
	go e.sched.run()
	return e, nil
}

// Close ends every request and stops the scheduler. It may be called twice.
func (e *Engine) Close() {
	e.closing.Do(e.cancel)
	<-e.sched.ended
}

// Handler serves SGLang's HTTP protocol.
func (e *Engine) Handler() http.Handler { return e.handler }

// keepAlive is how long SGLang's server keeps an idle connection (hazard 16).
const keepAlive = 5 * time.Second

// Serve serves on listener until ctx is done, and then lets the requests in flight
// finish, for as long as drain. It closes the engine.
func (e *Engine) Serve(ctx context.Context, listener net.Listener, drain time.Duration) error {
	server := &http.Server{
		Handler:           e.handler,
		IdleTimeout:       keepAlive,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	defer e.Close()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := server.Shutdown(limit)
	e.Close() // ends what is still running, so that its handlers return
	if err != nil {
		err = server.Close()
	}
	<-failed
	return err
}

// loadWeights reads what a model folder holds. An engine that speculates needs a
// draft.
func loadWeights(folder string, speculate bool) (weights, error) {
	var w weights
	if _, err := os.Stat(folder); err != nil {
		return w, fmt.Errorf("the model folder cannot be read: %w", err)
	}
	var err error
	if w.target, err = ReadPolicy(filepath.Join(folder, "model.safetensors")); err != nil {
		return w, fmt.Errorf("load the policy: %w", err)
	}
	if !speculate {
		return w, nil
	}
	if w.draft, err = loadDraft(folder, w.target); err != nil {
		return w, err
	}
	if w.draft == nil {
		return w, fmt.Errorf("speculation needs a draft, and %s is not there", filepath.Join(folder, draftFile))
	}
	return w, nil
}

// draftFile is where a model folder has its draft.
var draftFile = filepath.Join("draft", "model.safetensors")

// loadDraft reads the draft of a model folder, nil when it has none.
func loadDraft(folder string, target *Policy) (*Policy, error) {
	draft, err := ReadPolicy(filepath.Join(folder, draftFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load the draft: %w", err)
	}
	if t, d := target.shape.Vocab, draft.shape.Vocab; t != d {
		return nil, fmt.Errorf("the draft in %s has %d tokens and the policy %d: they do not belong together", folder, d, t)
	}
	return draft, nil
}

// readEOS finds the end-of-sequence ids where Hugging Face models have them. A
// folder that names none ends on the policy's padding token.
func readEOS(folder string, pad int32) ([]int32, error) {
	for _, name := range []string{"generation_config.json", "config.json"} {
		data, err := os.ReadFile(filepath.Join(folder, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var file struct {
			EOS json.RawMessage `json:"eos_token_id"`
		}
		if err := json.Unmarshal(data, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(folder, name), err)
		}
		var one int32
		var many []int32
		switch {
		case len(file.EOS) == 0 || string(file.EOS) == "null":
			continue
		case json.Unmarshal(file.EOS, &one) == nil:
			return []int32{one}, nil
		case json.Unmarshal(file.EOS, &many) == nil:
			return many, nil
		default:
			return nil, fmt.Errorf("%s: eos_token_id is %s, neither an id nor a list of ids", filepath.Join(folder, name), file.EOS)
		}
	}
	return []int32{pad}, nil
}
