package natsbus

import (
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/sheaf-rl/sheaf/pkg/bus"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

// TestLoadOfWhatCannotBeDecoded: a record that is what it was stored as costs its
// own episode; one that is not is damaged; a store of another version is an error.
func TestLoadOfWhatCannotBeDecoded(t *testing.T) {
	srv, err := StartServer(ServerConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	c, err := Connect(t.Context(), Config{Server: srv})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, err := OpenRun(t.Context(), c, RunConfig{Spec: rollout.RunSpec{Run: "r"}, Version: "v", Fingerprint: "f"})
	if err != nil {
		t.Fatal(err)
	}
	good := &rollout.Episode{Attempt: 3, Outcome: rollout.OutcomeCompleted, Generations: []rollout.GenerationRecord{{ID: "g", OutputLen: 7, Fate: rollout.FateFinished}}}
	whole, err := c.codec.EncodeEpisode(good)
	if err != nil {
		t.Fatal(err)
	}
	cut := whole[:len(whole)-5]
	for i, tc := range []struct {
		name    string
		data    []byte // stored
		digest  []byte // of what the head names
		failure string // of the episode loaded
		err     error
	}{
		{name: "half a record", data: cut, digest: cut, failure: "worker/undecodable"},
		{name: "nothing", digest: nil, failure: "worker/undecodable"},
		{name: "another episode's record", data: whole, digest: whole, failure: "worker/undecodable"},
		{name: "not what was stored", data: cut, digest: whole, err: bus.ErrDamaged},
		{name: "another schema's", data: append([]byte{wire.Schema + 1}, whole[1:]...), digest: append([]byte{wire.Schema + 1}, whole[1:]...), err: wire.ErrSchema},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := bus.Receipt{Episode: rollout.EpisodeID{Group: int64(i) + 1}, SHA256: sha256.Sum256(tc.digest), Attempt: 3, CompletionTokens: 7}
			ack, err := c.js.PublishMsg(t.Context(), &nats.Msg{Subject: r.n.result(rec.Episode), Data: tc.data, Header: resultHeader(good, rec.SHA256, len(tc.data))})
			if err != nil {
				t.Fatal(err)
			}
			rec.Sequence = ack.Sequence
			var got *rollout.Episode
			err = r.Load(t.Context(), []bus.Receipt{rec}, func(_ bus.Receipt, e *rollout.Episode) error {
				got = e
				return nil
			})
			if !errors.Is(err, tc.err) {
				t.Fatalf("got %v, want %v", err, tc.err)
			}
			if tc.failure == "" {
				if got != nil {
					t.Errorf("loaded %+v", got)
				}
				return
			}
			if got == nil || got.Outcome != rollout.OutcomeFailed || got.Failure.Key() != tc.failure || got.Failure.Retryable ||
				got.ID != rec.Episode || got.Attempt != 3 || got.CompletionTokens() != 7 || len(got.Samples) != 0 {
				t.Errorf("loaded %+v", got)
			}
		})
	}
}
