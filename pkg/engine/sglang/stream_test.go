package sglang

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// event is one event: the ids it carries, the count it says, its finish reason.
func event(ids []int32, count int, finish string) string {
	var list, probs []string
	for _, id := range ids {
		list = append(list, fmt.Sprint(id))
		probs = append(probs, fmt.Sprintf("[-%d.5,%d,null]", id, id))
	}
	spec := ""
	if finish != "null" {
		spec = `,"spec_verify_ct":1`
	}
	return fmt.Sprintf("data: {\"text\":\"t\",\"output_ids\":[%s],\"meta_info\":{\"finish_reason\":%s,\"completion_tokens\":%d,\"output_token_logprobs\":[%s]%s}}\n\n",
		strings.Join(list, ","), finish, count, strings.Join(probs, ","), spec)
}

const (
	byLength = `{"type":"length","length":9}`
	done     = "data: [DONE]\n\n"
)

func TestStream(t *testing.T) {
	for _, tc := range []struct {
		name        string
		body        string
		want        []int32
		chunks      [][]int32
		reason      engine.Reason
		fate        rollout.Fate
		untrainable string
	}{
		{name: "cumulative", body: event([]int32{1}, 1, "null") + event([]int32{1, 2, 3}, 3, "null") + event([]int32{1, 2, 3, 4}, 4, byLength) + done,
			want: []int32{1, 2, 3, 4}, chunks: [][]int32{{1}, {2, 3}, {4}}},
		{name: "incremental", body: event([]int32{1}, 1, "null") + event([]int32{2, 3}, 3, "null") + event([]int32{4}, 4, byLength) + done,
			want: []int32{1, 2, 3, 4}, chunks: [][]int32{{1}, {2, 3}, {4}}},
		{name: "incremental with the same token again", body: event([]int32{7}, 1, "null") + event([]int32{7}, 2, "null") + event([]int32{7}, 3, byLength),
			want: []int32{7, 7, 7}, chunks: [][]int32{{7}, {7}, {7}}},
		{name: "nothing new at the end", body: event([]int32{1, 2}, 2, "null") + event([]int32{1, 2}, 2, byLength) + done,
			want: []int32{1, 2}, chunks: [][]int32{{1, 2}}},
		{name: "an empty last event", body: event([]int32{1, 2}, 2, "null") + event(nil, 2, byLength) + done,
			want: []int32{1, 2}, chunks: [][]int32{{1, 2}}},
		{name: "comments, other fields and CRLF", body: ": ping\r\n\r\nevent: x\r\nid: 1\r\n" + strings.ReplaceAll(event([]int32{1}, 1, byLength), "\n", "\r\n"),
			want: []int32{1}, chunks: [][]int32{{1}}},
		{name: "a line of 1 MiB", body: ":" + strings.Repeat("x", 1<<20) + "\n" + event([]int32{1}, 1, byLength), want: []int32{1}, chunks: [][]int32{{1}}},
		{name: "9: abort in the queue repeats the last id only", body: event([]int32{1, 2, 3}, 3, "null") + event([]int32{3}, 3, `{"type":"abort","message":"Abort in waiting queue"}`) + done,
			want: []int32{1, 2, 3}, chunks: [][]int32{{1, 2, 3}}, fate: rollout.FateAborted},
		{name: "10: abort", body: event([]int32{1}, 1, "null") + event([]int32{1}, 1, `{"type":"abort","message":"m","status_code":null}`),
			want: []int32{1}, chunks: [][]int32{{1}}, fate: rollout.FateAborted},
		{name: "32: ends without a finish reason", body: event([]int32{1}, 1, "null") + done, chunks: [][]int32{{1}}, reason: engine.BadReply},
		{name: "32: ends without anything", body: "", reason: engine.BadReply},
		{name: "an error event", body: "data: {\"error\":{\"message\":\"bad top_p\"}}\n\n" + done, reason: engine.Rejected},
		{name: "35: refused by the scheduler", body: event(nil, 0, `{"type":"abort","message":"full","status_code":503}`) + done, reason: engine.Overloaded},
		{name: "contradicts itself", body: event([]int32{1, 2}, 2, "null") + event([]int32{1, 3, 4}, 3, byLength), chunks: [][]int32{{1, 2}}, reason: engine.BadReply},
		{name: "goes back", body: event([]int32{1, 2}, 2, "null") + event([]int32{1}, 1, byLength), chunks: [][]int32{{1, 2}}, reason: engine.BadReply},
		{name: "a gap", body: event([]int32{1}, 1, "null") + event([]int32{4}, 4, byLength), chunks: [][]int32{{1}}, reason: engine.BadReply},
		{name: "garbage", body: "data: what\n\n", reason: engine.BadReply},
		{name: "not a stream", body: "<html>", reason: engine.BadReply},
		{name: "3: log-probs missing from one event", body: event([]int32{1}, 1, "null") + "data: {\"output_ids\":[2],\"meta_info\":{\"finish_reason\":null,\"completion_tokens\":2}}\n" + event([]int32{3}, 3, byLength),
			want: []int32{1, 2, 3}, chunks: [][]int32{{1}, {2}, {3}}, untrainable: "missing_logprob"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, answer(t, 200, tc.body))
			var chunks [][]int32
			g, err := c.Stream(t.Context(), testRequest(), func(chunk engine.Chunk) error {
				if n := len(chunk.LogProbs); n > 0 && n != len(chunk.IDs) {
					t.Errorf("chunk of %d ids, %d log-probs", len(chunk.IDs), n)
				}
				chunks = append(chunks, slices.Clone(chunk.IDs))
				return nil
			})
			if engine.ReasonOf(err) != tc.reason {
				t.Fatalf("reason of %v, want %q", err, tc.reason)
			}
			if !reflect.DeepEqual(chunks, tc.chunks) {
				t.Errorf("chunks %v, want %v", chunks, tc.chunks)
			}
			if err != nil {
				return
			}
			if !slices.Equal(g.OutputIDs, tc.want) || g.Untrainable != tc.untrainable {
				t.Errorf("ids %v untrainable %q, want %v %q", g.OutputIDs, g.Untrainable, tc.want, tc.untrainable)
			}
			for i, id := range g.OutputIDs {
				if tc.untrainable == "" && g.LogProbs[i] != -float32(id)-0.5 {
					t.Errorf("log-prob %d is %v", i, g.LogProbs[i])
				}
			}
			if tc.fate == "" {
				tc.fate = rollout.FateFinished
			}
			if g.Fate != tc.fate || g.Meta.Spec.Verify == nil || *g.Meta.Spec.Verify != 1 {
				t.Errorf("fate %q, spec %+v", g.Fate, g.Meta.Spec)
			}
		})
	}
}

func TestStreamReaderGivesUp(t *testing.T) {
	reached, aborted := make(chan string, 1), make(chan string, 1)
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.Handle("/abort_request", hanging(reached, aborted, release))
	mux.HandleFunc("/generate", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, event([]int32{1}, 1, "null"))
		w.(http.Flusher).Flush()
		<-release
	})
	c := start(t, mux)
	defer close(release)
	enough := errors.New("enough")
	req := testRequest()
	_, err := c.Stream(t.Context(), req, func(engine.Chunk) error { return enough })
	if engine.ReasonOf(err) != engine.Canceled || !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
	if got := <-aborted; got != req.ID {
		t.Errorf("aborted %q", got)
	}
}

func TestStreamModesGiveOneGeneration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.Int32Range(0, 3), 1, 40).Draw(t, "ids")
		var both [2]string
		for from := 0; from < len(ids); {
			to := min(len(ids), from+rapid.IntRange(1, 8).Draw(t, "step"))
			finish := "null"
			if to == len(ids) {
				finish = byLength
			}
			both[0] += event(ids[from:to], to, finish)
			both[1] += event(ids[:to], to, finish)
			from = to
		}
		for i, text := range both {
			got, probs := readEvents(t, strings.NewReader(text+done))
			if !slices.Equal(got, ids) || len(probs) != len(ids) {
				t.Fatalf("mode %d: got %v with %d log-probs, want %v", i, got, len(probs), ids)
			}
		}
	})
}

// readEvents adds up a stream without HTTP.
func readEvents(t rapid.TB, src io.Reader) ([]int32, []float32) {
	t.Helper()
	c := &Client{maxReply: 1 << 20}
	var sum tally
	r := &reply{}
	r.scanner.reset(src, c.maxReply)
	for {
		more, err := r.scanner.nextEvent()
		if err != nil || !more {
			return sum.ids, sum.probs
		}
		if err := r.value(); err != nil {
			return sum.ids, sum.probs
		}
		if _, err := sum.add(r); err != nil {
			return sum.ids, sum.probs
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(event([]int32{1}, 1, "null")+event([]int32{1, 2}, 2, byLength)+done), 3)
	f.Add([]byte(": c\r\ndata:{}\ndata: {\"error\":{\"message\":1}}\n\n"), 1)
	f.Add([]byte("data: [DONE]"), 2)
	f.Fuzz(func(t *testing.T, data []byte, chunk int) {
		ids, probs := readEvents(t, bytes.NewReader(data))
		ids2, probs2 := readEvents(t, &chunks{data, max(1, chunk)})
		if !slices.Equal(ids, ids2) || len(probs) != len(probs2) {
			t.Fatalf("in one read %v, in parts %v", ids, ids2)
		}
		if len(probs) > len(ids) {
			t.Fatalf("%d ids, %d log-probs", len(ids), len(probs))
		}
	})
}

// A call whose context is over is not sent.
func TestStreamOnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := start(t, http.NotFoundHandler())
	if _, err := c.Stream(ctx, testRequest(), func(engine.Chunk) error { return nil }); engine.ReasonOf(err) != engine.Canceled {
		t.Errorf("%v", err)
	}
}
