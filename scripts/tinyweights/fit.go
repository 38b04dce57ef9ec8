package main

import (
	"math"
	"math/rand/v2"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

// Training recipe: Adam, gradients clipped to unit norm, rate falling linearly.
const (
	epochs    = 2
	batchSize = 256
	rate      = 3e-3
	lastRate  = 3e-4
	beta1     = 0.9
	beta2     = 0.99
	epsilon   = 1e-8
)

// fit learns a policy of that shape from rows and returns it with its mean loss
// over the last tenth of the training. It is single-threaded on purpose: the
// order of its sums, and so the file, does not depend on the machine's cores.
func fit(shape sim.Shape, rows []row, seed uint64) (*sim.Policy, float64, error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	embed := newParam(shape.Rows*shape.Dim, func() float64 { return 0.3 * rng.NormFloat64() })
	head := newParam(shape.Vocab*shape.Dim, func() float64 { return rng.NormFloat64() / math.Sqrt(float64(shape.Dim)) })
	bias := newParam(shape.Vocab, func() float64 { return 0 })
	params := []*param{embed, head, bias}

	hidden, logits := make([]float32, shape.Dim), make([]float32, shape.Vocab)
	back := make([]float32, shape.Dim)
	steps := epochs * (len(rows) / batchSize)
	var loss float64
	var counted int
	var order []int
	for step := range steps {
		if step%(len(rows)/batchSize) == 0 {
			order = rng.Perm(len(rows))
		}
		batch := order[:batchSize]
		order = order[batchSize:]
		for _, p := range params {
			clear(p.grad)
		}
		for _, i := range batch {
			selected := shape.AppendRows(nil, rows[i].context)
			clear(hidden)
			for _, r := range selected {
				for d, v := range embed.value[int(r)*shape.Dim:][:shape.Dim] {
					hidden[d] += v
				}
			}
			for v := range logits {
				logits[v] = bias.value[v] + dot(hidden, head.value[v*shape.Dim:][:shape.Dim])
			}
			nats := softmaxGradient(logits, rows[i].next)
			if step >= steps-steps/10 {
				loss += nats
				counted++
			}
			clear(back)
			for v, g := range logits {
				g /= batchSize
				bias.grad[v] += g
				axpy(head.grad[v*shape.Dim:][:shape.Dim], g, hidden)
				axpy(back, g, head.value[v*shape.Dim:][:shape.Dim])
			}
			for _, r := range selected {
				axpy(embed.grad[int(r)*shape.Dim:][:shape.Dim], 1, back)
			}
		}
		adam(params, step+1, rate+(lastRate-rate)*float64(step)/float64(steps))
	}
	policy, err := sim.NewPolicy(shape, embed.value, head.value, bias.value)
	return policy, loss / float64(counted), err
}

// softmaxGradient turns logits into the gradient of the cross entropy against
// want, and returns that cross entropy.
func softmaxGradient(logits []float32, want int32) float64 {
	top := float64(logits[0])
	for _, x := range logits {
		top = max(top, float64(x))
	}
	var sum float64
	for _, x := range logits {
		sum += math.Exp(float64(x) - top)
	}
	loss := math.Log(sum) - (float64(logits[want]) - top)
	for v, x := range logits {
		logits[v] = float32(math.Exp(float64(x)-top) / sum)
	}
	logits[want]--
	return loss
}

// param is a tensor with its gradient and Adam's two moments.
type param struct {
	value, grad, mean, square []float32
}

func newParam(n int, init func() float64) *param {
	p := &param{make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)}
	for i := range p.value {
		p.value[i] = float32(init())
	}
	return p
}

func adam(params []*param, step int, rate float64) {
	var norm float64
	for _, p := range params {
		for _, g := range p.grad {
			norm += float64(g) * float64(g)
		}
	}
	scale := float32(1 / max(1, math.Sqrt(norm)))
	c1 := 1 - math.Pow(beta1, float64(step))
	c2 := 1 - math.Pow(beta2, float64(step))
	for _, p := range params {
		for i, g := range p.grad {
			g *= scale
			p.mean[i] += (1 - beta1) * (g - p.mean[i])
			p.square[i] += (1 - beta2) * (g*g - p.square[i])
			p.value[i] -= float32(rate * float64(p.mean[i]) / c1 / (math.Sqrt(float64(p.square[i])/c2) + epsilon))
		}
	}
}

func dot(x, y []float32) float32 {
	var sum float32
	for i, v := range x {
		sum += float32(v * y[i])
	}
	return sum
}

func axpy(dst []float32, a float32, x []float32) {
	for i, v := range x {
		dst[i] += float32(a * v)
	}
}
