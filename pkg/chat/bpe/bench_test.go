package bpe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/chat/bpe"
	"github.com/sheaf-rl/sheaf/pkg/chat/internal/cputime"
	"github.com/sheaf-rl/sheaf/pkg/chat/internal/vectors"
)

func modelFile(b testing.TB, name string) []byte {
	b.Helper()
	data, err := os.ReadFile(filepath.Join(vectors.Models(b, filepath.Join("..", "..", "..")), name, "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	return data
}

// prose is text of the size: the sources of this package's folder, which are
// English with code in it, the diet of a coding agent. Every pass over them changes
// the words, so that caches do not see the same text again and again.
func prose(b testing.TB, size int) string {
	b.Helper()
	files, err := filepath.Glob(filepath.Join("..", "*", "*.go"))
	if err != nil {
		b.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		source.Write(data)
	}
	var text strings.Builder
	for pass := 0; text.Len() < size; pass++ {
		// From the second pass on every letter behind an "e" moves along the alphabet.
		shift, moved := byte(pass%26), []byte(source.String())
		for i := 1; i < len(moved); i++ {
			if c := moved[i]; moved[i-1] == 'e' && 'a' <= c && c <= 'z' {
				moved[i] = 'a' + (c-'a'+shift)%26
			}
		}
		text.Write(moved)
	}
	return text.String()[:size]
}

func BenchmarkLoadQwen3(b *testing.B) {
	data := modelFile(b, "qwen3")
	cputime.Loop(b, func() {
		if _, err := bpe.Load(data); err != nil {
			b.Fatal(err)
		}
	})
}

func benchmarkEncode(b *testing.B, model, text string) {
	t, err := bpe.Load(modelFile(b, model))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	var ids []int32
	cputime.Loop(b, func() { ids = t.AppendEncode(ids[:0], text, false) })
	b.ReportMetric(float64(len(text))/float64(len(ids)), "bytes/token")
}

func BenchmarkEncodeQwen3(b *testing.B)    { benchmarkEncode(b, "qwen3", prose(b, 1<<20)) }
func BenchmarkEncodeDeepSeek(b *testing.B) { benchmarkEncode(b, "deepseek_v3", prose(b, 1<<20)) }

// A megabyte without a space is one word.
func BenchmarkEncodeLongWord(b *testing.B) {
	benchmarkEncode(b, "qwen3", strings.Repeat("abcdefghijklmnopqrstuvwxyz", 1<<20/26))
}

func BenchmarkDecodeQwen3(b *testing.B) {
	t, err := bpe.Load(modelFile(b, "qwen3"))
	if err != nil {
		b.Fatal(err)
	}
	text := prose(b, 1<<20)
	ids := t.Encode(text, false)
	b.SetBytes(int64(len(text)))
	cputime.Loop(b, func() { t.Decode(ids, false) })
}
