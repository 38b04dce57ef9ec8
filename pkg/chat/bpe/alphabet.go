package bpe

import "unicode/utf8"

// alphabet is the printable character that stands for each byte in a byte-level
// vocabulary: a byte that prints stands for itself, the others are numbered from
// U+0100 on.
type alphabet struct {
	char   [256]rune
	byteOf [256 + 68]int16 // -1: no byte
}

func newAlphabet() *alphabet {
	a := new(alphabet)
	for i := range a.byteOf {
		a.byteOf[i] = -1
	}
	next := rune(256)
	for b := range 256 {
		c := rune(b)
		if b < '!' || '~' < b && b < 0xA1 || b == 0xAD {
			c = next
			next++
		}
		a.char[b] = c
		a.byteOf[c] = int16(b)
	}
	return a
}

// bytes returns the bytes a vocabulary entry stands for, if all its characters
// are of the alphabet.
func (a *alphabet) bytes(dst []byte, token string) ([]byte, bool) {
	for _, c := range token {
		if int(c) >= len(a.byteOf) || a.byteOf[c] < 0 {
			return nil, false
		}
		dst = append(dst, byte(a.byteOf[c]))
	}
	return dst, true
}

// spell is the inverse of bytes.
func (a *alphabet) spell(raw string) string {
	out := make([]byte, 0, 2*len(raw))
	for i := range len(raw) {
		out = utf8.AppendRune(out, a.char[raw[i]])
	}
	return string(out)
}
