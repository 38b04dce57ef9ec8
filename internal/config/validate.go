package config

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var runName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// validate reports what is wrong with values that decoded. It prints numbers and
// words of its own lists, and never a value that may come from a variable.
func (c *Config) validate(r *report) {
	if !runName.MatchString(c.Run.Name) {
		r.problem("run.name", "must be 1 to 40 of the characters a-z, 0-9 and -")
	}
	r.between("run.steps", c.Run.Steps, 1, maxSteps)
	r.notEmpty("run.out", c.Run.Out, "name the folder for the run's files")

	c.NATS.validate(r)

	r.notEmpty("model.path", c.Model.Path, "name the model's folder, with its tokenizer.json")
	r.oneOf("model.family", c.Model.Family, "default", "qwen3", "qwen35", "glm47")
	r.notEmpty("data.prompts", c.Data.Prompts, "name the file with the prompts")
	r.notEmpty("data.input_key", c.Data.InputKey, "name the column with the prompt")

	c.validateEngines(r)
	c.Rollout.validate(r)
	c.Session.validate(r)
	c.validateMode(r)
	c.Reward.validate(r)
	c.Train.validate(r)
	c.validateEval(r)

	if r.address("api.listen", c.API.Listen) && !isLoopback(c.API.Listen) && c.API.Token == "" {
		r.problem("api.listen", "listens beyond this machine without a token; set api.token or listen on 127.0.0.1")
	}
	r.between("worker.slots", c.Worker.Slots, 1, maxCount)
	if !c.Worker.Embedded && c.NATS.Embedded && c.NATS.Listen == "" {
		r.problem("worker.embedded", "leaves the run without a worker: nobody can join an embedded NATS server that does not listen; set nats.listen or worker.embedded: true")
	}
	if c.Worker.Advertise.Ifname != "" && c.Worker.Advertise.CIDR != "" {
		r.problem("worker.advertise", "has both ifname and cidr; keep one")
	}
}

func (n *NATS) validate(r *report) {
	if n.Embedded {
		if len(n.URLs) > 0 {
			r.problem("nats.urls", "points at running servers while nats.embedded is true; set nats.embedded: false or remove the urls")
		}
		if n.Replicas > 1 {
			r.problem("nats.replicas", "an embedded server is single; set replicas: 1 or point nats.urls at a cluster")
		}
	} else {
		if len(n.URLs) == 0 {
			r.problem("nats.urls", "is empty while nats.embedded is false; list the servers, such as [nats://host:4222]")
		}
		if n.Listen != "" {
			r.problem("nats.listen", "belongs to the embedded server; remove it or set nats.embedded: true")
		}
	}
	for i, u := range n.URLs {
		r.serverURL(fmt.Sprintf("nats.urls.%d", i), u, "nats", "tls", "ws", "wss")
	}
	if n.Listen != "" && r.address("nats.listen", n.Listen) && !isLoopback(n.Listen) && n.Token == "" {
		r.problem("nats.listen", "listens beyond this machine without a token; set nats.token or listen on 127.0.0.1")
	}
	given := 0
	for _, set := range []bool{n.Creds != "", n.NKey != "", n.Token != ""} {
		if set {
			given++
		}
	}
	if given > 1 {
		r.problem("nats", "has more than one of creds, nkey and token; keep one")
	}
	if (n.TLS.Cert == "") != (n.TLS.Key == "") {
		r.problem("nats.tls", "needs cert and key together")
	}
	r.oneOf("nats.sync", n.Sync, "default", "always")
	if !slices.Contains([]int{1, 3, 5}, n.Replicas) {
		r.problem("nats.replicas", "must be 1, 3 or 5")
	}
}

func engineKey(i int, name string) string { return fmt.Sprintf("engines.%d.%s", i, name) }

func (c *Config) validateEngines(r *report) {
	if len(c.Engines) == 0 {
		r.problem("engines", "is empty; add an entry, such as - sim: {count: 1} or - url: http://host:30000")
	}
	seen := map[string]int{}
	for i, e := range c.Engines {
		kinds := 0
		for _, set := range []bool{e.Sim != nil, e.URL != "", e.Launch != nil} {
			if set {
				kinds++
			}
		}
		if kinds != 1 {
			r.problem("engines."+strconv.Itoa(i), "must have exactly one of sim, url and launch")
		}
		if e.Sim != nil {
			r.between(engineKey(i, "sim.count"), e.Sim.Count, 1, maxEngines)
		}
		if e.Launch != nil {
			r.between(engineKey(i, "launch.replicas"), e.Launch.Replicas, 1, maxEngines)
			r.between(engineKey(i, "launch.gpus"), e.Launch.GPUs, 0, maxEngines)
		}
		if e.URL != "" && r.serverURL(engineKey(i, "url"), e.URL, "http", "https") {
			bare := strings.TrimRight(e.URL, "/")
			if first, ok := seen[bare]; ok {
				r.problem(engineKey(i, "url"), "is the same engine as engines.%d; remove one", first)
			}
			seen[bare] = i
			if hasUser(e.URL) {
				r.problem(engineKey(i, "url"), "holds a user name or a password, which workers have no safe way to learn; remove it")
			}
		}
		r.between(engineKey(i, "max_inflight"), e.MaxInflight, 0, maxCount)
	}
}

func (o *Rollout) validate(r *report) {
	r.oneOf("rollout.mode", o.Mode, "direct", "session")
	r.between("rollout.batch_size", o.BatchSize, 1, maxEpisodes)
	r.between("rollout.n_samples_per_prompt", o.NSamplesPerPrompt, 1, maxEpisodes)
	asked := "rollout.batch_size"
	if r.given("rollout.over_sampling_batch_size") {
		asked = "rollout.over_sampling_batch_size"
		r.between(asked, o.OverSamplingBatchSize, 1, maxEpisodes)
		if o.OverSamplingBatchSize < o.BatchSize {
			r.problem(asked, "must be at least rollout.batch_size")
		}
	}
	if n := product(o.OverSamplingBatchSize, o.NSamplesPerPrompt); n > maxEpisodes && max(o.OverSamplingBatchSize, o.NSamplesPerPrompt) <= maxEpisodes {
		r.problem(asked, "times rollout.n_samples_per_prompt is %d episodes a step, at most %d are possible; lower one of the two", n, maxEpisodes)
	}
	if !isHook(o.DynamicFilter) {
		r.oneOf("rollout.dynamic_filter", o.DynamicFilter, "none", "nonzero_std", "no_aborted")
	}
	r.oneOf("rollout.surplus", o.Surplus, "drop", "keep")
	if o.Surplus == "keep" && !o.Partial.Enabled && !o.Async.Enabled {
		r.problem("rollout.surplus", "keep needs rollout.partial or rollout.async; enable one or set surplus: drop")
	}
	if o.MinValidPerGroup < 0 || o.MinValidPerGroup > o.NSamplesPerPrompt {
		r.problem("rollout.min_valid_per_group", "must be from 0 (all) to rollout.n_samples_per_prompt")
	}
	for key, n := range o.Retries {
		r.between("rollout.retries."+key, n, 0, maxRetries)
	}
	r.deadline("rollout.episode_deadline", time.Duration(o.EpisodeDeadline))
	r.deadline("rollout.step_deadline", time.Duration(o.StepDeadline))
	r.between("rollout.async.max_staleness", o.Async.MaxStaleness, 0, maxCount)
	r.number("rollout.async.queue_factor", o.Async.QueueFactor, 1, 1000)
	r.between("rollout.max_context_len", o.MaxContextLen, 2, maxTokens)

	s := o.Sampling
	r.number("rollout.sampling.temperature", s.Temperature, 0, math.Inf(1))
	if s.TopP <= 0 || s.TopP > 1 {
		r.problem("rollout.sampling.top_p", "must be above 0 and at most 1")
	}
	if s.TopK != -1 && s.TopK < 1 {
		r.problem("rollout.sampling.top_k", "must be -1 (all) or at least 1")
	}
	if s.TopP > 0 && s.TopP < 1 {
		r.warn("rollout.sampling.top_p", "below 1 cuts tokens that the trainer's log-probs keep; the two will differ")
	}
	if s.TopK > 0 {
		r.warn("rollout.sampling.top_k", "cuts tokens that the trainer's log-probs keep; the two will differ")
	}
	r.number("rollout.sampling.min_p", s.MinP, 0, 1)
	r.number("rollout.sampling.frequency_penalty", s.FrequencyPenalty, -2, 2)
	r.number("rollout.sampling.presence_penalty", s.PresencePenalty, -2, 2)
	if s.RepetitionPenalty <= 0 || s.RepetitionPenalty > 2 {
		r.problem("rollout.sampling.repetition_penalty", "must be above 0 and at most 2")
	}
	r.between("rollout.sampling.max_new_tokens", s.MaxNewTokens, 1, maxTokens)
	if o.MaxContextLen >= 2 && s.MaxNewTokens >= o.MaxContextLen {
		r.problem("rollout.sampling.max_new_tokens", "leaves no room for a prompt in rollout.max_context_len; lower it or raise that")
	}
	for i, stop := range s.Stop {
		r.notEmpty(fmt.Sprintf("rollout.sampling.stop.%d", i), stop, "an empty stop matches everywhere; remove it")
	}
	for i, id := range s.StopTokenIDs {
		r.between(fmt.Sprintf("rollout.sampling.stop_token_ids.%d", i), int(id), 0, math.MaxInt32)
	}
}

// isHook tells a filter of the user's own from the names of built-in ones.
func isHook(filter string) bool {
	return strings.HasPrefix(filter, "exec:") || strings.HasPrefix(filter, "http:") || strings.HasPrefix(filter, "https:")
}

var (
	exitStatuses = []string{"resolved", "unresolved", "agent_timeout", "context_exceeded", "env_failed", "eval_failed", "killed"}
	envName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

func (s *Session) validate(r *report) {
	r.oneOf("session.backend", s.Backend, "auto", "generate", "chat")
	r.address("session.listen", s.Listen)
	r.oneOf("session.matcher", s.Matcher, "strict", "loose_tool_call", "role_content_only")
	r.oneOf("session.policy", s.Policy, "tree", "linear")
	r.oneOf("session.fan_out_reward", s.FanOutReward, "copy", "divide")
	r.between("session.max_seq_len", s.MaxSeqLen, 2, maxTokens)
	r.between("session.max_turns", s.MaxTurns, 1, maxCount)
	r.deadline("session.ttl", time.Duration(s.TTL))
	r.between("session.max_samples_per_episode", s.MaxSamplesPerEpisode, 0, maxCount)
	if s.Advertise != "" {
		r.serverURL("session.advertise", s.Advertise, "http", "https")
	}
	s.Agent.validate(r)
}

func (a *Agent) validate(r *report) {
	if len(a.Exec) > 0 && a.HTTP != "" {
		r.problem("session.agent", "has both exec and http; keep one")
	}
	if len(a.Exec) > 0 {
		r.notEmpty("session.agent.exec.0", a.Exec[0], "name the program")
	}
	if a.HTTP != "" {
		if u, err := url.Parse(a.HTTP); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			r.problem("session.agent.http", "must be a URL such as http://host:port/run")
		}
	}
	for i, e := range a.Env {
		if name, _, _ := strings.Cut(e.Reveal(), "="); !envName.MatchString(name) {
			r.problem(fmt.Sprintf("session.agent.env.%d", i), "must be NAME=value, or the NAME of a variable to pass on")
		}
	}
	for _, status := range slices.Sorted(maps.Keys(a.ExitStatus)) {
		what := a.ExitStatus[status]
		key := "session.agent.exit_status." + status
		if !slices.Contains(exitStatuses, status) {
			r.problem(key, "is no exit status; they are: %s", strings.Join(exitStatuses, ", "))
		}
		if !slices.Contains([]string{"train", "mask", "drop", "retry"}, what) {
			r.problem(key, "must be train, mask, drop or retry")
		}
	}
}

// validateMode reports what session mode needs and does not have.
func (c *Config) validateMode(r *report) {
	agent := len(c.Session.Agent.Exec) > 0 || c.Session.Agent.HTTP != ""
	if c.Rollout.Mode != "session" {
		if c.Reward.Type == "agent" {
			r.problem("reward.type", "agent needs rollout.mode: session; choose a verifier")
		}
		if agent {
			r.warn("session.agent", "is not used in direct mode; set rollout.mode: session")
		}
		return
	}
	if !agent {
		r.problem("session.agent", "is missing in session mode; set session.agent.exec to a command or session.agent.http to a URL")
	}
	if c.Model.Family == "default" {
		r.warn("model.family", "default takes no tool calls out of replies; name the model's family if its agents use tools")
	}
	if !c.Worker.Embedded {
		for i, e := range c.Session.Agent.Env {
			if strings.Contains(e.Reveal(), "=") {
				r.problem(fmt.Sprintf("session.agent.env.%d", i), "a value stays in this process and would not reach other workers; set the variable there and give its name alone")
			}
		}
	}
	if c.Reward.Type == "agent" && c.Rollout.DynamicFilter == "nonzero_std" {
		r.warn("rollout.dynamic_filter", "drops groups in which no agent gives a reward")
	}
}

func (w *Reward) validate(r *report) {
	if w.Type == "" {
		r.problem("reward.type", "is missing; choose the verifier, one of: %s", strings.Join(rewardTypes, ", "))
	} else {
		r.oneOf("reward.type", w.Type, rewardTypes...)
	}
	r.deadline("reward.timeout", time.Duration(w.Timeout))
	r.between("reward.retries", w.Retries, 0, maxRetries)
	r.between("reward.concurrency", w.Concurrency, 1, maxCount)
}

// rewardTypes are the verifiers of this version, and the agent's own word.
var rewardTypes = []string{"exact", "math", "agent"}

func (t *Train) validate(r *report) {
	r.oneOf("train.estimator", t.Estimator, "grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo")
	if r.given("train.global_batch_size") {
		r.between("train.global_batch_size", t.GlobalBatchSize, 1, maxEpisodes)
	}
	r.between("train.dp_size", t.DPSize, 1, maxCount)
	r.oneOf("train.packing", t.Packing, "first_fit_decreasing")
	r.between("train.dynamic_batch.max_tokens_per_gpu", t.DynamicBatch.MaxTokensPerGPU, 1, maxTokens)
}

func (c *Config) validateEval(r *report) {
	seen := map[string]bool{}
	for i, e := range c.Eval {
		key := "eval." + strconv.Itoa(i)
		if !runName.MatchString(e.Name) {
			r.problem(key+".name", "must be 1 to 40 of the characters a-z, 0-9 and -")
		}
		if seen[e.Name] {
			r.problem(key+".name", "is used by an earlier entry; choose another")
		}
		seen[e.Name] = true
		r.notEmpty(key+".prompts", e.Prompts, "name the file with the prompts")
		r.between(key+".n_samples", e.NSamples, 1, maxEpisodes)
		r.between(key+".every", e.Every, 1, maxSteps)
	}
}

// checkFiles reports files and folders that are named and not there.
func (c *Config) checkFiles(r *report) {
	if p := c.Model.Path; p != "" {
		if info, err := os.Stat(p); err != nil || !info.IsDir() {
			r.problem("model.path", "there is no folder %s; paths are relative to the working directory", r.shown("model.path"))
		}
	}
	if p := c.Data.Prompts; p != "" {
		switch info, err := os.Stat(withoutSlice(p)); {
		case err != nil:
			r.problem("data.prompts", "there is no file %s; paths are relative to the working directory", r.shown("data.prompts"))
		case info.IsDir():
			r.problem("data.prompts", "%s is a folder; name one file of JSON lines or Parquet in it", r.shown("data.prompts"))
		case !info.Mode().IsRegular():
			r.problem("data.prompts", "%s is a device or a pipe, which cannot be read twice; write its content to a file", r.shown("data.prompts"))
		}
	}
	for i, e := range c.Engines {
		if e.Sim != nil && e.Sim.Script != "" {
			if info, err := os.Stat(e.Sim.Script); err != nil || !info.Mode().IsRegular() {
				r.problem(engineKey(i, "sim.script"), "there is no file %s; paths are relative to the working directory", r.shown(engineKey(i, "sim.script")))
			}
		}
	}
	for _, f := range []struct{ key, path string }{
		{"nats.creds", c.NATS.Creds}, {"nats.nkey", c.NATS.NKey},
		{"nats.tls.ca", c.NATS.TLS.CA}, {"nats.tls.cert", c.NATS.TLS.Cert}, {"nats.tls.key", c.NATS.TLS.Key},
	} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); err != nil {
			r.problem(f.key, "there is no file %s; paths are relative to the working directory", r.shown(f.key))
		}
	}
}

// withoutSlice is the path of a prompt file without its "@[a:b]".
func withoutSlice(path string) string {
	if i := strings.LastIndex(path, "@["); i >= 0 && strings.HasSuffix(path, "]") {
		return path[:i]
	}
	return path
}

// shown is the value of a key as it was written, variables unexpanded.
func (r *report) shown(key string) string { return r.places[key].text }

func (r *report) between(key string, v, least, most int) {
	switch {
	case v < least:
		r.problem(key, "must be at least %d, not %d", least, v)
	case v > most:
		r.problem(key, "must be at most %d, not %d", most, v)
	}
}

// deadline checks a length of time; 0 is one that Sheaf chooses.
func (r *report) deadline(key string, d time.Duration) {
	switch {
	case d != 0 && d < minDeadline:
		r.problem(key, "must be at least %v, not %v", minDeadline, d)
	case d > maxDeadline:
		r.problem(key, "must be at most %v, not %v", maxDeadline, d)
	}
}

func (r *report) number(key string, v, least, most float64) {
	switch {
	case v >= least && v <= most:
	case math.IsInf(most, 1):
		r.problem(key, "must be at least %v, not %v", least, v)
	default:
		r.problem(key, "must be from %v to %v, not %v", least, most, v)
	}
}

func (r *report) notEmpty(key, v, remedy string) {
	if v == "" {
		r.problem(key, "is empty; %s", remedy)
	}
}

func (r *report) oneOf(key, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		r.problem(key, "%q is not one of: %s", r.shown(key), strings.Join(allowed, ", "))
	}
}

func (r *report) address(key, v string) bool {
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		r.problem(key, "must be host:port, such as 127.0.0.1:7070")
	}
	return err == nil
}

// serverURL reports a URL that does not name just a server. It never repeats the
// URL, which may hold a password.
func (r *report) serverURL(key, v string, schemes ...string) bool {
	u, err := url.Parse(v)
	if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
		r.problem(key, "must be a URL such as %s://host:port", schemes[0])
		return false
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		r.problem(key, "must end after host and port; remove the path")
		return false
	}
	return true
}

// hasUser tells a URL with a user name or a password.
func hasUser(v string) bool {
	u, err := url.Parse(v)
	return err == nil && u.User != nil
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
