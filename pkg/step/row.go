package step

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// row is what is kept of one accepted sample: one line of a processor's cache.
type row struct {
	reward float64 // when scored
	tools  float64 // seconds outside engine calls

	prompt, response int64 // tokens
	effective        int64 // response tokens that the mask leaves in

	oldest    uint64 // oldest numbered version over the sample's calls, when numbered
	oldestOwn uint64 // the same over its tokens, when numberedOwn

	scored, excluded, numbered, numberedOwn bool
}

// trained is the number of tokens in the loss.
func (r *row) trained() int64 {
	if r.excluded {
		return 0
	}
	return r.effective
}

func (r *row) total() int64 { return r.prompt + r.response }

// ending is how a sample's last call ended.
type ending uint8

const (
	endOther ending = iota
	endStop
	endLength
	endAbort
	endTool
	endContext
	endings
)

// endingNames are the endings as metric keys name them.
var endingNames = [endings]string{"other", "stop", "length", "abort", "tool", "context"}

// row reads a sample, calls being its episode's.
func (r *reader) row(s *rollout.Sample, calls []rollout.GenerationRecord) row {
	out := row{tools: s.NonGenerationTime, prompt: int64(s.PromptLen()), response: int64(s.ResponseLen())}
	out.reward, out.scored = score(s)
	truncated := s.Status() == rollout.StatusTruncated
	out.excluded = s.Remove || !out.scored || r.cfg.MaskTruncated && truncated
	var logprob float64
	out.effective, logprob = maskedSum(s.LossMask(), s.LogProbs())

	var finish rollout.FinishType
	var seen versionRange
	at := 0
	for _, id := range s.Generations() {
		var g *rollout.GenerationRecord
		if g, at = record(calls, id, at); g == nil {
			continue
		}
		finish = g.Meta.Finish.Type
		for i := range g.Meta.WeightVersions {
			seen.add(g.Meta.WeightVersions[i].Version, &r.versions)
		}
		if len(g.Meta.WeightVersions) == 0 && g.Meta.WeightVersion != nil {
			seen.add(*g.Meta.WeightVersion, &r.versions)
		}
	}
	out.oldest, out.numbered = seen.oldest, seen.numbered
	r.age(&out, s)

	t := r.tally
	t.logprob += logprob
	t.trained += out.trained()
	t.ends[endOf(r.cfg, truncated, out.total(), finish)]++
	t.truncated += one(truncated)
	t.named += one(seen.some)
	t.mixed += one(seen.mixed)
	t.repetitive += one(r.repeats.in(s.Response))
	return out
}

// one is 1 for true, 0 for false.
func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// age reads the versions of the sample's tokens.
func (r *reader) age(out *row, s *rollout.Sample) {
	var own versionRange
	for _, span := range s.Versions() {
		own.add(span.Version, &r.versions)
		n, numbered := r.versions.parse(span.Version)
		if !numbered || out.excluded {
			continue
		}
		tokens := out.effective
		if span.Start > 0 || span.End < out.response {
			tokens = ones(s.LossMask()[span.Start:span.End])
		}
		r.tally.versioned += tokens
		if r.cfg.WeightVersion != nil && n != *r.cfg.WeightVersion {
			r.tally.offPolicy += tokens
		}
	}
	out.oldestOwn, out.numberedOwn = own.oldest, own.numbered
}

// score returns a sample's reward. One that is not a finite number is none: a
// verifier that divides by zero has scored nothing, and the trainer must not see
// it.
func score(s *rollout.Sample) (reward float64, scored bool) {
	if s.Reward == nil || math.IsNaN(*s.Reward) || math.IsInf(*s.Reward, 0) {
		return 0, false
	}
	return *s.Reward, true
}

// endOf tells how a sample ended. It ran out of context when it is truncated and
// fills the context, or was cut although the engine had not.
func endOf(cfg Config, truncated bool, total int64, finish rollout.FinishType) ending {
	if truncated && (finish != rollout.FinishLength || cfg.MaxContext > 0 && total >= int64(cfg.MaxContext)) {
		return endContext
	}
	switch finish {
	case rollout.FinishStop:
		return endStop
	case rollout.FinishLength:
		return endLength
	case rollout.FinishAbort:
		return endAbort
	case rollout.FinishToolCalls:
		return endTool
	default:
		return endOther
	}
}

// record finds a call by id, looking from position from on and then around: a
// sample lists its generations in the order of the calls. The second result is
// the position after it.
func record(calls []rollout.GenerationRecord, id string, from int) (*rollout.GenerationRecord, int) {
	for k := range calls {
		j := from + k
		if j >= len(calls) {
			j -= len(calls)
		}
		if calls[j].ID == id {
			return &calls[j], j + 1
		}
	}
	return nil, from
}

// ones counts the tokens that a mask leaves in.
func ones(mask []byte) int64 { return int64(bytes.Count(mask, []byte{1})) }

// maskedSum returns the number of ones in mask and the sum of the values there.
// It takes eight tokens at a time: masks have long runs, in which the eight are
// all in or all out. Several sums run beside each other, because a single one
// would wait for itself.
func maskedSum(mask []byte, values []float32) (n int64, sum float64) {
	const allOnes = 0x0101010101010101
	var a, b, c, d float64
	values = values[:len(mask)]
	for len(mask) >= 8 {
		m, v := binary.LittleEndian.Uint64(mask), (*[8]float32)(values)
		if m == allOnes {
			a += float64(v[0]) + float64(v[4])
			b += float64(v[1]) + float64(v[5])
			c += float64(v[2]) + float64(v[6])
			d += float64(v[3]) + float64(v[7])
			n += 8
		} else if m != 0 {
			a += where(m, v[0]) + where(m>>32, v[4])
			b += where(m>>8, v[1]) + where(m>>40, v[5])
			c += where(m>>16, v[2]) + where(m>>48, v[6])
			d += where(m>>24, v[3]) + where(m>>56, v[7])
			n += int64(m * allOnes >> 56) // the sum of the bytes
		}
		mask, values = mask[8:], values[8:]
	}
	for i, m := range mask {
		a += where(uint64(m), values[i])
		n += int64(m)
	}
	return n, a + b + (c + d)
}

// where is x if the lowest bit of m is set, else 0, without a branch.
func where(m uint64, x float32) float64 {
	return float64(math.Float32frombits(math.Float32bits(x) & -uint32(m&1)))
}
