package sglang

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// said is a reply of tokens 1, 2 and so on, with log-probs of -1 and more of
// meta_info.
type said struct {
	n    int
	meta string
}

func (s said) body() string {
	ids, probs := make([]string, s.n), make([]string, s.n)
	for i := range ids {
		ids[i] = strconv.Itoa(i + 1)
		probs[i] = "[-1," + ids[i] + ",null]"
	}
	return body("["+strings.Join(ids, ",")+"]", `"finish_reason":{"type":"length"},"output_token_logprobs":[`+strings.Join(probs, ",")+`]`+s.meta)
}

// raw is a reply as it stands.
type raw string

func (r raw) body() string { return string(r) }

// implausible are replies that an engine should not send, by hazard.
var implausible = []struct {
	name        string
	reply       interface{ body() string }
	reason      engine.Reason
	text        string // within the error
	untrainable string
	output      int
}{
	{"38: version spans beyond the output and before it", said{3, `,"weight_versions":[{"version":"1","start":0,"end":99},{"version":"2","start":-4,"end":1}]`}, engine.BadReply, "version span 0 to 99 of 3", "", 3},
	{"38: version spans that overlap", said{3, `,"weight_versions":[{"version":"1","start":0,"end":2},{"version":"2","start":1,"end":3}]`}, engine.BadReply, "version span 1 to 3", "", 3},
	{"38: version spans out of order", said{3, `,"weight_versions":[{"version":"2","start":2,"end":3},{"version":"1","start":0,"end":2}]`}, engine.BadReply, "version span 0 to 2", "", 3},
	{"38: a version span that ends before it begins", said{3, `,"weight_versions":[{"version":"2","start":2,"end":1}]`}, engine.BadReply, "version span 2 to 1", "", 3},
	{"38: an empty version span says nothing", said{3, `,"weight_versions":[{"version":"1","start":0,"end":0},{"version":"2","start":0,"end":3}]`}, "", "", "", 3},
	{"38: version spans with a gap", said{3, `,"weight_versions":[{"version":"1","start":0,"end":1},{"version":"2","start":2,"end":3}]`}, "", "", "", 3},
	{"39: as many tokens as asked for", said{n: 16}, "", "", "", 16},
	{"39: more tokens than asked for", said{n: 17}, engine.BadReply, "at most 16 were asked for", "", 17},
	{"39: the last id of the vocabulary", raw(body("[99]", `"finish_reason":{"type":"length"},"output_token_logprobs":[[-1,99,null]]`)), "", "", "", 1},
	{"39: an id outside the vocabulary", raw(body("[1,100]", `"finish_reason":{"type":"length"},"output_token_logprobs":[[-1,1,null],[-1,100,null]]`)), "", "", "unknown_token", 2},
	{"40: a log-prob above 0", raw(body("[1,2]", `"finish_reason":{"type":"length"},"output_token_logprobs":[[-1,1,null],[0.5,2,null]]`)), "", "", "positive_logprob", 2},
	{"40: a log-prob above 0 by rounding", raw(body("[1]", `"finish_reason":{"type":"length"},"output_token_logprobs":[[1e-7,1,null]]`)), "", "", "", 1},
	{"42: output_ids twice", raw(`{"output_ids":[1],"output_ids":[2],"meta_info":{"finish_reason":{"type":"length"}}}`), engine.BadReply, `"output_ids" stands twice`, "", 0},
	{"42: output_ids twice, once null", raw(`{"output_ids":null,"output_ids":[2],"meta_info":{"finish_reason":{"type":"length"}}}`), engine.BadReply, `"output_ids" stands twice`, "", 0},
	{"42: meta_info twice", raw(`{"output_ids":[1],"meta_info":{},"meta_info":{"finish_reason":{"type":"length"}}}`), engine.BadReply, `"meta_info" stands twice`, "", 0},
	{"42: error twice", raw(`{"error":"a","error":"b"}`), engine.BadReply, `"error" stands twice`, "", 0},
	{"42: log-probs twice", said{1, `,"output_token_logprobs":[[-2,1,null]]`}, engine.BadReply, `"output_token_logprobs" stands twice`, "", 0},
	{"42: a count twice", said{1, `,"cached_tokens":1,"cached_tokens":2`}, engine.BadReply, `"cached_tokens" stands twice`, "", 0},
	{"42: a finish reason's type twice", raw(body("[]", `"finish_reason":{"type":"length","Type":"stop"}`)), engine.BadReply, `"Type" stands twice`, "", 0},
	{"42: a span's end twice", said{3, `,"weight_versions":[{"version":"1","start":0,"end":9,"end":3}]`}, engine.BadReply, `"end" stands twice`, "", 0},
	{"42: what is not read may stand twice", said{1, `,"news":1,"news":2`}, "", "", "", 1},
}

func TestImplausibleReplies(t *testing.T) {
	for _, tc := range implausible {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, answer(t, 200, tc.reply.body()))
			req := testRequest()
			req.VocabSize = 100
			g, err := c.Generate(t.Context(), req)
			if got := engine.ReasonOf(err); got != tc.reason || err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("reason %q, want %q with %q: %v", got, tc.reason, tc.text, err)
			}
			if g.Untrainable != tc.untrainable || g.OutputLen != tc.output {
				t.Errorf("untrainable %q output %d, want %q %d", g.Untrainable, g.OutputLen, tc.untrainable, tc.output)
			}
			if err != nil {
				return
			}
			var s rollout.Sample
			if err := s.Append(g); err != nil {
				t.Fatal(err)
			}
			if trained := s.EffectiveLen() > 0; trained != (tc.untrainable == "") {
				t.Errorf("%d tokens are trained on", s.EffectiveLen())
			}
		})
	}
}

// counts are what an engine may say of a call with 3 prompt tokens that made 4,
// and the names of what is not believed of it (hazard 41).
var counts = []struct {
	name string
	said
	want rollout.EngineMeta
}{
	{"all of it can be", said{4, `,"prompt_tokens":3,"cached_tokens":3,"completion_tokens":4,"reasoning_tokens":9,"num_retractions":2,"spec_verify_ct":1,"spec_num_correct_drafts":7,"spec_num_proposed_drafts":7,"spec_correct_drafts_histogram":[0,1]`},
		rollout.EngineMeta{
			PromptTokens: p(3), CachedTokens: p(3), CompletionTokens: p(4), ReasoningTokens: p(9), Retractions: p(2),
			Spec: rollout.SpecMeta{Verify: p(1), Correct: p(7), Proposed: p(7), Histogram: []int64{0, 1}, Dialect: "spec_num_correct_drafts"},
		}},
	{"negative", said{4, `,"prompt_tokens":3,"cached_tokens":-1,"reasoning_tokens":-1,"num_retractions":-1,"dp_rank":-1,"e2e_latency":-1,"queue_time":-0.5,"spec_verify_ct":-1,"spec_num_correct_drafts":-1,"spec_num_proposed_drafts":-1,"spec_correct_drafts_histogram":[5,-5]`},
		rollout.EngineMeta{
			PromptTokens: p(3), Spec: rollout.SpecMeta{Dialect: "spec_num_correct_drafts"},
			Implausible: []string{"cached_tokens", "reasoning_tokens", "num_retractions", "dp_rank", "e2e_latency", "queue_time", "spec_verify", "spec_proposed", "spec_correct", "spec_histogram"},
		}},
	{"2^62", said{4, `,"prompt_tokens":3,"cached_tokens":4611686018427387904,"reasoning_tokens":4611686018427387904,"e2e_latency":1e300,"spec_verify_ct":4611686018427387904,"spec_num_correct_drafts":4611686018427387904,"spec_num_proposed_drafts":4611686018427387904,"spec_correct_drafts_histogram":[4611686018427387904,4611686018427387904]`},
		rollout.EngineMeta{
			PromptTokens: p(3), Spec: rollout.SpecMeta{Dialect: "spec_num_correct_drafts"},
			Implausible: []string{"cached_tokens", "reasoning_tokens", "e2e_latency", "spec_verify", "spec_proposed", "spec_correct", "spec_histogram"},
		}},
	{"more cached than the prompt has", said{4, `,"prompt_tokens":3,"cached_tokens":4`},
		rollout.EngineMeta{PromptTokens: p(3), Implausible: []string{"cached_tokens"}}},
	{"more cached than was sent", said{4, `,"cached_tokens":4`}, rollout.EngineMeta{Implausible: []string{"cached_tokens"}}},
	{"more verify passes than tokens", said{4, `,"spec_verify_ct":5`}, rollout.EngineMeta{Implausible: []string{"spec_verify"}}},
	{"more correct than proposed drafts", said{4, `,"spec_verify_ct":2,"spec_num_correct_drafts":7,"spec_num_proposed_drafts":6`},
		rollout.EngineMeta{Spec: rollout.SpecMeta{Verify: p(2), Dialect: "spec_num_correct_drafts"}, Implausible: []string{"spec_correct", "spec_proposed"}}},
	{"drafts without a pass", said{4, `,"spec_verify_ct":0,"spec_num_correct_drafts":1,"spec_num_proposed_drafts":3`},
		rollout.EngineMeta{Spec: rollout.SpecMeta{Verify: p(0), Dialect: "spec_num_correct_drafts"}, Implausible: []string{"spec_proposed", "spec_correct"}}},
}

func TestCountsThatCannotBeAreAbsent(t *testing.T) {
	for _, tc := range counts {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, answer(t, 200, tc.body()))
			g, err := c.Generate(t.Context(), testRequest())
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Finish.Type = rollout.FinishLength
			if !reflect.DeepEqual(g.Meta, tc.want) {
				t.Errorf("got  %+v\nwant %+v", g.Meta, tc.want)
			}
			if g.Untrainable != "" || g.Completion() != 4 {
				t.Errorf("untrainable %q, %d tokens", g.Untrainable, g.Completion())
			}
		})
	}
}

// A count that contradicts the ids, or what was sent, says that the reply is not
// what it seems.
func TestCountsThatContradict(t *testing.T) {
	for _, tc := range []struct {
		name        string
		body        string
		reason      engine.Reason
		fate        rollout.Fate
		untrainable string
		completion  int64
		implausible []string
	}{
		{name: "a negative completion", body: said{2, `,"completion_tokens":-2,"cached_tokens":3,"spec_verify_ct":2`}.body(), reason: engine.BadReply, fate: rollout.FateFailed, completion: 2},
		{name: "a completion of 2^62", body: said{2, `,"completion_tokens":4611686018427387904`}.body(), reason: engine.BadReply, fate: rollout.FateFailed, completion: 2},
		{name: "a negative prompt", body: said{2, `,"prompt_tokens":-1`}.body(), fate: rollout.FateFinished, untrainable: "prompt_differs", completion: 2, implausible: []string{"prompt_tokens"}},
		{name: "a longer prompt", body: said{2, `,"prompt_tokens":4`}.body(), fate: rollout.FateFinished, untrainable: "prompt_differs", completion: 2, implausible: []string{"prompt_tokens"}},
		{name: "an abort that made more than came", body: body("[2]", `"finish_reason":{"type":"abort"},"completion_tokens":7`), fate: rollout.FateAborted, untrainable: "missing_logprob", completion: 7},
		{name: "an abort that made more than was asked for", body: body("[2]", `"finish_reason":{"type":"abort"},"completion_tokens":17`), fate: rollout.FateAborted, untrainable: "missing_logprob", completion: 1, implausible: []string{"completion_tokens"}},
		{name: "an abort with versions of other tokens", body: body("[2]", `"finish_reason":{"type":"abort"},"output_token_logprobs":[[-1,2,null]],"weight_versions":[{"version":"1","start":0,"end":2}]`), fate: rollout.FateAborted, untrainable: "missing_logprob", completion: 1},
		{name: "a refusal with counts", body: body("[2]", `"finish_reason":{"type":"abort","status_code":503},"completion_tokens":9,"num_retractions":-3,"spec_verify_ct":-3`), reason: engine.Overloaded, fate: rollout.FateFailed, completion: 1},
		{name: "another's reply", body: strings.ReplaceAll(said{2, `,"completion_tokens":2`}.body(), "@RID@", "other"), reason: engine.BadReply, fate: rollout.FateFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, answer(t, 200, tc.body))
			g, err := c.Generate(t.Context(), testRequest())
			if got := engine.ReasonOf(err); got != tc.reason {
				t.Fatalf("reason %q, want %q: %v", got, tc.reason, err)
			}
			if g.Fate != tc.fate || g.Untrainable != tc.untrainable || g.Completion() != tc.completion || !reflect.DeepEqual(g.Meta.Implausible, tc.implausible) {
				t.Errorf("fate %q untrainable %q, %d tokens, implausible %v", g.Fate, g.Untrainable, g.Completion(), g.Meta.Implausible)
			}
			if len(g.Meta.WeightVersions) > 0 || err != nil && !reflect.DeepEqual(g.Meta, rollout.EngineMeta{Finish: g.Meta.Finish}) {
				t.Errorf("kept %+v", g.Meta)
			}
		})
	}
}
