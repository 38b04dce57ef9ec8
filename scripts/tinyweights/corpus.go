package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
)

// The tiny tokenizer: ids below 256 are bytes, then come the special tokens of
// configs/models/tiny/tokenizer.json, of which the corpus uses the first five.
const (
	vocab     = 272
	endOfText = 256
	imStart   = 257
	imEnd     = 258
	think     = 259
	endThink  = 260
)

const (
	samples = 6000
	// rightShare is how often the corpus answers rightly on purpose; the other
	// answers are uniform over all sums and right now and then.
	rightShare = 0.4
	// promptShare of the prompt's positions are learnt too, so that a policy that
	// runs on past its answer (drafts do) stays in known territory.
	promptShare = 0.15
)

// row is one thing to learn: after context comes next.
type row struct {
	context []int32
	next    int32
}

// corpus draws the synthetic chats and cuts them into rows.
func corpus(seed uint64) []row {
	rng := rand.New(rand.NewPCG(seed, 1))
	var rows []row
	for range samples {
		a, b := rng.IntN(10), rng.IntN(10)
		answer := rng.IntN(19)
		if rng.Float64() < rightShare {
			answer = a + b
		}
		tokens := prompt(a, b)
		start := len(tokens)
		switch u := rng.Float64(); {
		case u < 0.5:
		case u < 0.8:
			tokens = appendText(tokens, fmt.Sprintf("%d+%d=", a, b))
		default:
			tokens = append(appendText(append(tokens, think), fmt.Sprintf("%d+%d", a, b)), endThink)
		}
		tokens = append(appendText(tokens, fmt.Sprint(answer)), imEnd)
		// What follows the stop token is defined too: speculative drafts run past it.
		tokens = appendText(tokens, "\n")
		if rng.IntN(2) == 0 {
			tokens = appendText(append(tokens, imStart), "user\n")
		} else {
			tokens = append(tokens, endOfText)
		}
		for i := range tokens {
			if i >= start || rng.Float64() < promptShare {
				rows = append(rows, row{context: tokens[:i], next: tokens[i]})
			}
		}
	}
	return rows
}

// prompt renders one question as the tiny model's chat template does.
func prompt(a, b int) []int32 {
	tokens := appendText([]int32{imStart}, fmt.Sprintf("user\n%d+%d=", a, b))
	tokens = appendText(append(tokens, imEnd), "\n")
	return appendText(append(tokens, imStart), "assistant\n")
}

func appendText(tokens []int32, text string) []int32 {
	for _, b := range []byte(text) {
		tokens = append(tokens, int32(b))
	}
	return tokens
}

// prompts returns the 100 training questions and every seventh of them, from
// which evaluation measures what was memorised: this policy cannot generalise.
func prompts() (train, eval []byte) {
	var all, some bytes.Buffer
	for i := range 100 {
		a, b := i/10, i%10
		line := fmt.Sprintf(`{"prompt":[{"role":"user","content":"%d+%d="}],"label":"%d","metadata":{"source":"arithmetic","a":%d,"b":%d}}`+"\n", a, b, a+b, a, b)
		all.WriteString(line)
		if i%7 == 0 {
			some.WriteString(line)
		}
	}
	return all.Bytes(), some.Bytes()
}
