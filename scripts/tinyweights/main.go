// Command tinyweights makes the weights of the simulated engine's tiny model and
// of its frozen draft, and the arithmetic prompts of the quickstart. Its output is
// committed; run it again after changing the corpus or the shapes:
//
//	go run ./scripts/tinyweights
//
// The base policy is fitted to a synthetic chat corpus in which only some of the
// answers are right, so that a reward on it starts low and can be trained up.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sheaf-rl/sheaf/pkg/engine/sim"
)

func main() {
	log.SetFlags(0)
	out := flag.String("configs", "configs", "folder to write models/tiny and data into")
	seed := flag.Uint64("seed", 1, "seed of the corpus and of the initial weights")
	flag.Parse()
	if err := run(*out, *seed); err != nil {
		log.Fatal(err)
	}
}

func run(out string, seed uint64) error {
	target := sim.Shape{Vocab: vocab, Dim: 32, Rows: 8192, Pad: endOfText, Orders: []int{1, 2, 3, 4, 6, 8, 12, 16, 18, 20, 24}}
	draft := sim.Shape{Vocab: vocab, Dim: 16, Rows: 2048, Pad: endOfText, Orders: []int{1, 2, 3, 4}}
	rows := corpus(seed)
	for _, m := range []struct {
		shape sim.Shape
		path  string
	}{
		{target, "models/tiny/model.safetensors"},
		{draft, "models/tiny/draft/model.safetensors"},
	} {
		policy, loss, err := fit(m.shape, rows, seed)
		if err != nil {
			return err
		}
		var file bytes.Buffer
		if err := policy.Write(&file); err != nil {
			return err
		}
		if err := write(filepath.Join(out, m.path), file.Bytes()); err != nil {
			return err
		}
		fmt.Printf("%s: %d bytes, final loss %.3f nats per token\n", m.path, file.Len(), loss)
	}
	train, eval := prompts()
	if err := write(filepath.Join(out, "data/arithmetic.jsonl"), train); err != nil {
		return err
	}
	return write(filepath.Join(out, "data/arithmetic-eval.jsonl"), eval)
}

func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
