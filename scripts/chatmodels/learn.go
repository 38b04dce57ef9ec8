package main

import (
	"slices"
	"strings"
)

// learn makes a byte-level vocabulary of a text: the bytes, then n merges, always
// of the pair that is most frequent inside words, the earlier one on a tie.
func learn(text string, n int) (vocab, [][2]string) {
	tokens := byteVocab()
	alphabet := tokens
	var words [][]string
	for _, word := range strings.SplitAfter(text, " ") {
		var parts []string
		for i := range len(word) {
			parts = append(parts, alphabet[word[i]])
		}
		// The space belongs to the word behind it, as the split pattern has it.
		if len(words) > 0 && strings.HasSuffix(strings.Join(words[len(words)-1], ""), alphabet[' ']) {
			last := words[len(words)-1]
			words[len(words)-1] = last[:len(last)-1]
			parts = append([]string{alphabet[' ']}, parts...)
		}
		words = append(words, parts)
	}
	var merges [][2]string
	for len(merges) < n {
		best, ok := mostFrequent(words)
		if !ok {
			break
		}
		merges = append(merges, best)
		if joined := best[0] + best[1]; !slices.Contains(tokens, joined) {
			tokens = append(tokens, joined)
		}
		for i, parts := range words {
			words[i] = merge(parts, best)
		}
	}
	return tokens, merges
}

func mostFrequent(words [][]string) (best [2]string, ok bool) {
	counts := map[[2]string]int{}
	var order [][2]string
	for _, parts := range words {
		for i := range len(parts) - 1 {
			pair := [2]string{parts[i], parts[i+1]}
			if counts[pair]++; counts[pair] == 1 {
				order = append(order, pair)
			}
		}
	}
	for _, pair := range order {
		if counts[pair] > counts[best] {
			best = pair
		}
	}
	return best, counts[best] > 1
}

func merge(parts []string, pair [2]string) []string {
	var out []string
	for i := 0; i < len(parts); i++ {
		if i+1 < len(parts) && parts[i] == pair[0] && parts[i+1] == pair[1] {
			out = append(out, parts[i]+parts[i+1])
			i++
			continue
		}
		out = append(out, parts[i])
	}
	return out
}
