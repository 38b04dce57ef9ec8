package sim

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sheaf-rl/sheaf/internal/safetensors"
)

const tinyModel = "../../../configs/models/tiny/model.safetensors"

// TestForwardAgainstFloat64 evaluates the formula of docs/sim-engine.md straight
// from the file, in float64 and with other loops.
func TestForwardAgainstFloat64(t *testing.T) {
	for _, path := range []string{tinyModel, "../../../configs/models/tiny/draft/model.safetensors"} {
		p, err := ReadPolicy(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := safetensors.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		embed, _ := safetensors.Values[float32](f, "embed.weight")
		head, _ := safetensors.Values[float32](f, "head.weight")
		bias, _ := safetensors.Values[float32](f, "head.bias")
		s := p.Shape()
		rng := rand.New(rand.NewPCG(1, 2))
		got := make([]float32, s.Vocab)
		worst := 0.0
		for range 500 {
			context := make([]int32, rng.IntN(40))
			for i := range context {
				context[i] = int32(rng.IntN(s.Vocab))
			}
			padded := context
			for len(padded) < s.Window() {
				padded = append([]int32{s.Pad}, padded...)
			}
			hidden := make([]float64, s.Dim)
			for _, n := range s.Orders {
				h := uint64(n) * 0x9E3779B1 % (1 << 32)
				for j := range n {
					h = (h ^ uint64(padded[len(padded)-1-j])) * 0x01000193 % (1 << 32)
				}
				h ^= h >> 15
				h = h * 0x85ebca6b % (1 << 32)
				h ^= h >> 13
				for d := range hidden {
					hidden[d] += float64(embed[int(h)%s.Rows*s.Dim+d])
				}
			}
			p.Logits(got, context)
			for v := range got {
				want := float64(bias[v])
				for d, x := range hidden {
					want += x * float64(head[v*s.Dim+d])
				}
				worst = max(worst, math.Abs(want-float64(got[v])))
			}
		}
		t.Logf("%s: largest difference %.2g", path, worst)
		if worst > 1e-4 {
			t.Errorf("%s: logits differ by %g", path, worst)
		}
	}
}

func TestPolicyRoundTrip(t *testing.T) {
	p, err := ReadPolicy(tinyModel)
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	if err := p.Write(&first); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Parse(first.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	again, err := policyOf(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(&second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("writing what was read gives another file")
	}
}

func TestReadPolicyRefuses(t *testing.T) {
	good := map[string]string{"format": policyFormat, "vocab": "2", "dim": "1", "rows": "2", "pad": "0", "orders": "1,2"}
	tests := []struct {
		name string
		key  string
		to   string
	}{
		{"another format", "format", "other"},
		{"no number", "dim", "wide"},
		{"a size that the tensors do not have", "rows", "3"},
		{"a padding outside the vocabulary", "pad", "2"},
		{"no orders", "orders", ""},
		{"orders that do not ascend", "orders", "2,1"},
		{"an order too long", "orders", "1,100000"},
	}
	write := func(metadata map[string]string) *safetensors.File {
		var buf bytes.Buffer
		err := safetensors.Write(&buf, metadata,
			safetensors.Of(embedTensor, []int{2, 1}, []float32{1, 2}),
			safetensors.Of(headTensor, []int{2, 1}, []float32{1, 2}),
			safetensors.Of(biasTensor, []int{2}, []float32{1, 2}))
		if err != nil {
			t.Fatal(err)
		}
		f, err := safetensors.Parse(buf.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if _, err := policyOf(write(good)); err != nil {
		t.Fatalf("the good file: %v", err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			metadata := map[string]string{}
			for k, v := range good {
				metadata[k] = v
			}
			metadata[tt.key] = tt.to
			if _, err := policyOf(write(metadata)); !errors.Is(err, ErrWeights) {
				t.Errorf("error %v, want ErrWeights", err)
			}
		})
	}
}

func BenchmarkLogits(b *testing.B) {
	p, err := ReadPolicy(tinyModel)
	if err != nil {
		b.Fatal(err)
	}
	logits := make([]float32, p.shape.Vocab)
	context := make([]int32, 64)
	for b.Loop() {
		p.Logits(logits, context)
	}
}

func BenchmarkDist(b *testing.B) {
	p, err := ReadPolicy(tinyModel)
	if err != nil {
		b.Fatal(err)
	}
	logits := make([]float32, p.shape.Vocab)
	p.Logits(logits, make([]int32, 64))
	d := newDist(len(logits))
	for name, w := range map[string]warp{
		"plain": {temperature: 1, topP: 1}, "warm": {temperature: 0.7, topP: 1}, "top_p": {temperature: 1, topP: 0.9},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				d.set(logits, w)
			}
		})
	}
}
