package sglang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestScanFloatIsTheNearestFloat32(t *testing.T) {
	check := func(t rapid.TB, text string) {
		t.Helper()
		want, err := strconv.ParseFloat(text, 32)
		if err != nil && !math.IsInf(want, 0) {
			t.Fatalf("%q: %v", text, err)
		}
		got, next, ok := scanFloat([]byte(text+","), 0)
		if !ok || next != len(text) || math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Fatalf("%q: got %v at %d (%v), want %v", text, got, next, ok, float32(want))
		}
	}
	for _, text := range []string{
		"0", "-0", "0.0", "-0.0", "1", "-1.5", "1e0", "1E+5", "-2.5e-7", "3.4028235e38", "3.4028236e38", "3.5e38", "-1e300", "1e-400",
		"1.4e-45", "1.17549435e-38", "1.1754942e-38", "16777217", "16777219", "0.1", "0.10000000149011612", "-12.345678901234567890123",
		"1.00000005960464477539", "1.000000059604644775390625", "1.00000017881393432617187499", "123456789012345678901234567890", "0.000000000000000000000000000001",
	} {
		check(t, text)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float32().Draw(t, "v")
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return
		}
		// As Python writes a float32, as orjson may, and with an exponent.
		check(t, strconv.FormatFloat(float64(v), 'g', -1, 64))
		check(t, strconv.FormatFloat(float64(v), 'g', -1, 32))
		check(t, strconv.FormatFloat(float64(v), 'e', rapid.IntRange(0, 25).Draw(t, "digits"), 64))
		// Next to the middle between two float32.
		middle := (float64(v) + float64(math.Nextafter32(v, math.MaxFloat32))) / 2
		if !math.IsInf(middle, 0) {
			check(t, strconv.FormatFloat(middle, 'g', -1, 64))
			check(t, strconv.FormatFloat(math.Nextafter(middle, 0), 'g', -1, 64))
			check(t, strconv.FormatFloat(math.Nextafter(middle, math.MaxFloat64), 'g', -1, 64))
		}
		check(t, strconv.FormatFloat(rapid.Float64Range(-100, 0).Draw(t, "log-prob"), 'g', -1, 64))
	})
}

// slowReply is a reply by encoding/json, for comparison.
type slowReply struct {
	IDs  *[]int64 `json:"output_ids"`
	Meta struct {
		wireMeta
		Probs *[][]any `json:"output_token_logprobs"`
	} `json:"meta_info"`
}

// synthetic is a reply of n tokens as an engine writes it.
func synthetic(n int, spaces bool) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var ids, probs, text strings.Builder
	for i := range n {
		if i > 0 {
			ids.WriteByte(',')
			probs.WriteByte(',')
		}
		id, lp := rng.IntN(152000), -float32(rng.ExpFloat64())
		fmt.Fprintf(&ids, "%d", id)
		fmt.Fprintf(&probs, "[%s,%d,null]", strconv.FormatFloat(float64(lp), 'g', -1, 64), id)
		text.WriteString(`wo\"rd\n `)
	}
	out := fmt.Sprintf(`{"text":"%s","output_ids":[%s],"meta_info":{"id":"x","finish_reason":{"type":"length","length":%d},"prompt_tokens":10,"completion_tokens":%d,"cached_tokens":0,"weight_version":"3","spec_verify_ct":7,"output_token_logprobs":[%s],"output_token_logprobs_length":%d,"e2e_latency":1.25}}`,
		text.String(), ids.String(), n, n, probs.String(), n)
	if spaces {
		out = strings.NewReplacer(",", ", ", ":", ": ", "[", "[ ", "]", "\n]").Replace(out)
	}
	return []byte(out)
}

func TestDecodeThroughAnyWindow(t *testing.T) {
	for _, spaces := range []bool{false, true} {
		data := synthetic(3000, spaces)
		var want slowReply
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		for name, src := range map[string]func() io.Reader{
			"whole":         func() io.Reader { return bytes.NewReader(data) },
			"byte by byte":  func() io.Reader { return iotest.OneByteReader(bytes.NewReader(data)) },
			"half reads":    func() io.Reader { return iotest.HalfReader(bytes.NewReader(data)) },
			"end with data": func() io.Reader { return iotest.DataErrReader(bytes.NewReader(data)) },
		} {
			var r reply
			if err := r.decode(src(), 1<<30); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			compare(t, &r, &want)
			if len(r.ids) != 3000 || len(r.probs) != 3000 {
				t.Errorf("%s: %d ids, %d log-probs", name, len(r.ids), len(r.probs))
			}
		}
	}
}

// compare checks a decoded reply against what encoding/json made of it.
func compare(t *testing.T, r *reply, want *slowReply) {
	t.Helper()
	if r.hasIDs != (want.IDs != nil) || r.hasProbs != (want.Meta.Probs != nil) {
		t.Fatalf("has ids %v, log-probs %v", r.hasIDs, r.hasProbs)
	}
	if want.IDs != nil && !slices.EqualFunc(r.ids, *want.IDs, func(a int32, b int64) bool { return int64(a) == b }) {
		t.Fatalf("ids %v, want %v", r.ids, *want.IDs)
	}
	if want.Meta.Probs != nil {
		if len(r.probs) != len(*want.Meta.Probs) {
			t.Fatalf("%d log-probs, want %d", len(r.probs), len(*want.Meta.Probs))
		}
		for i, triple := range *want.Meta.Probs {
			if triple[0] == nil {
				if !math.IsNaN(float64(r.probs[i])) {
					t.Fatalf("log-prob %d is %v, want null", i, r.probs[i])
				}
			} else if math.Abs(float64(r.probs[i])-triple[0].(float64)) > 1e-6*math.Abs(triple[0].(float64))+1e-38 && math.Abs(triple[0].(float64)) < 1e38 {
				t.Fatalf("log-prob %d is %v, want %v", i, r.probs[i], triple[0])
			}
			if float64(r.probIDs[i]) != triple[1].(float64) {
				t.Fatalf("id of log-prob %d is %v, want %v", i, r.probIDs[i], triple[1])
			}
		}
	}
	if !reflect.DeepEqual(r.meta, want.Meta.wireMeta) {
		t.Fatalf("meta %+v\nwant %+v", r.meta, want.Meta.wireMeta)
	}
}

func TestSourceErrorsPassThrough(t *testing.T) {
	broken := io.MultiReader(strings.NewReader(`{"output_ids":[1,2,3`), iotest.ErrReader(io.ErrUnexpectedEOF))
	var r reply
	if err := r.decode(broken, 1<<20); err != io.ErrUnexpectedEOF {
		t.Errorf("%v", err)
	}
	if err := r.decode(iotest.ErrReader(io.ErrClosedPipe), 1<<20); err != io.ErrClosedPipe {
		t.Errorf("%v", err)
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"output_ids":[1,2],"meta_info":{"finish_reason":{"type":"stop","matched":2},"output_token_logprobs":[[-0.5,1,null],[null,2,"x\"]"]],"spec_verify_ct":1}}`), 7)
	f.Add([]byte(`{"meta_info":{"finish_reason":{"type":"abort"}}}`), 1)
	f.Add([]byte(`{"error":{"message":"m"}} `), 3)
	f.Add([]byte(`{"a":[{"b":"\\\""},-1e5,true],"output_ids":null}`), 2)
	f.Add(synthetic(20, true), 64)
	for _, tc := range implausible {
		f.Add([]byte(tc.reply.body()), 9)
	}
	for _, tc := range counts {
		f.Add([]byte(tc.body()), 9)
	}
	f.Fuzz(func(t *testing.T, data []byte, chunk int) {
		var whole, parts reply
		err := whole.decode(bytes.NewReader(data), 1<<20)
		err2 := parts.decode(&chunks{data, max(1, chunk)}, 1<<20)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("in one read: %v; in parts: %v", err, err2)
		}
		if err != nil {
			return
		}
		if !slices.Equal(whole.ids, parts.ids) || !slices.Equal(whole.probIDs, parts.probIDs) || !reflect.DeepEqual(whole.meta, parts.meta) {
			t.Fatal("parts make another reply than the whole")
		}
		if len(whole.probs) != len(whole.probIDs) {
			t.Fatalf("%d log-probs, %d ids", len(whole.probs), len(whole.probIDs))
		}
		// What judge makes of it is aligned, whatever came.
		req := testRequest()
		if m := whole.meta.ID; m != nil {
			req.ID = *m
		}
		g, _ := (&Client{}).call(req, func(g *rollout.Generation, req *engine.Request) *engine.Error { return judge(&whole, req, g) })
		if len(g.OutputIDs) != len(g.LogProbs) {
			t.Fatalf("%d ids, %d log-probs", len(g.OutputIDs), len(g.LogProbs))
		}
		// Nothing is stored that cannot be restored.
		var s rollout.Sample
		if g.Fate == rollout.FateFinished {
			if err := s.Append(g); err != nil {
				t.Fatalf("a reply that was taken is no sample: %v", err)
			}
			if _, err := rollout.RestoreSample(s.State()); err != nil {
				t.Fatal(err)
			}
		}
		spec := g.Meta.Spec
		for _, n := range []*int64{g.Meta.PromptTokens, g.Meta.CachedTokens, g.Meta.CompletionTokens, spec.Verify, spec.Correct, spec.Proposed} {
			if n != nil && (*n < 0 || *n > int64(max(len(g.OutputIDs), req.Sampling.MaxNewTokens))*maxDrafts) {
				t.Fatalf("a count of %d for %d tokens: %+v", *n, len(g.OutputIDs), g.Meta)
			}
		}
		// encoding/json agrees, where it takes the text at all: it knows no NaN,
		// merges repeated keys and folds their case.
		var want slowReply
		if json.Unmarshal(data, &want) == nil && !hasOddKeys(data) {
			compare(t, &whole, &want)
		}
	})
}

type chunks struct {
	data []byte
	size int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(c.size, len(p))], c.data)
	c.data = c.data[n:]
	return n, nil
}

// hasOddKeys reports keys that are repeated, escaped or not in lower case.
func hasOddKeys(data []byte) bool {
	seen := map[string]bool{}
	for _, key := range append([]string{"output_ids", "meta_info", "output_token_logprobs", "type", "matched", "message", "status_code", "version", "start", "end"}, metaKeys...) {
		if bytes.Count(data, []byte(key)) > 1 && !seen[key] {
			return true
		}
		seen[key] = true
	}
	return bytes.Contains(data, []byte(`\u`)) || !bytes.Equal(data, bytes.ToLower(data))
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{256, 32768} {
		data := synthetic(n, false)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			src := bytes.NewReader(data)
			req := testRequest()
			req.ID, req.PromptIDs, req.Sampling.MaxNewTokens = "x", make([]int32, 10), n
			var r reply
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				src.Reset(data)
				if err := r.decode(src, 1<<30); err != nil {
					b.Fatal(err)
				}
				var g rollout.Generation
				if fault := judge(&r, &req, &g); fault != nil || g.OutputLen != n {
					b.Fatal(fault)
				}
			}
		})
	}
}
