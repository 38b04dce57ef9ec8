package bpe

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// vocab maps the bytes of a token to its id and back. The bytes of all tokens lie
// in one string, and the hash table holds ids only: a lookup touches two cache
// lines and the garbage collector sees no pointers per token.
type vocab struct {
	alphabet *alphabet
	text     string
	offset   []uint32 // token id spans text[offset[id]:offset[id+1]]
	table    []int32  // id+1, 0 is free
	mask     uint64
	// odd are tokens that are no byte sequence, such as special tokens that stand
	// in the vocabulary itself. Merging never makes one.
	odd     map[int32]string
	oddID   map[string]int32
	missing map[int32]bool // ids without a token

	byteID [256]int32 // -1: the vocabulary lacks the byte
	// whole remembers, for each token, whether merging its bytes gives just it.
	whole []atomic.Uint32
}

const (
	wholeUnknown = iota
	wholeYes
	wholeNo
)

// newVocab takes the vocabulary as the file spells it.
func newVocab(ids map[string]int32) (*vocab, error) {
	v := &vocab{alphabet: newAlphabet(), odd: map[int32]string{}, oddID: map[string]int32{}, missing: map[int32]bool{}}
	size := 0
	for token, id := range ids {
		if id < 0 || id >= maxID {
			return nil, fmt.Errorf("%w: token %q has id %d", ErrInvalid, token, id)
		}
		size = max(size, int(id)+1)
	}
	names := make([]string, size)
	present := make([]bool, size)
	for token, id := range ids {
		if present[id] {
			return nil, fmt.Errorf("%w: tokens %q and %q share the id %d", ErrInvalid, names[id], token, id)
		}
		names[id], present[id] = token, true
	}
	v.offset = make([]uint32, size+1)
	v.whole = make([]atomic.Uint32, size)
	v.mask = 1<<bits.Len(uint(2*size)) - 1
	v.table = make([]int32, v.mask+1)
	text := make([]byte, 0, 8*size)
	for id, name := range names {
		if next, ok := v.alphabet.bytes(text, name); !present[id] {
			v.missing[int32(id)] = true
		} else if ok && name != "" {
			text = next
		} else {
			v.odd[int32(id)] = name
			v.oddID[name] = int32(id)
		}
		v.offset[id+1] = uint32(len(text))
	}
	v.text = string(text)
	for id := range size {
		if raw := v.bytes(int32(id)); raw != "" {
			slot := hash(raw) & v.mask
			for v.table[slot] != 0 {
				slot = (slot + 1) & v.mask
			}
			v.table[slot] = int32(id) + 1
		}
	}
	for b := range v.byteID {
		v.byteID[b] = -1
		if id, ok := v.lookup(string([]byte{byte(b)})); ok {
			v.byteID[b] = id
		}
	}
	return v, nil
}

func (v *vocab) size() int { return len(v.offset) - 1 }

// bytes returns what a token stands for; "" for odd and missing ones.
func (v *vocab) bytes(id int32) string {
	if id < 0 || int(id) >= v.size() {
		return ""
	}
	return v.text[v.offset[id]:v.offset[id+1]]
}

// lookup finds the token of some bytes.
func (v *vocab) lookup(raw string) (int32, bool) { return v.lookupHash(raw, hash(raw)) }

func (v *vocab) lookupHash(raw string, h uint64) (int32, bool) {
	for slot := h & v.mask; ; slot = (slot + 1) & v.mask {
		id := v.table[slot] - 1
		if id < 0 {
			return 0, false
		}
		if v.text[v.offset[id]:v.offset[id+1]] == raw {
			return id, true
		}
	}
}

// byName finds a token as the file spells it.
func (v *vocab) byName(name string) (int32, bool) {
	if id, ok := v.oddID[name]; ok {
		return id, true
	}
	raw, ok := v.alphabet.bytes(nil, name)
	if !ok || len(raw) == 0 {
		return 0, false
	}
	return v.lookup(string(raw))
}

// name spells a token as the file does.
func (v *vocab) name(id int32) (string, bool) {
	if name, ok := v.odd[id]; ok {
		return name, true
	}
	if id < 0 || int(id) >= v.size() || v.missing[id] {
		return "", false
	}
	return v.alphabet.spell(v.bytes(id)), true
}

// hash mixes the bytes of a word, eight at a time.
func hash(s string) uint64 {
	const k = 0x9E3779B97F4A7C15
	h := uint64(len(s)) * k
	for len(s) >= 8 {
		h = (h ^ load64(s)) * k
		h ^= h >> 29
		s = s[8:]
	}
	if len(s) >= 4 {
		h = (h ^ load32(s)) * k
		h ^= h >> 29
		s = s[4:]
	}
	var tail uint64
	for i := range len(s) {
		tail = tail<<8 | uint64(s[i])
	}
	h = (h ^ tail ^ 0xFF<<56) * k
	return h ^ h>>32
}

func load64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func load32(s string) uint64 {
	_ = s[3]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}
