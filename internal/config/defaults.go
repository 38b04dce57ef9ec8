package config

import "time"

// defaults fills a value with what holds where the file says nothing. The
// decoder calls it on the whole config, and on each list entry that it makes.
func defaults(v any) {
	switch v := v.(type) {
	case *Config:
		v.Run = Run{Name: "run", Steps: 1, Seed: 42, Out: "runs"}
		v.NATS = NATS{Embedded: true, Sync: "default", Replicas: 1}
		v.Model = Model{Family: "default"}
		v.Data = Data{InputKey: "prompt", LabelKey: "label", MetadataKey: "metadata", ToolsKey: "tools", Shuffle: true}
		v.Rollout = Rollout{
			Mode: "direct", BatchSize: 8, NSamplesPerPrompt: 8,
			Sampling:      Sampling{Temperature: 1, TopP: 1, TopK: -1, RepetitionPenalty: 1, MaxNewTokens: 64},
			MaxContextLen: 4096, DynamicFilter: "none", Surplus: "drop",
			Async: Async{MaxStaleness: 4, QueueFactor: 2},
		}
		v.Session = Session{
			Backend: "auto", Listen: "127.0.0.1:0", Matcher: "strict", Policy: "tree", MaxSeqLen: 4096, MaxTurns: 100, FanOutReward: "copy",
		}
		v.Reward = Reward{Timeout: Duration(30 * time.Second), Retries: 3, Concurrency: 64}
		v.Train = Train{
			Estimator: "grpo", Normalize: true, StdNormalize: true, DPSize: 1, Packing: "first_fit_decreasing",
			DynamicBatch: DynamicBatch{MaxTokensPerGPU: 8192},
		}
		v.API = API{Listen: "127.0.0.1:7070"}
		v.Worker = Worker{Embedded: true, Slots: 64}
	case *Sim:
		v.Count = 1
	case *Launch:
		v.Replicas = 1
	case *Eval:
		v.NSamples, v.Every = 1, 1
	}
}

// derive fills the keys whose default is another key's value. given tells
// whether the user wrote a key.
func (c *Config) derive(given func(key string) bool) {
	if !given("rollout.over_sampling_batch_size") {
		c.Rollout.OverSamplingBatchSize = c.Rollout.BatchSize
	}
	if !given("train.global_batch_size") {
		c.Train.GlobalBatchSize = product(c.Rollout.BatchSize, c.Rollout.NSamplesPerPrompt)
	}
}
