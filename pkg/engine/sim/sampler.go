package sim

import "math"

// sampled is one token as the target policy judges it.
type sampled struct {
	token   int32
	logprob float32
	top     []ranked
}

// sampler draws tokens. It belongs to one scheduler and holds its scratch memory.
type sampler struct {
	steps    int // drafted tokens per verify
	logits   []float32
	target   *dist
	residual *dist
	drafts   []*dist
	tokens   []sampled // result of verify
	proposed []int32
	window   []int32
}

func newSampler(vocab, steps int) *sampler {
	s := &sampler{steps: steps, logits: make([]float32, vocab), target: newDist(vocab), residual: newDist(vocab)}
	for range steps {
		s.drafts = append(s.drafts, newDist(vocab))
	}
	return s
}

// first samples the next token plainly: the first after a prefill, and every one
// of an engine that does not speculate.
func (s *sampler) first(m weights, r *request) sampled {
	s.aim(m.target, r, nil)
	token := s.target.pick(uniform(r.seed, len(r.ids), forToken))
	return s.judge(r, token)
}

// aim sets the target distribution after r's tokens and then ahead.
func (s *sampler) aim(p *Policy, r *request, ahead []int32) {
	p.Logits(s.logits, s.context(p, r, ahead))
	if r.prior != nil {
		r.prior.push(s.logits, r.generated(), ahead, 1)
	}
	if r.sampling.edits() {
		r.edit(s.logits, ahead, float32(math.Inf(-1)))
	}
	s.target.set(s.logits, r.warp)
}

// context is the end of r's tokens followed by ahead: as much as p looks at.
func (s *sampler) context(p *Policy, r *request, ahead []int32) []int32 {
	if len(ahead) == 0 {
		return r.ids
	}
	s.window = append(s.window[:0], r.ids[max(0, len(r.ids)-p.shape.Window()):]...)
	s.window = append(s.window, ahead...)
	return s.window
}

// judge attaches the target's log-prob to a token; the target must be aimed at
// its position.
func (s *sampler) judge(r *request, token int32) sampled {
	t := sampled{token: token, logprob: s.target.logprob(token)}
	if r.topLogprobs > 0 {
		t.top = s.target.best(r.topLogprobs)
	}
	return t
}

// verify does one speculative step: the draft proposes tokens one after the other,
// the target accepts each with probability min(1, p/q), and the first rejected one
// is replaced from what p has more than q; when all are accepted the target adds
// one more. The tokens are distributed exactly as if the target had been sampled
// alone. There is always one token more than were accepted; the result is valid
// until the next call.
func (s *sampler) verify(m weights, r *request) []sampled {
	s.tokens, s.proposed = s.tokens[:0], s.proposed[:0]
	at := len(r.ids)
	for i := range s.steps {
		m.draft.Logits(s.logits, s.context(m.draft, r, s.proposed))
		if r.prior != nil { // the draft knows the script less well
			r.prior.push(s.logits, r.generated(), s.proposed, 0.5)
		}
		s.drafts[i].set(s.logits, r.warp)
		s.proposed = append(s.proposed, s.drafts[i].pick(uniform(r.seed, at+i, forDraft)))
	}
	for i, token := range s.proposed {
		s.aim(m.target, r, s.proposed[:i])
		q := s.drafts[i]
		// Strictly less: a token of probability 0 is never accepted.
		if uniform(r.seed, at+i, forAccept)*q.prob(token) < s.target.prob(token) {
			s.tokens = append(s.tokens, s.judge(r, token))
			continue
		}
		s.residual.setResidual(s.target, q)
		token = s.residual.pick(uniform(r.seed, at+i, forResidual))
		return append(s.tokens, s.judge(r, token))
	}
	s.aim(m.target, r, s.proposed)
	token := s.target.pick(uniform(r.seed, at+s.steps, forToken))
	return append(s.tokens, s.judge(r, token))
}

// scorePrompt fills in the log-probs of the prompt from r.inputStart on. They are
// at temperature 1, as SGLang's are. The first token of all has none: nothing
// comes before it.
func (s *sampler) scorePrompt(p *Policy, r *request) {
	for i := r.inputStart; i < r.prompt; i++ {
		if i == 0 {
			r.inputLogprobs = append(r.inputLogprobs, float32(math.NaN()))
			continue
		}
		p.Logits(s.logits, r.ids[:i])
		s.target.set(s.logits, warp{temperature: 1, topP: 1})
		r.inputLogprobs = append(r.inputLogprobs, s.target.logprob(r.ids[i]))
	}
}
