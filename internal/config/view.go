package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
)

// Redacted is a copy without secrets, fit for the run table and for display:
// secrets read "(hidden)", and URLs have lost their user and password.
func (c *Config) Redacted() (*Config, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("redact the config: %w", err)
	}
	out := &Config{warnings: c.warnings}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("redact the config: %w", err)
	}
	for i, u := range out.NATS.URLs {
		out.NATS.URLs[i] = withoutUser(u)
	}
	out.Session.Agent.HTTP = withoutUser(out.Session.Agent.HTTP)
	out.Reward.URL = withoutUser(out.Reward.URL)
	return out, nil
}

func withoutUser(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return hidden
	}
	if u.User == nil {
		return raw
	}
	u.User = nil
	return u.String()
}

// fixed is what must be the same when a run is taken up again: the seed, the
// data, and how episodes are sampled, scored and batched. Places, addresses,
// engines, secrets and the number of steps may change. Its keys are the config's.
type fixed struct {
	Run struct {
		Name string `json:"name"`
		Seed int64  `json:"seed"`
	} `json:"run"`
	Model struct {
		Family string `json:"family"`
	} `json:"model"`
	Data    Data    `json:"data"`
	Rollout Rollout `json:"rollout"`
	Session Session `json:"session"`
	Reward  Reward  `json:"reward"`
	Train   Train   `json:"train"`
}

func (c *Config) fixed() (f fixed, err error) {
	r, err := c.Redacted()
	if err != nil {
		return f, err
	}
	f.Run.Name, f.Run.Seed, f.Model.Family = r.Run.Name, r.Run.Seed, r.Model.Family
	f.Data, f.Rollout, f.Session, f.Reward, f.Train = r.Data, r.Rollout, r.Session, r.Reward, r.Train
	f.Session.Listen, f.Session.Advertise, f.Session.TTL = "", "", 0
	f.Reward.URL, f.Reward.Timeout, f.Reward.Retries, f.Reward.Concurrency = "", 0, 0, 0
	o := &f.Rollout
	o.EpisodeDeadline, o.StepDeadline, o.Retries, o.AllowEmptySteps = 0, 0, nil, false
	return f, nil
}

// Fingerprint is a SHA-256, in hex, over what must be the same when a run is
// taken up again; modelHash is over the model's files.
func (c *Config) Fingerprint(modelHash string) (string, error) {
	f, err := c.fixed()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(struct {
		Schema    int
		ModelHash string
		Config    fixed
	}{2, modelHash, f})
	if err != nil {
		return "", fmt.Errorf("fingerprint the config: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// Differences lists the keys of the fingerprint whose values differ between two
// configs. The other one is given as the JSON of its redacted form.
func (c *Config) Differences(redacted []byte) ([]string, error) {
	other := &Config{}
	if err := json.Unmarshal(redacted, other); err != nil {
		return nil, fmt.Errorf("read the stored config: %w", err)
	}
	var sides [2]map[string]any
	for i, side := range []*Config{c, other} {
		f, err := side.fixed()
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(f)
		if err != nil {
			return nil, fmt.Errorf("compare the configs: %w", err)
		}
		if err := json.Unmarshal(text, &sides[i]); err != nil {
			return nil, fmt.Errorf("compare the configs: %w", err)
		}
	}
	return differing("", sides[0], sides[1]), nil
}

// differing lists the paths at which two sections differ, in their order.
func differing(at string, a, b map[string]any) []string {
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	var out []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		x, isSection := a[key].(map[string]any)
		y, isSectionToo := b[key].(map[string]any)
		switch {
		case isSection && isSectionToo:
			out = append(out, differing(join(at, key), x, y)...)
		case !reflect.DeepEqual(a[key], b[key]):
			out = append(out, join(at, key))
		}
	}
	return out
}
