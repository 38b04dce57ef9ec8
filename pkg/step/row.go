package step

import (
	"bytes"
	"math"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// row is what the metrics need to know of one accepted sample.
type row struct {
	reward  float64 // when scored
	tools   float64 // seconds outside engine calls
	logprob float64 // sum over the effective tokens

	prompt, response int64 // tokens
	effective        int64 // response tokens that the mask leaves in
	known, off       int64 // trained tokens of a numbered version; of another than the step's

	oldest    uint64 // oldest numbered version over the sample's calls, when numbered
	oldestOwn uint64 // the same over its tokens, when numberedOwn

	end                          ending
	scored, excluded, truncated  bool
	numbered, numberedOwn, mixed bool
	repetitive                   bool
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

// reader makes rows. It holds what is worth keeping from one sample to the next.
type reader struct {
	cfg      Config
	versions parsedVersions
	repeats  repetition
	chosen   []*rollout.Episode
}

// row reads a sample, calls being its episode's.
func (r *reader) row(s *rollout.Sample, calls []rollout.GenerationRecord) row {
	out := row{
		tools: s.NonGenerationTime, prompt: int64(s.PromptLen()), response: int64(s.ResponseLen()),
		truncated: s.Status() == rollout.StatusTruncated, repetitive: r.repeats.in(s.Response),
	}
	if s.Reward != nil {
		out.scored, out.reward = true, *s.Reward
	}
	out.excluded = excluded(r.cfg, s)
	out.effective, out.logprob = maskedSum(s.LossMask(), s.LogProbs())

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
	out.oldest, out.numbered, out.mixed = seen.oldest, seen.numbered, seen.mixed
	out.end = endOf(r.cfg, out, finish)
	r.ageOf(&out, s)
	return out
}

// ageOf reads the versions of the sample's tokens.
func (r *reader) ageOf(out *row, s *rollout.Sample) {
	var own versionRange
	spans := s.Versions()
	for _, span := range spans {
		own.add(span.Version, &r.versions)
		n, numbered := r.versions.parse(span.Version)
		if !numbered || out.excluded {
			continue
		}
		tokens := out.effective
		if span.Start > 0 || span.End < out.response {
			tokens = ones(s.LossMask()[span.Start:span.End])
		}
		out.known += tokens
		if r.cfg.WeightVersion != nil && n != *r.cfg.WeightVersion {
			out.off += tokens
		}
	}
	out.oldestOwn, out.numberedOwn = own.oldest, own.numbered
}

// excluded says that a sample stays out of the loss, see [Result.Excluded].
func excluded(cfg Config, s *rollout.Sample) bool {
	return s.Remove || s.Reward == nil || cfg.MaskTruncated && s.Status() == rollout.StatusTruncated
}

// endOf tells how a sample ended. It ran out of context when it is truncated and
// fills the context, or was cut although the engine had not.
func endOf(cfg Config, r row, finish rollout.FinishType) ending {
	if r.truncated && (finish != rollout.FinishLength || cfg.MaxContext > 0 && r.total() >= int64(cfg.MaxContext)) {
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
// The mask's byte becomes a mask of bits, so that there is no branch to predict;
// four sums run beside each other, because one would wait for itself.
func maskedSum(mask []byte, values []float32) (n int64, sum float64) {
	var a, b, c, d float64
	values = values[:len(mask)]
	pick := func(i int) float64 {
		return float64(math.Float32frombits(math.Float32bits(values[i]) & -uint32(mask[i])))
	}
	i := 0
	for ; i+4 <= len(mask); i += 4 {
		a += pick(i)
		b += pick(i + 1)
		c += pick(i + 2)
		d += pick(i + 3)
	}
	for ; i < len(mask); i++ {
		a += pick(i)
	}
	return ones(mask), a + b + (c + d)
}
