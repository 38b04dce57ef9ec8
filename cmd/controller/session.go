package main

import (
	"strings"
	"time"

	"github.com/sheaf-rl/sheaf/internal/config"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// sessionSpec is session mode as the run table tells it to workers; nil in direct
// mode.
func sessionSpec(cfg *config.Config) *rollout.SessionSpec {
	if cfg.Rollout.Mode != rollout.ModeSession {
		return nil
	}
	s := cfg.Session
	return &rollout.SessionSpec{
		Matcher: s.Matcher, Linear: s.Policy == "linear", MaxSeqLen: s.MaxSeqLen, MaxTurns: s.MaxTurns, TTL: time.Duration(s.TTL),
		Listen: s.Listen, Advertise: s.Advertise, AgentExec: s.Agent.Exec, AgentHTTP: s.Agent.HTTP, AgentEnv: agentEnv(cfg, false),
		ExitStatus: s.Agent.ExitStatus, MaxSamples: s.MaxSamplesPerEpisode, DivideReward: s.FanOutReward == "divide",
	}
}

// agentEnv lists the entries of the agent's environment that have values, or those
// that are names alone. Values may be secrets: they stay in this process.
func agentEnv(cfg *config.Config, values bool) []string {
	var out []string
	for _, e := range cfg.Session.Agent.Env {
		if text := e.Reveal(); strings.Contains(text, "=") == values {
			out = append(out, text)
		}
	}
	return out
}
