package config

// feature is something a config can ask for that this version does not have.
type feature struct {
	key  string
	used func(c *Config, given func(key string) bool) bool
	name string
}

// unavailable is the whole list of what is not built. Building a feature ends
// with deleting its row.
var unavailable = []feature{
	{"session.backend", func(c *Config, _ func(string) bool) bool { return c.Session.Backend == "chat" }, "the chat backend"},
	{"rollout.surplus", func(c *Config, _ func(string) bool) bool { return c.Rollout.Surplus == "keep" }, "keeping surplus groups"},
	{"rollout.dynamic_filter", func(c *Config, _ func(string) bool) bool { return isHook(c.Rollout.DynamicFilter) }, "a filter of your own"},
	{"rollout.partial", func(c *Config, _ func(string) bool) bool { return c.Rollout.Partial.Enabled }, "partial rollout"},
	{"rollout.async", func(c *Config, _ func(string) bool) bool { return c.Rollout.Async.Enabled }, "asynchronous rollout"},
	written("reward.url", "a remote verifier"),
	written("reward.key", "a remote verifier"),
	written("reward.timeout", "a remote verifier"),
	written("reward.retries", "a remote verifier"),
	written("reward.concurrency", "a remote verifier"),
	{"reward.group", func(c *Config, _ func(string) bool) bool { return c.Reward.Group }, "scoring a whole group"},
	{"eval", func(c *Config, _ func(string) bool) bool { return len(c.Eval) > 0 }, "evaluation"},
	written("worker.advertise", "placement on many nodes"),
	written("api.listen", "the trainer's door"),
	written("api.token", "the trainer's door"),
}

// unavailableEngine is the same for entries of engines, keyed below the entry.
var unavailableEngine = []struct {
	key  string
	used func(Engine) bool
	name string
}{
	{"launch", func(e Engine) bool { return e.Launch != nil }, "launching engines"},
}

// written is a feature in use as soon as its key stands in the file.
func written(key, name string) feature {
	return feature{key, func(_ *Config, given func(string) bool) bool { return given(key) }, name}
}

func (c *Config) refuseUnavailable(r *report) {
	const text = "%s is not available in this version; remove it"
	for _, f := range unavailable {
		if f.used(c, r.given) {
			r.problem(f.key, text, f.name)
		}
	}
	for i, e := range c.Engines {
		for _, f := range unavailableEngine {
			if f.used(e) {
				r.problem(engineKey(i, f.key), text, f.name)
			}
		}
	}
}
