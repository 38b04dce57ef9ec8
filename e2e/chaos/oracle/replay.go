package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/step"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

var errBytes = errors.New("made again from groups.cbor it has other bytes")

// replay makes a step's samples and batch again from its groups, in another
// order, and compares bytes.
func replay(sh shape, n int64, dir string) error {
	codec, err := wire.New()
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(dir, "groups.cbor"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	groups, err := codec.ReadGroups(f)
	if err != nil {
		return err
	}
	verdicts := map[rollout.EpisodeID]rollout.Disposition{}
	for i := range groups {
		g := &groups[i]
		for k := range g.Episodes {
			verdicts[g.Episodes[k].ID] = g.Dispositions[k]
		}
		g.Dispositions = nil
	}
	order := rand.New(rand.NewPCG(uint64(n), 1))
	order.Shuffle(len(groups), func(a, b int) { groups[a], groups[b] = groups[b], groups[a] })

	cfg := step.Config{
		Run: sh.Run, Step: n, BatchSize: sh.Batch, SamplesPerPrompt: sh.Samples, MinValid: sh.MinValid, Filter: step.FilterNone,
		Estimator: step.GRPO, Normalize: true, StdNormalize: true, Temperature: 1, MaxContext: sh.MaxContext,
	}
	groups = step.Dispose(cfg, groups)
	for i := range groups {
		for k, d := range groups[i].Dispositions {
			if id := groups[i].Episodes[k].ID; verdicts[id] != d {
				return fmt.Errorf("episode %+v is %v, and %v when disposed again", id, verdicts[id], d)
			}
		}
	}
	result, err := step.Reduce(cfg, groups, step.Window{})
	if err != nil {
		return err
	}
	batch := step.NewBatch(cfg, result, step.Whole(result))
	var samples, rank bytes.Buffer
	if err := errors.Join(step.WriteSamples(&samples, result.Samples), batch.WriteRank(&rank, 0)); err != nil {
		return err
	}
	for name, again := range map[string][]byte{"samples.jsonl": samples.Bytes(), "batch/rank-00000-of-00001.safetensors": rank.Bytes()} {
		was, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if !slices.Equal(was, again) {
			return fmt.Errorf("%s: %w", name, errBytes)
		}
	}
	return nil
}
