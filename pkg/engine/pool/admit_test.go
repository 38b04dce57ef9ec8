package pool

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// candidate is an engine whose tokens are the bytes of a text plus shift.
type candidate struct {
	info    engine.Info
	infoErr error
	reply   rollout.Generation
	err     error
	shift   int32
	tokErr  error
	asked   engine.Request

	healthErr error
	counters  engine.Counters
}

func (c *candidate) Info(context.Context) (engine.Info, error) { return c.info, c.infoErr }
func (c *candidate) Health(context.Context) error              { return c.healthErr }
func (c *candidate) Counters(context.Context) (engine.Counters, error) {
	return c.counters, nil
}
func (c *candidate) Abort(context.Context, string) error { return nil }
func (c *candidate) Tokenize(_ context.Context, text string) ([]int32, error) {
	return encode(text, c.shift), c.tokErr
}

func (c *candidate) Generate(_ context.Context, req engine.Request) (rollout.Generation, error) {
	c.asked = req
	c.reply.ID = req.ID
	return c.reply, c.err
}

func encode(text string, shift int32) []int32 {
	var ids []int32
	for i := range len(text) {
		ids = append(ids, int32(text[i]))
		if i == 2 {
			ids[i] += shift
		}
	}
	return ids
}

func TestAdmit(t *testing.T) {
	broken := &engine.Error{Reason: engine.Reset, Engine: "e", Err: errors.New("scripted")}
	version := rollout.EngineMeta{WeightVersion: rollout.Ptr("4"), Spec: rollout.SpecMeta{Dialect: "spec_accepted_drafts"}}
	finished := rollout.Generation{GenerationRecord: rollout.GenerationRecord{Fate: rollout.FateFinished, Meta: version}}
	aborted := finished
	aborted.Fate = rollout.FateAborted
	untrainable := finished
	untrainable.Untrainable = "missing_logprob"
	silent := finished
	silent.Meta.WeightVersion = nil
	for _, tc := range []struct {
		name       string
		engine     candidate
		want       *string
		err        error
		text       string
		unverified string
	}{
		{name: "fulfils all", engine: candidate{reply: finished}, want: rollout.Ptr("4")},
		{name: "any weights", engine: candidate{reply: silent}},
		{name: "version from the model", engine: candidate{reply: silent, info: engine.Info{WeightVersion: rollout.Ptr("4")}}, want: rollout.Ptr("4")},
		{name: "not there", engine: candidate{infoErr: broken}, err: broken},
		{name: "4: crashes on log-probs", engine: candidate{reply: finished, err: broken}, err: broken},
		{name: "3: without log-probs", engine: candidate{reply: untrainable}, err: ErrUntrainable, text: "missing_logprob"},
		{name: "aborts", engine: candidate{reply: aborted}, text: "ended it as aborted"},
		{name: "older weights", engine: candidate{reply: finished}, want: rollout.Ptr("5"), err: ErrVersion, text: `version "4", and "5" is wanted`},
		{name: "unknown weights", engine: candidate{reply: silent}, want: rollout.Ptr("5"), err: ErrVersion, text: "reports no version"},
		{name: "another tokenizer", engine: candidate{reply: finished, shift: 1}, err: ErrTokens, text: "number 2 differs"},
		{name: "no tokenizer", engine: candidate{reply: finished, shift: 1, info: engine.Info{NoTokenizer: true}}, unverified: "the engine keeps no tokenizer"},
		{name: "does not tokenize", engine: candidate{reply: finished, tokErr: &engine.Error{Err: engine.ErrNoTokenizer}}, unverified: "the engine does not tokenize"},
		{name: "cannot be asked for tokens", engine: candidate{reply: finished, tokErr: broken}, err: broken},
	} {
		t.Run(tc.name, func(t *testing.T) {
			terms := Terms{
				CanaryIDs: []int32{1}, WeightVersion: tc.want, Texts: []string{"a", "hello"},
				Encode: func(text string) []int32 { return encode(text, 0) },
			}
			a, err := Admit(t.Context(), &tc.engine, terms)
			if (err == nil) != (tc.err == nil && tc.text == "") || tc.err != nil && !errors.Is(err, tc.err) || err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("error %v, want %v, %q", err, tc.err, tc.text)
			}
			if a.Unverified != tc.unverified {
				t.Errorf("unverified %q, want %q", a.Unverified, tc.unverified)
			}
			if tc.engine.infoErr == nil {
				if asked := tc.engine.asked; asked.Sampling.MaxNewTokens != 8 || a.Canary.ID != asked.ID || len(asked.ID) != 32 {
					t.Errorf("canary asked as %+v, recorded as %+v", asked, a.Canary)
				}
				if a.Dialect != "spec_accepted_drafts" {
					t.Errorf("dialect %q", a.Dialect)
				}
			}
		})
	}
}
