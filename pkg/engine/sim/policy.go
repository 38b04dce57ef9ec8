package sim

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/sheaf-rl/sheaf/internal/safetensors"
)

// Names of the tensors and the format mark of a policy file.
const (
	policyFormat = "sheaf-ngram-1"
	embedTensor  = "embed.weight"
	headTensor   = "head.weight"
	biasTensor   = "head.bias"
)

// Bounds that keep a damaged file from asking for absurd memory.
const (
	maxDim    = 256
	maxOrder  = 256
	maxOrders = 32
)

// ErrWeights is wrapped by every error about the content of a policy file.
var ErrWeights = errors.New("not usable as policy weights")

// Shape is what a policy file's metadata says: everything that decides which
// rows a context selects and how large the tensors are.
type Shape struct {
	// Vocab is the number of token ids.
	Vocab int
	// Dim is the width of an embedding row.
	Dim int
	// Rows is the number of embedding rows that the hash spreads n-grams over.
	Rows int
	// Orders lists the lengths of the n-grams that are looked up, ascending.
	Orders []int
	// Pad is the token that fills a window reaching before the first token.
	Pad int32
}

// Window is the number of last tokens that a distribution depends on.
func (s Shape) Window() int { return s.Orders[len(s.Orders)-1] }

func (s Shape) validate() error {
	switch {
	case s.Vocab < 1 || s.Rows < 1 || s.Dim < 1 || s.Dim > maxDim:
		return fmt.Errorf("%w: vocab %d, rows %d or dim %d is out of range", ErrWeights, s.Vocab, s.Rows, s.Dim)
	case len(s.Orders) == 0 || len(s.Orders) > maxOrders:
		return fmt.Errorf("%w: it lists %d orders, 1 to %d are possible", ErrWeights, len(s.Orders), maxOrders)
	case s.Orders[0] < 1 || s.Window() > maxOrder || !slices.IsSorted(s.Orders):
		return fmt.Errorf("%w: orders %v must ascend within 1 and %d", ErrWeights, s.Orders, maxOrder)
	case s.Pad < 0 || int(s.Pad) >= s.Vocab:
		return fmt.Errorf("%w: the padding token %d is outside the vocabulary", ErrWeights, s.Pad)
	}
	return nil
}

// AppendRows appends to rows the embedding row of each order for the context's
// last tokens. The hash is written out in docs/sim-engine.md, because trainers in
// other languages must select the same rows.
func (s Shape) AppendRows(rows []int32, context []int32) []int32 {
	for _, order := range s.Orders {
		h := uint32(order) * 0x9E3779B1
		have := min(order, len(context))
		for _, token := range backwards(context, have) {
			h = (h ^ uint32(token)) * 0x01000193
		}
		for range order - have {
			h = (h ^ uint32(s.Pad)) * 0x01000193
		}
		h ^= h >> 15
		h *= 0x85ebca6b
		h ^= h >> 13
		rows = append(rows, int32(h%uint32(s.Rows)))
	}
	return rows
}

// backwards yields the last n elements of s, last first.
func backwards(s []int32, n int) func(func(int, int32) bool) {
	return func(yield func(int, int32) bool) {
		for j := range n {
			if !yield(j, s[len(s)-1-j]) {
				return
			}
		}
	}
}

// Policy is a next-token distribution with real, trainable weights: the
// embedding rows of the context's hashed n-grams are summed and go through one
// linear layer. It is immutable; new weights are a new Policy.
//
// A distribution is a pure function of the last [Shape.Window] tokens. Sums run
// in one fixed order and every product is rounded on its own (the language allows
// x*y+z to be fused otherwise), so all machines get the same bits.
type Policy struct {
	shape Shape
	embed []float32 // Rows x Dim
	head  []float32 // Dim x Vocab, transposed from the file
	bias  []float32 // Vocab
}

// NewPolicy makes a policy of embed [Rows, Dim], head [Vocab, Dim] and bias
// [Vocab], all in row-major order. It keeps embed and bias.
func NewPolicy(shape Shape, embed, head, bias []float32) (*Policy, error) {
	if err := shape.validate(); err != nil {
		return nil, err
	}
	if len(embed) != shape.Rows*shape.Dim || len(head) != shape.Vocab*shape.Dim || len(bias) != shape.Vocab {
		return nil, fmt.Errorf("%w: tensor sizes %d, %d, %d do not fit rows %d, dim %d, vocab %d",
			ErrWeights, len(embed), len(head), len(bias), shape.Rows, shape.Dim, shape.Vocab)
	}
	return &Policy{shape: shape, embed: embed, head: transpose(head, shape.Vocab, shape.Dim), bias: bias}, nil
}

// ReadPolicy reads a policy file.
func ReadPolicy(path string) (*Policy, error) {
	f, err := safetensors.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := policyOf(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func policyOf(f *safetensors.File) (*Policy, error) {
	if got := f.Metadata["format"]; got != policyFormat {
		return nil, fmt.Errorf("%w: its metadata has format %q where %q is needed; scripts/tinyweights writes such files",
			ErrWeights, got, policyFormat)
	}
	var shape Shape
	var pad int
	for key, dst := range map[string]*int{"vocab": &shape.Vocab, "dim": &shape.Dim, "rows": &shape.Rows, "pad": &pad} {
		n, err := strconv.Atoi(f.Metadata[key])
		if err != nil {
			return nil, fmt.Errorf("%w: its metadata's %s is %q", ErrWeights, key, f.Metadata[key])
		}
		*dst = n
	}
	shape.Pad = int32(pad)
	for field := range strings.SplitSeq(f.Metadata["orders"], ",") {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("%w: its metadata's orders are %q", ErrWeights, f.Metadata["orders"])
		}
		shape.Orders = append(shape.Orders, n)
	}
	embed, err := safetensors.Values[float32](f, embedTensor)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWeights, err)
	}
	head, err := safetensors.Values[float32](f, headTensor)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWeights, err)
	}
	bias, err := safetensors.Values[float32](f, biasTensor)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWeights, err)
	}
	return NewPolicy(shape, embed, head, bias)
}

// Write writes p as a policy file.
func (p *Policy) Write(w io.Writer) error {
	s := p.shape
	orders := make([]string, len(s.Orders))
	for i, n := range s.Orders {
		orders[i] = strconv.Itoa(n)
	}
	return safetensors.Write(w, map[string]string{
		"format": policyFormat,
		"vocab":  strconv.Itoa(s.Vocab),
		"dim":    strconv.Itoa(s.Dim),
		"rows":   strconv.Itoa(s.Rows),
		"pad":    strconv.Itoa(int(s.Pad)),
		"orders": strings.Join(orders, ","),
	},
		safetensors.Of(embedTensor, []int{s.Rows, s.Dim}, p.embed),
		safetensors.Of(headTensor, []int{s.Vocab, s.Dim}, transpose(p.head, s.Dim, s.Vocab)),
		safetensors.Of(biasTensor, []int{s.Vocab}, p.bias),
	)
}

// Shape returns the policy's shape.
func (p *Policy) Shape() Shape { return p.shape }

// Logits fills logits, which must be as long as the vocabulary, with the
// unnormalised scores of every next token after context.
func (p *Policy) Logits(logits []float32, context []int32) {
	var rowBuf [maxOrders]int32
	var hiddenBuf [maxDim]float32
	dim, vocab := p.shape.Dim, p.shape.Vocab
	hidden := hiddenBuf[:dim]
	for _, row := range p.shape.AppendRows(rowBuf[:0], context) {
		for i, v := range p.embed[int(row)*dim:][:dim] {
			hidden[i] += v
		}
	}
	logits = logits[:vocab]
	copy(logits, p.bias)
	// Four dimensions a pass, added one after the other: the order of the sums is
	// the plain loop's, with a quarter of its loads and stores.
	i := 0
	for ; i+4 <= dim; i += 4 {
		h0, h1, h2, h3 := hidden[i], hidden[i+1], hidden[i+2], hidden[i+3]
		w0 := p.head[(i+0)*vocab:][:vocab]
		w1 := p.head[(i+1)*vocab:][:vocab]
		w2 := p.head[(i+2)*vocab:][:vocab]
		w3 := p.head[(i+3)*vocab:][:vocab]
		for v := range logits {
			x := logits[v] + float32(h0*w0[v])
			x += float32(h1 * w1[v])
			x += float32(h2 * w2[v])
			logits[v] = x + float32(h3*w3[v])
		}
	}
	for ; i < dim; i++ {
		h, w := hidden[i], p.head[i*vocab:][:vocab]
		for v := range logits {
			logits[v] += float32(h * w[v])
		}
	}
}

// transpose returns the transpose of a rows x cols matrix.
func transpose(m []float32, rows, cols int) []float32 {
	t := make([]float32, len(m))
	for r := range rows {
		for c := range cols {
			t[c*rows+r] = m[r*cols+c]
		}
	}
	return t
}
