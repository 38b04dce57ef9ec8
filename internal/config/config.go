package config

import (
	"encoding/json"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// Config is a whole run. It is only made by [Load], which has validated it.
type Config struct {
	Run     Run      `json:"run"`
	NATS    NATS     `json:"nats"`
	Model   Model    `json:"model"`
	Data    Data     `json:"data"`
	Engines []Engine `json:"engines"`
	Rollout Rollout  `json:"rollout"`
	Session Session  `json:"session"`
	Reward  Reward   `json:"reward"`
	Train   Train    `json:"train"`
	Eval    []Eval   `json:"eval"`
	API     API      `json:"api"`
	Worker  Worker   `json:"worker"`

	warnings []string
}

// Run names the run and bounds it.
type Run struct {
	// Name matches [a-z0-9-]{1,40}.
	Name  string `json:"name"`
	Steps int    `json:"steps"`
	Seed  int64  `json:"seed"`
	// Out is the folder under which the run's own folder is made.
	Out string `json:"out"`
}

// NATS says which server carries the run, an embedded one or one that runs.
type NATS struct {
	Embedded bool `json:"embedded"`
	// Listen is the embedded server's host:port for other processes; "" for none.
	Listen string   `json:"listen"`
	URLs   []string `json:"urls"`
	// Creds and NKey are paths of files.
	Creds string `json:"creds"`
	NKey  string `json:"nkey"`
	Token Secret `json:"token"`
	TLS   TLS    `json:"tls"`
	// Sync is "default" (survives the process) or "always" (survives power loss).
	Sync     string `json:"sync"`
	Replicas int    `json:"replicas"`
}

// TLS holds paths of PEM files.
type TLS struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Model is the folder with the tokenizer and the chat template, and the family
// of chat formats it belongs to.
type Model struct {
	Path   string `json:"path"`
	Family string `json:"family"`
}

// Data is the prompt source and the names of its columns.
type Data struct {
	// Prompts is a path that may end in a slice of rows, "@[a:b]".
	Prompts     string `json:"prompts"`
	InputKey    string `json:"input_key"`
	LabelKey    string `json:"label_key"`
	MetadataKey string `json:"metadata_key"`
	ToolsKey    string `json:"tools_key"`
	Shuffle     bool   `json:"shuffle"`
	// ChatTemplateKwargs are handed to the chat template as they are.
	ChatTemplateKwargs map[string]json.RawMessage `json:"chat_template_kwargs"`
	// SkipBad counts and reports bad rows instead of ending the run.
	SkipBad bool `json:"skip_bad"`
}

// Engine is one entry of engines. Exactly one of Sim, URL and Launch is set.
type Engine struct {
	Sim    *Sim    `json:"sim,omitempty"`
	URL    string  `json:"url,omitempty"`
	Launch *Launch `json:"launch,omitempty"`
	// MaxInflight bounds the concurrent requests to each of the entry's engines;
	// 0 = unbounded.
	MaxInflight int `json:"max_inflight,omitempty"`
}

// Sim asks for simulated engines in this process.
type Sim struct {
	Count       int  `json:"count"`
	Speculative bool `json:"speculative"`
	// Script is a file with a prior on what replies say, for demos with tools.
	Script string `json:"script,omitempty"`
}

// Launch asks for engines that Sheaf starts.
type Launch struct {
	Replicas int `json:"replicas"`
	// GPUs is per replica.
	GPUs     int                          `json:"gpus"`
	Command  []string                     `json:"command"`
	Args     map[string]json.RawMessage   `json:"args"`
	Env      map[string]Secret            `json:"env"`
	EnvUnset []string                     `json:"env_unset"`
	PreStart []string                     `json:"pre_start"`
	Groups   []map[string]json.RawMessage `json:"groups"`
	Nodes    []string                     `json:"nodes"`
}

// Rollout says how a step is sampled.
type Rollout struct {
	// Mode is "direct" or "session".
	Mode string `json:"mode"`
	// BatchSize is groups per step, NSamplesPerPrompt episodes per group.
	BatchSize         int `json:"batch_size"`
	NSamplesPerPrompt int `json:"n_samples_per_prompt"`
	// OverSamplingBatchSize is the number of groups asked for at once; it is
	// BatchSize where the file does not say.
	OverSamplingBatchSize int      `json:"over_sampling_batch_size"`
	Sampling              Sampling `json:"sampling"`
	// MaxContextLen bounds prompt and response together, in tokens.
	MaxContextLen int    `json:"max_context_len"`
	DynamicFilter string `json:"dynamic_filter"`
	// Surplus says what becomes of groups beyond the batch: "drop" or "keep".
	Surplus       string `json:"surplus"`
	MaskTruncated bool   `json:"mask_truncated"`
	// MinValidPerGroup is how many episodes of a group must be usable; 0 = all.
	MinValidPerGroup int          `json:"min_valid_per_group"`
	Partial          Partial      `json:"partial"`
	Async            Async        `json:"async"`
	EpisodeDeadline  AutoDuration `json:"episode_deadline"`
	// StepDeadline is how long a step may go without a new result; auto = the longer
	// of ten minutes and four episode deadlines.
	StepDeadline AutoDuration `json:"step_deadline"`
	// AllowEmptySteps commits a step of which every episode failed, instead of
	// ending the run there.
	AllowEmptySteps bool `json:"allow_empty_steps"`
	// Retries is how often an episode that failed for a passing reason runs again:
	// by the failure's key ("engine/reset"), its boundary ("engine"), or "default".
	Retries map[string]int `json:"retries"`
}

// Sampling holds the sampling parameters of the run.
type Sampling struct {
	Temperature       float64  `json:"temperature"`
	TopP              float64  `json:"top_p"`
	TopK              int      `json:"top_k"`
	MinP              float64  `json:"min_p"`
	FrequencyPenalty  float64  `json:"frequency_penalty"`
	PresencePenalty   float64  `json:"presence_penalty"`
	RepetitionPenalty float64  `json:"repetition_penalty"`
	MaxNewTokens      int      `json:"max_new_tokens"`
	Stop              []string `json:"stop"`
	StopTokenIDs      []int32  `json:"stop_token_ids"`
}

// Spec is the sampling as jobs carry it.
func (s Sampling) Spec() rollout.Sampling { return rollout.Sampling(s) }

// Partial continues aborted episodes in a later step.
type Partial struct {
	Enabled       bool `json:"enabled"`
	MaskOffPolicy bool `json:"mask_off_policy"`
}

// Async lets sampling run ahead of the trainer.
type Async struct {
	Enabled      bool    `json:"enabled"`
	MaxStaleness int     `json:"max_staleness"`
	QueueFactor  float64 `json:"queue_factor"`
}

// Session configures session mode.
type Session struct {
	Backend   string `json:"backend"`
	Listen    string `json:"listen"`
	Advertise string `json:"advertise"`
	// Matcher says how closely an agent's copy of the history must be ours: "strict",
	// "loose_tool_call" or "role_content_only".
	Matcher string `json:"matcher"`
	// Policy is "tree", or "linear" to refuse what does not go on from the last turn
	// or the one before it.
	Policy    string       `json:"policy"`
	MaxSeqLen int          `json:"max_seq_len"`
	MaxTurns  int          `json:"max_turns"`
	TTL       AutoDuration `json:"ttl"`
	// MaxSamplesPerEpisode bounds the samples of one episode; 0 = all.
	MaxSamplesPerEpisode int `json:"max_samples_per_episode"`
	// FanOutReward says whether the samples of an episode get its reward each
	// ("copy") or a share of it ("divide").
	FanOutReward string `json:"fan_out_reward"`
	Agent        Agent  `json:"agent"`
}

// Agent is the program that plays an episode: a command or an HTTP service.
type Agent struct {
	Exec []string `json:"exec"`
	HTTP string   `json:"http"`
	// Env holds NAME=value entries, and names of variables to pass on.
	Env []Secret `json:"env"`
	// ExitStatus says what becomes of an episode by its agent's exit status: "train",
	// "mask", "drop" or "retry".
	ExitStatus map[string]string `json:"exit_status"`
}

// Reward configures the verifier.
type Reward struct {
	Type string `json:"type"`
	// Key picks one number of a verifier's reply.
	Key         string   `json:"key"`
	URL         string   `json:"url"`
	Timeout     Duration `json:"timeout"`
	Retries     int      `json:"retries"`
	Concurrency int      `json:"concurrency"`
	// Group scores all episodes of a group in one call.
	Group bool `json:"group"`
}

// Train says how a step becomes train batches.
type Train struct {
	Estimator    string `json:"estimator"`
	Normalize    bool   `json:"normalize"`
	StdNormalize bool   `json:"std_normalize"`
	// GlobalBatchSize is samples per optimiser step; it is the whole step where
	// the file does not say.
	GlobalBatchSize int          `json:"global_batch_size"`
	DPSize          int          `json:"dp_size"`
	Packing         string       `json:"packing"`
	DynamicBatch    DynamicBatch `json:"dynamic_batch"`
}

// DynamicBatch bounds a micro-batch by tokens.
type DynamicBatch struct {
	MaxTokensPerGPU int `json:"max_tokens_per_gpu"`
}

// Eval is one evaluation data set.
type Eval struct {
	Name     string `json:"name"`
	Prompts  string `json:"prompts"`
	NSamples int    `json:"n_samples"`
	// Every is in steps.
	Every int `json:"every"`
}

// API is the trainer's door.
type API struct {
	Listen string `json:"listen"`
	Token  Secret `json:"token"`
}

// Worker configures the worker inside the controller's process, and what other
// workers do by default.
type Worker struct {
	Embedded bool `json:"embedded"`
	// Slots is how many episodes a worker runs at once.
	Slots     int       `json:"slots"`
	Advertise Advertise `json:"advertise"`
}

// Advertise picks the address under which a node is reached.
type Advertise struct {
	Ifname string `json:"ifname"`
	CIDR   string `json:"cidr"`
}

// Warnings lists what is allowed but probably not meant, as "file:line: key: text".
func (c *Config) Warnings() []string { return c.warnings }
