package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
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
	for i := range out.Engines {
		out.Engines[i].URL = withoutUser(out.Engines[i].URL)
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

// Fingerprint is a SHA-256, in hex, over what must be the same when a run is
// taken up again: the seed, the model (modelHash is over its files), the data,
// and how episodes are sampled, scored and batched. Places, addresses, engines,
// secrets and the number of steps may change.
func (c *Config) Fingerprint(modelHash string) (string, error) {
	r, err := c.Redacted()
	if err != nil {
		return "", err
	}
	s := r.Session
	s.Listen, s.Advertise, s.TTL = "", "", 0
	w := r.Reward
	w.URL, w.Timeout, w.Retries, w.Concurrency = "", 0, 0, 0
	o := r.Rollout
	o.EpisodeDeadline, o.StepDeadline, o.Retries = 0, 0, nil
	text, err := json.Marshal(struct {
		Schema    int
		Name      string
		Seed      int64
		ModelHash string
		Family    string
		Data      Data
		Rollout   Rollout
		Session   Session
		Reward    Reward
		Train     Train
	}{1, r.Run.Name, r.Run.Seed, modelHash, r.Model.Family, r.Data, o, s, w, r.Train})
	if err != nil {
		return "", fmt.Errorf("fingerprint the config: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
