package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-multierror"
)

const minimal = `
model: {path: m}
data: {prompts: p.jsonl}
engines: [{url: "http://a:1"}]
reward: {type: exact}
`

// loadText loads a config from text, without looking for the files it names.
func loadText(t *testing.T, text string, set ...string) (*Config, error) {
	t.Helper()
	env := map[string]string{"TOKEN": "tok-s3cret", "SIZE": "16", "YAML": "{a: 1}"}
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path, Options{Set: set, SkipFiles: true, LookupEnv: func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}})
}

// problems are the problems of an error, files cut to their base names.
func problems(t *testing.T, err error) []string {
	t.Helper()
	var all *multierror.Error
	if err != nil && !errors.As(err, &all) {
		t.Fatalf("error is %T, not a list: %v", err, err)
	}
	var out []string
	for _, e := range all.WrappedErrors() {
		p := *e.(*Problem)
		p.File = filepath.Base(p.File)
		out = append(out, p.Error())
	}
	return out
}

func TestLoadBad(t *testing.T) {
	for _, tc := range []struct {
		name string
		text string
		set  []string
		want []string // each is a prefix
	}{
		{
			name: "empty file",
			want: []string{
				"c.yaml:1: model.path: is empty; name the model's folder",
				"c.yaml:1: data.prompts: is empty; name the file",
				"c.yaml:1: engines: is empty; add an entry",
				"c.yaml:1: reward.type: is missing; choose the verifier",
			},
		},
		{
			name: "many problems at once, in the order of the file",
			text: "run: {name: Bad Name, steps: 0}\nmodel:\n  path: m\n  famly: qwen3\ndata: {prompts: p, shuffle: yes}\n" +
				"engines:\n  - url: ftp://x\n  - sim: {count: 0}\n  - {}\nrollout:\n  batch_size: many\n  sampling:\n    top_p: 1.5\n    max_new_token: 3\n  episode_deadline: 30\nreward: {type: exakt}\n",
			want: []string{
				"c.yaml:1: run.name: must be 1 to 40",
				"c.yaml:1: run.steps: must be at least 1, not 0",
				"c.yaml:4: model.famly: unknown key; did you mean family?",
				`c.yaml:5: data.shuffle: must be true or false, not "yes"`,
				"c.yaml:7: engines.0.url: must be a URL such as http://host:port",
				"c.yaml:8: engines.1.sim.count: must be at least 1, not 0",
				"c.yaml:9: engines.2: must have exactly one of sim, url and launch",
				`c.yaml:11: rollout.batch_size: must be a whole number that fits 64 bits, not "many"`,
				"c.yaml:13: rollout.sampling.top_p: must be above 0 and at most 1",
				"c.yaml:14: rollout.sampling.max_new_token: unknown key; did you mean max_new_tokens?",
				"c.yaml:15: rollout.episode_deadline: must be a length of time with its unit, such as 30s or 5m, or auto",
				`c.yaml:16: reward.type: "exakt" is not one of: exact, math, agent`,
			},
		},
		{
			name: "features not built",
			text: "model: {path: m}\ndata: {prompts: p}\nengines:\n- sim: {speculative: true}\n- launch: {gpus: 8}\nreward: {type: exact, timeout: 3s}\n" +
				"rollout:\n  mode: direct\n  surplus: keep\n  partial: {enabled: true}\n  async: {enabled: true}\n  dynamic_filter: exec:x\n" +
				"eval: [{name: a, prompts: p}]\nsession: {backend: chat}\nworker: {advertise: {ifname: eth0}}\n",
			want: []string{
				"c.yaml:5: engines.1.launch: launching engines is not available",
				"c.yaml:6: reward.timeout: a remote verifier is not available",
				"c.yaml:9: rollout.surplus: keeping surplus groups is not available",
				"c.yaml:10: rollout.partial: partial rollout is not available",
				"c.yaml:11: rollout.async: asynchronous rollout is not available",
				"c.yaml:12: rollout.dynamic_filter: a filter of your own is not available",
				"c.yaml:13: eval: evaluation is not available",
				"c.yaml:14: session.backend: the chat backend is not available",
				"c.yaml:15: worker.advertise: placement on many nodes is not available",
			},
		},
		{
			name: "session mode",
			text: "model: {path: m, family: qwen3}\ndata: {prompts: p}\nengines: [{sim: {}}]\nrollout: {mode: session}\nreward: {type: exact}\n" +
				"worker: {embedded: false}\nsession:\n  matcher: lenient\n  policy: bush\n  fan_out_reward: keep\n  agent:\n    exec: [a]\n    http: http://h/run\n" +
				"    env: [A=1, 'not a name']\n    exit_status: {tired: drop, killed: sell}\nnats: {listen: '127.0.0.1:4222'}\n",
			want: []string{
				`c.yaml:8: session.matcher: "lenient" is not one of: strict, loose_tool_call, role_content_only`,
				`c.yaml:9: session.policy: "bush" is not one of: tree, linear`,
				`c.yaml:10: session.fan_out_reward: "keep" is not one of: copy, divide`,
				"c.yaml:11: session.agent: has both exec and http",
				"c.yaml:14: session.agent.env.1: must be NAME=value",
				"c.yaml:14: session.agent.env.0: a value stays in this process",
				"c.yaml:15: session.agent.exit_status.killed: must be train, mask, drop or retry",
				"c.yaml:15: session.agent.exit_status.tired: is no exit status",
			},
		},
		{
			name: "session mode without an agent",
			text: minimal + "rollout: {mode: session}\n",
			want: []string{"c.yaml:1: session.agent: is missing in session mode"},
		},
		{
			name: "missing variables are named with their lines, others keep their values to themselves",
			text: minimal + "run:\n  name: ${NOPE}\n  steps: ${TOKEN}\n  # ${NOT_READ}\nnats: {listen: \"${TOKEN}\", token: ${ALSO_NOPE}}\n",
			want: []string{
				"c.yaml:7: run.name: the environment variable NOPE is not set; set it or replace ${NOPE}",
				`c.yaml:8: run.steps: must be a whole number that fits 64 bits, not "${TOKEN}"`,
				"c.yaml:10: nats.token: the environment variable ALSO_NOPE is not set",
				"c.yaml:10: nats.listen: must be host:port",
			},
		},
		{
			name: "duplicate keys",
			text: minimal + "run:\n  steps: 1\n  steps: 2\nreward: {type: exact}\n",
			want: []string{
				"c.yaml:8: run.steps: is given twice, first on line 7; remove one",
				"c.yaml:9: reward: is given twice, first on line 5; remove one",
			},
		},
		{
			name: "not YAML, and the secret on the line stays out",
			text: "api: {token: hush\nrun: {}\n",
			want: []string{"c.yaml:2: is not valid YAML: ',' or '}' must be specified"},
		},
		{
			name: "wrong shapes",
			text: minimal + "run: 3\nnats: [a]\nrollout: {batch_size: [1], sampling: {stop: x}}\neval: {a: 1}\n",
			want: []string{
				"c.yaml:6: run: must be a section of keys, not a single value",
				"c.yaml:7: nats: must be a section of keys, not a list",
				"c.yaml:8: rollout.batch_size: must be a single value, not a list",
				"c.yaml:8: rollout.sampling.stop: must be a list, such as [a, b], not a single value",
				"c.yaml:9: eval: must be a list",
			},
		},
		{
			name: "quoted numbers, anchors and empty entries",
			text: minimal + "run: {steps: '3', seed: &x 4}\nrollout: {sampling: {stop: [null]}}\n",
			want: []string{
				`c.yaml:6: run.steps: must be a whole number`,
				"c.yaml:6: run.seed: YAML anchors, aliases and tags are not supported",
				"c.yaml:7: rollout.sampling.stop.0: is empty",
			},
		},
		{
			name: "two documents",
			text: minimal + "---\nrun: {}\n",
			want: []string{"c.yaml:1: holds 2 YAML documents; keep one"},
		},
		{
			name: "nats contradictions",
			text: minimal + "nats:\n  embedded: true\n  urls: [nats://u:pw@h:1, 'http://h']\n  token: a\n  nkey: b\n  listen: 0.0.0.0:4222\n  replicas: 2\n  sync: never\n  tls: {cert: c}\n",
			want: []string{
				"c.yaml:6: nats: has more than one of creds, nkey and token; keep one",
				"c.yaml:8: nats.urls: points at running servers while nats.embedded is true",
				"c.yaml:8: nats.urls.1: must be a URL such as nats://host:port",
				"c.yaml:12: nats.replicas: an embedded server is single",
				"c.yaml:12: nats.replicas: must be 1, 3 or 5",
				`c.yaml:13: nats.sync: "never" is not one of: default, always`,
				"c.yaml:14: nats.tls: needs cert and key together",
			},
		},
		{
			name: "open doors need a token",
			text: minimal + "nats: {listen: '0.0.0.0:4222'}\napi: {listen: ':7070'}\n",
			want: []string{
				"c.yaml:6: nats.listen: listens beyond this machine without a token",
				"c.yaml:7: api.listen: listens beyond this machine without a token",
				"c.yaml:7: api.listen: the trainer's door is not available",
			},
		},
		{
			name: "the same engine twice",
			text: "model: {path: m}\ndata: {prompts: p}\nreward: {type: exact}\nengines:\n- url: http://a:1\n- url: http://a:1/\n- url: http://u:hush@b:1/v1\n",
			want: []string{
				"c.yaml:6: engines.1.url: is the same engine as engines.0",
				"c.yaml:7: engines.2.url: must end after host and port",
			},
		},
		{
			name: "a password in an engine's address",
			text: "model: {path: m}\ndata: {prompts: p}\nreward: {type: exact}\nengines:\n- url: http://u:hush@b:1\n- url: https://hush@b:2\n- url: http://b:3\n",
			set:  []string{"engines.2.url=http://u:hush@b:3"},
			want: []string{
				"--set: engines.2.url: holds a user name or a password",
				"c.yaml:5: engines.0.url: holds a user name or a password",
				"c.yaml:6: engines.1.url: holds a user name or a password",
			},
		},
		{
			name: "bad overrides",
			text: minimal,
			set:  []string{"nonsense", "run.stepz=2", "run.steps=x", "engines.4.url=http://b:1", "run.steps.x=1", "api.token={", "rollout.batch_size=0"},
			want: []string{
				"--set: must be key=value",
				"--set: run.stepz: unknown key; did you mean steps?",
				`--set: run.steps: must be a whole number that fits 64 bits, not "x"`,
				"--set: engines.4: no such entry: engines has 1, numbered from 0",
				"--set: run.steps.x: run.steps is a single value and has no keys below it",
				`--set: api.token: is not valid YAML`,
				"--set: rollout.batch_size: must be at least 1, not 0",
			},
		},
		{
			name: "an entry without content and an emptied value",
			text: "model: {path: m}\ndata: {prompts: p}\nreward: {type: exact}\nengines:\n  - sim:\n",
			set:  []string{"run.out="},
			want: []string{"--set: run.out: is empty", "c.yaml:5: engines.0: must have exactly one"},
		},
		{
			name: "sizes past their bounds, all at once",
			text: minimal + "run: {steps: 2000000000}\nrollout:\n  batch_size: 9223372036854775807\n  n_samples_per_prompt: 1000000000000\n  max_context_len: 1000000000\n" +
				"  sampling: {max_new_tokens: 500000000}\n  episode_deadline: 1ns\n  step_deadline: 2000000h\n  retries: {engine: 5000}\nworker: {slots: 4000000000000}\ntrain: {dp_size: 9000000}\n",
			set: []string{"engines.0.max_inflight=2000000"},
			want: []string{
				"--set: engines.0.max_inflight: must be at most 1000000, not 2000000",
				"c.yaml:6: run.steps: must be at most 1000000000, not 2000000000",
				"c.yaml:8: rollout.batch_size: must be at most 10000000, not 9223372036854775807",
				"c.yaml:9: rollout.n_samples_per_prompt: must be at most 10000000, not 1000000000000",
				"c.yaml:10: rollout.max_context_len: must be at most 100000000, not 1000000000",
				"c.yaml:11: rollout.sampling.max_new_tokens: must be at most 100000000, not 500000000",
				"c.yaml:12: rollout.episode_deadline: must be at least 100ms, not 1ns",
				"c.yaml:13: rollout.step_deadline: must be at most 8760h0m0s, not 2000000h0m0s",
				"c.yaml:14: rollout.retries.engine: must be at most 1000, not 5000",
				"c.yaml:15: worker.slots: must be at most 1000000, not 4000000000000",
				"c.yaml:16: train.dp_size: must be at most 1000000, not 9000000",
			},
		},
		{
			name: "sizes whose product is past its bound",
			text: minimal + "rollout:\n  batch_size: 4000\n  over_sampling_batch_size: 6000\n  n_samples_per_prompt: 2000\n",
			want: []string{"c.yaml:8: rollout.over_sampling_batch_size: times rollout.n_samples_per_prompt is 12000000 episodes a step, at most 10000000"},
		},
		{
			name: "a run that no worker can join",
			text: minimal + "worker: {embedded: false}\n",
			want: []string{"c.yaml:6: worker.embedded: leaves the run without a worker"},
		},
		{
			name: "a door that is not there",
			text: minimal + "api: {listen: '127.0.0.1:1', token: x}\n",
			want: []string{"c.yaml:6: api.listen: the trainer's door is not available", "c.yaml:6: api.token: the trainer's door is not available"},
		},
		{
			name: "an override that is not YAML",
			text: minimal,
			set:  []string{"nats.listen=[::1]:4333"},
			want: []string{"--set: nats.listen: is not valid YAML"},
		},
		{
			name: "an unknown key far from any",
			text: minimal + "api: {zebra: 1}\n",
			want: []string{"c.yaml:6: api.zebra: unknown key; known here: listen, token"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := loadText(t, tc.text, tc.set...)
			got := problems(t, err)
			for i := range max(len(got), len(tc.want)) {
				switch {
				case i >= len(got):
					t.Errorf("missing: %s", tc.want[i])
				case i >= len(tc.want):
					t.Errorf("unexpected: %s", got[i])
				case !strings.HasPrefix(got[i], tc.want[i]):
					t.Errorf("problem %d:\n got %s\nwant %s", i, got[i], tc.want[i])
				}
			}
			for _, secret := range []string{"s3cret", "hush", "pw@"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows a secret: %v", err)
				}
			}
		})
	}
}

func TestLoadGood(t *testing.T) {
	cfg, err := loadText(t, `
model: {path: m}
data: {prompts: "p.jsonl@[0:${SIZE}]", chat_template_kwargs: {enable_thinking: false, n: [1, 2.5, "${TOKEN}"], deep: {b: 1, a: null}}}
engines:
  - sim: {}
  - url: http://a:1
nats: {token: ${TOKEN}}
rollout:
  batch_size: ${SIZE}
  episode_deadline: 1m30s
  sampling: {stop: ["${YAML}", '${SIZE}'], stop_token_ids: [1, 2], top_p: 0.5}
reward: {type: exact}
`, "rollout.n_samples_per_prompt=3", "engines.0.sim.count=2", "run.name=b", "rollout.sampling.stop_token_ids=[9]")
	if err != nil {
		t.Fatal(err)
	}
	want := Config{}
	defaults(&want)
	want.Run.Name = "b"
	want.Model.Path = "m"
	want.Data.Prompts = "p.jsonl@[0:16]"
	want.Data.ChatTemplateKwargs = map[string]json.RawMessage{
		"enable_thinking": json.RawMessage("false"), "n": json.RawMessage(`[1,2.5,"tok-s3cret"]`), "deep": json.RawMessage(`{"b":1,"a":null}`),
	}
	want.Engines = []Engine{{Sim: &Sim{Count: 2}}, {URL: "http://a:1"}}
	want.NATS.Token = "tok-s3cret"
	want.Rollout.BatchSize, want.Rollout.OverSamplingBatchSize, want.Rollout.NSamplesPerPrompt = 16, 16, 3
	want.Rollout.EpisodeDeadline = AutoDuration(90 * time.Second)
	want.Rollout.Sampling.Stop = []string{"{a: 1}", "16"}
	want.Rollout.Sampling.StopTokenIDs = []int32{9}
	want.Rollout.Sampling.TopP = 0.5
	want.Reward.Type = "exact"
	want.Train.GlobalBatchSize = 48
	got := *cfg
	got.warnings = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if w := cfg.Warnings(); len(w) != 1 || !strings.Contains(w[0], "c.yaml:11: rollout.sampling.top_p:") {
		t.Errorf("warnings: %q", w)
	}
}

func TestMissingFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path, Options{})
	got := problems(t, err)
	if len(got) != 2 || !strings.HasPrefix(got[0], "c.yaml:2: model.path: there is no folder m;") || !strings.HasPrefix(got[1], "c.yaml:3: data.prompts: there is no file p.jsonl;") {
		t.Errorf("problems: %q", got)
	}
	_, err = Load(filepath.Join(t.TempDir(), "none.yaml"), Options{})
	if got := problems(t, err); len(got) != 1 || got[0] != "none.yaml: cannot read the config: no such file or directory" {
		t.Errorf("problems: %q", got)
	}
}

func TestShippedConfigs(t *testing.T) {
	t.Chdir("../..")
	paths, err := filepath.Glob("configs/*.yaml")
	if err != nil || len(paths) < 2 {
		t.Fatalf("found %q, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			cfg, err := Load(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(cfg.Warnings()) > 0 {
				t.Errorf("warnings: %q", cfg.Warnings())
			}
		})
	}
}

func TestSecretsStayHidden(t *testing.T) {
	cfg, err := loadText(t, minimal+"nats: {token: \"${TOKEN}\"}\n")
	if err != nil {
		t.Fatal(err)
	}
	cfg.API.Token = "tok-s3cret"
	cfg.Session.Agent.HTTP = "http://me:tok-s3cret@a:1"
	cfg.Session.Agent.Env = []Secret{"KEY=tok-s3cret"}
	red, err := cfg.Redacted()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(red)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{string(text), fmt.Sprintf("%v %+v %#v", red, red, red), fmt.Sprintf("%v %+v %#v %s", cfg.NATS, cfg.NATS, cfg.NATS, cfg.NATS.Token)} {
		if strings.Contains(shown, "s3cret") {
			t.Errorf("a secret is shown: %s", shown)
		}
	}
	if red.Session.Agent.HTTP != "http://a:1" || red.NATS.Token != hidden || cfg.NATS.Token.Reveal() != "tok-s3cret" {
		t.Errorf("redacted to %+v", red)
	}
	// What is redacted differs in nothing else.
	red.NATS.Token, red.API.Token, red.Session.Agent = cfg.NATS.Token, cfg.API.Token, cfg.Session.Agent
	if !reflect.DeepEqual(red, cfg) {
		t.Errorf("redacted form lost something:\n%+v\n%+v", red, cfg)
	}
}

func TestFingerprint(t *testing.T) {
	fingerprint := func(model string, set ...string) string {
		t.Helper()
		cfg, err := loadText(t, minimal, set...)
		if err != nil {
			t.Fatal(err)
		}
		f, err := cfg.Fingerprint(model)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	base := fingerprint("h")
	for _, set := range []string{"run.steps=9", "run.out=x", "rollout.allow_empty_steps=true", "nats.token=x", "worker.slots=3", "engines=[{sim: {}}]", "rollout.episode_deadline=5s", "model.path=elsewhere"} {
		if fingerprint("h", set) != base {
			t.Errorf("%s changes the fingerprint", set)
		}
	}
	seen := map[string]string{base: "the base", fingerprint("other"): "the model"}
	for _, set := range []string{"run.seed=9", "run.name=x", "data.prompts=q", "data.shuffle=false", "rollout.batch_size=4", "rollout.sampling.temperature=0.5", "train.normalize=false", "model.family=qwen3"} {
		f := fingerprint("h", set)
		if by, ok := seen[f]; ok {
			t.Errorf("%s has the fingerprint of %s", set, by)
		}
		seen[f] = set
	}
}

func TestDifferencesNameKeys(t *testing.T) {
	load := func(set ...string) *Config {
		t.Helper()
		cfg, err := loadText(t, minimal, set...)
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	red, err := load().Redacted()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := json.Marshal(red)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		set  []string
		want []string
	}{
		{"nothing", nil, nil},
		{"what may change", []string{"run.steps=7", "worker.slots=2", "rollout.retries={engine: 1}"}, nil},
		{"one key", []string{"run.seed=9"}, []string{"run.seed"}},
		{"nested keys and lists", []string{"rollout.sampling.top_p=0.5", "rollout.sampling.stop=[x]", "data.label_key=y"},
			[]string{"data.label_key", "rollout.sampling.stop", "rollout.sampling.top_p"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := load(tc.set...).Differences(stored)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestPromptsThatAreNoFile(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct{ name, path, want string }{
		{"a folder", dir, "is a folder"},
		{"a device", os.DevNull, "is a device or a pipe"},
		{"a slice of a folder", dir + "@[0:1]", "is a folder"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, "c.yaml")
			if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(path, Options{Set: []string{"data.prompts=" + strconv.Quote(tc.path), "model.path=" + strconv.Quote(dir)}})
			if got := problems(t, err); len(got) != 1 || !strings.Contains(got[0], "data.prompts: "+tc.path+" "+tc.want) {
				t.Errorf("problems: %q", got)
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(minimal, "run.steps=2")
	f.Add("a: {b: [c, ${D}]}\n", "engines.0.sim.count=1")
	f.Add("? a\n: b\n<<: {c: 1}\n--- \n", "=")
	f.Add("run: &a {steps: *a}\n", "eval=[{}]")
	f.Fuzz(func(t *testing.T, text, set string) {
		r := &report{file: "c.yaml", places: map[string]place{}}
		cfg, err := load(text, r, Options{Set: []string{set}, SkipFiles: true, LookupEnv: func(string) (string, bool) { return "tok-s3cret", true }})
		if (cfg == nil) == (err == nil) {
			t.Fatal("neither a config nor an error, or both")
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") && !strings.Contains(text+set, "s3cret") {
			t.Fatalf("the error shows a secret: %v", err)
		}
		if cfg != nil {
			if _, err := cfg.Fingerprint(""); err != nil {
				t.Fatal(err)
			}
		}
	})
}
