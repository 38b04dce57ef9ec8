package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/sheaf-rl/sheaf/pkg/chat"
	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// errUsage marks an error as the command line's fault.
var errUsage = errors.New("bad usage")

// flags are the command line. The first groups carry SGLang's names.
type flags struct {
	ModelPath          string `help:"Folder with model.safetensors, and draft/model.safetensors for speculation." placeholder:"DIR" required:""`
	Host               string `help:"Address to bind." default:"127.0.0.1"`
	Port               int    `help:"Port to bind; 0 takes a free one and says which." default:"30000"`
	ServedModelName    string `help:"Name in /v1/models; the model path by default." placeholder:"NAME"`
	WeightVersion      string `help:"Weight version at the start." default:"default"`
	RandomSeed         int64  `help:"Seed of requests that bring none."`
	MaxRunningRequests int    `help:"Requests in a batch." default:"256"`
	MaxQueuedRequests  int    `help:"Requests that may wait; 0 is no limit." default:"0"`
	ContextLength      int    `help:"Prompt plus output tokens." default:"32768"`
	MaxTotalTokens     int    `help:"Size of the prefix cache in tokens." default:"1048576"`
	LogLevel           string `help:"debug, info, warning or error." enum:"debug,info,warning,error" default:"warning"`
	ToolCallParser     string `help:"Take tool calls out of chat replies; the parser of the model's family." placeholder:"NAME"`
	ReasoningParser    string `help:"Take the reasoning out of chat replies." placeholder:"NAME"`
	EnableCacheReport  bool   `help:"Report cached tokens in the usage of chat completions."`
	SkipTokenizerInit  bool   `help:"Serve ids only, without text."`
	EnableMetrics      bool   `help:"Report times in meta_info."`

	IncrementalStreamingOutput bool `help:"Streams send what is new instead of all so far."`

	APIKey   string `name:"api-key" help:"Bearer token that calls have to bring." env:"SHEAF_SIM_API_KEY" placeholder:"KEY"`
	NodeRank int    `help:"Ranks above 0 of a multi-node engine serve nothing and only wait." default:"0"`

	SpeculativeAlgorithm      string `help:"EAGLE turns speculative decoding on." placeholder:"NAME"`
	SpeculativeNumSteps       int    `help:"Tokens the draft proposes per verify." default:"3"`
	SpeculativeEagleTopk      int    `help:"Branches of the draft; only a chain, 1, is simulated." default:"1"`
	SpeculativeNumDraftTokens int    `help:"Tokens per verify, one more than the steps." default:"4"`

	Real realEngineFlags `embed:""`

	Dialect      string  `help:"Release of SGLang whose keys are reported: 0.5.3 (verify counts only), 0.5.10, 0.5.11, 0.5.12 or 0.5.23." default:"0.5.23"`
	LatencyScale float64 `help:"Scale of the latency model; 0 is as fast as the host, 1 resembles a real engine." default:"0"`
	Stub         int     `help:"Answer /generate with this many fixed tokens, without sampling." placeholder:"N"`
	Script       string  `help:"YAML file with a prior on what replies say, for demos with tools." placeholder:"FILE"`
	Faults       string  `help:"YAML file that scripts faults, in the format of docs/sim-engine.md under Faults." placeholder:"FILE"`
	RequestLog   string  `help:"Append a line of JSON to this file for each request that ended, before its reply leaves." placeholder:"FILE"`
	DrainSeconds float64 `help:"How long requests in flight may take after SIGTERM." default:"30"`
}

// realEngineFlags are flags of SGLang that mean nothing without GPUs. They are
// taken so that a launch command works unchanged with this program in place of
// the real server; the log says which were given.
type realEngineFlags struct {
	TpSize                      int     `hidden:""`
	DpSize                      int     `hidden:""`
	EpSize                      int     `hidden:""`
	PpSize                      int     `hidden:""`
	EnableDpAttention           bool    `hidden:""`
	Nnodes                      int     `hidden:""`
	DistInitAddr                string  `hidden:""`
	NcclPort                    int     `hidden:""`
	BaseGpuID                   int     `hidden:"" name:"base-gpu-id"`
	MemFractionStatic           float64 `hidden:""`
	TrustRemoteCode             bool    `hidden:""`
	EnableMemorySaver           bool    `hidden:""`
	EnableDraftWeightsCpuBackup bool    `hidden:""`
	SkipServerWarmup            bool    `hidden:""`
	WatchdogTimeout             float64 `hidden:""`
}

// level is the log level by SGLang's names.
func (f *flags) level() slog.Level {
	switch f.LogLevel {
	case "debug":
		return slog.LevelDebug
	case "info":
		return slog.LevelInfo
	case "error":
		return slog.LevelError
	default:
		return slog.LevelWarn
	}
}

// config turns the flags into an engine's config.
func (f *flags) config(log *slog.Logger) (sim.Config, error) {
	dialect, err := sim.DialectNamed(f.Dialect)
	if err != nil {
		return sim.Config{}, fmt.Errorf("%w: --dialect: %w", errUsage, err)
	}
	config := sim.Config{
		ModelPath: f.ModelPath, ServedModelName: f.ServedModelName, WeightVersion: f.WeightVersion,
		RandomSeed: f.RandomSeed, MaxRunning: f.MaxRunningRequests, MaxQueued: f.MaxQueuedRequests,
		ContextLength: f.ContextLength, CacheTokens: f.MaxTotalTokens,
		Dialect: dialect, Latency: sim.DefaultLatency(), Stub: f.Stub,
		IncrementalStreaming: f.IncrementalStreamingOutput, EnableMetrics: f.EnableMetrics, Log: log,
	}
	config.APIKey = f.APIKey
	config.Latency.Scale = f.LatencyScale
	if f.Real != (realEngineFlags{}) {
		log.Info("flags that mean nothing without GPUs were given", "flags", fmt.Sprintf("%+v", f.Real))
	}
	if f.LatencyScale < 0 || f.DrainSeconds < 0 || f.Stub < 0 {
		return sim.Config{}, fmt.Errorf("%w: --latency-scale, --drain-seconds and --stub cannot be negative", errUsage)
	}
	if config.Faults, err = parseFile("faults", f.Faults, sim.ParseFaults); err != nil {
		return sim.Config{}, err
	}
	if config.Script, err = parseFile("script", f.Script, sim.ParseScript); err != nil {
		return sim.Config{}, err
	}
	if err := f.textSide(&config); err != nil {
		return sim.Config{}, err
	}
	if f.SpeculativeAlgorithm != "" {
		if !strings.HasPrefix(f.SpeculativeAlgorithm, "EAGLE") && f.SpeculativeAlgorithm != "NEXTN" {
			return sim.Config{}, fmt.Errorf("%w: --speculative-algorithm %s is not simulated: use EAGLE", errUsage, f.SpeculativeAlgorithm)
		}
		if f.SpeculativeEagleTopk != 1 || f.SpeculativeNumDraftTokens != f.SpeculativeNumSteps+1 {
			return sim.Config{}, fmt.Errorf("%w: a chain of drafts has --speculative-eagle-topk 1 and --speculative-num-draft-tokens one more than --speculative-num-steps, here %d", errUsage, f.SpeculativeNumSteps+1)
		}
		config.Speculation = &sim.Speculation{Algorithm: f.SpeculativeAlgorithm, Steps: f.SpeculativeNumSteps}
	}
	return config, nil
}

// parseFile reads the file that a flag names, if it names one.
func parseFile[T any](flag, path string, parse func([]byte) (T, error)) (value T, err error) {
	if path == "" {
		return value, nil
	}
	data, err := os.ReadFile(path)
	if err == nil {
		value, err = parse(data)
	}
	if err != nil {
		return value, fmt.Errorf("%w: --%s: %w", errUsage, flag, err)
	}
	return value, nil
}

// textSide loads the tokenizer and the chat template of the model.
func (f *flags) textSide(config *sim.Config) error {
	if f.SkipTokenizerInit {
		return nil
	}
	model, err := chat.Load(f.ModelPath)
	if err != nil {
		return fmt.Errorf("load the tokenizer (--skip-tokenizer-init does without): %w", err)
	}
	name := "default"
	for _, parser := range []string{f.ToolCallParser, f.ReasoningParser} {
		if family := familyOf(parser); family != "" {
			name = family
		} else if parser != "" {
			return fmt.Errorf("%w: there is no parser %q here: use one of qwen, qwen25, qwen3, qwen3_coder, glm45, glm47", errUsage, parser)
		}
	}
	family, err := model.Family(name)
	if err != nil {
		return fmt.Errorf("the parsers do not fit the model: %w", err)
	}
	config.Tokenizer, config.Conversations = model.Tokenizer(), family
	config.ParseTools, config.ParseReasoning = f.ToolCallParser != "", f.ReasoningParser != ""
	config.CacheReport = f.EnableCacheReport
	return nil
}

// familyOf is the family of models that one of SGLang's parsers is for.
func familyOf(parser string) string {
	switch parser {
	case "qwen", "qwen25", "qwen3":
		return "qwen3"
	case "qwen3_coder":
		return "qwen35"
	case "glm45", "glm47":
		return "glm47"
	default:
		return ""
	}
}
