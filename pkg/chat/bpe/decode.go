package bpe

import "unicode/utf8"

// Decode returns the text of ids; ids that have no token are left out. With
// skipSpecial special tokens are left out as well.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	raw := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		raw = t.appendBytes(raw, id, skipSpecial)
	}
	if utf8.Valid(raw) {
		return string(raw)
	}
	return string(lossy(make([]byte, 0, len(raw)+16), raw))
}

// appendBytes appends what one token stands for, which need not be whole characters.
func (t *Tokenizer) appendBytes(dst []byte, id int32, skipSpecial bool) []byte {
	if a := t.addedToken(id); a != nil {
		if skipSpecial && a.special {
			return dst
		}
		return t.appendSpelled(dst, a.content)
	}
	if odd, ok := t.vocab.odd[id]; ok {
		return append(dst, odd...)
	}
	return append(dst, t.vocab.bytes(id)...)
}

// appendSpelled appends the bytes of an added token. The reference reads it in the
// byte alphabet if all its characters are of that, like any other token.
func (t *Tokenizer) appendSpelled(dst []byte, token string) []byte {
	if spelled, ok := t.vocab.alphabet.bytes(dst, token); ok {
		return spelled
	}
	return append(dst, token...)
}

// Decoder decodes a stream of ids. Bytes that may be the start of a character are
// held back until the rest has come.
type Decoder struct {
	t           *Tokenizer
	skipSpecial bool
	held        []byte
}

// NewDecoder returns a decoder of one stream.
func (t *Tokenizer) NewDecoder(skipSpecial bool) *Decoder {
	return &Decoder{t: t, skipSpecial: skipSpecial}
}

// Next takes more ids and returns the text that is certain now.
func (d *Decoder) Next(ids ...int32) string {
	for _, id := range ids {
		d.held = d.t.appendBytes(d.held, id, d.skipSpecial)
	}
	whole := len(d.held) - unfinished(d.held)
	text := string(lossy(nil, d.held[:whole]))
	d.held = append(d.held[:0], d.held[whole:]...)
	return text
}

// Flush returns what is held back, which can only be a broken character, and
// makes the decoder ready for another stream.
func (d *Decoder) Flush() string {
	text := string(lossy(nil, d.held))
	d.held = d.held[:0]
	return text
}

// unfinished returns how many bytes at the end of b begin a character whose rest
// is still to come.
func unfinished(b []byte) int {
	for n := 1; n <= 3 && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if broken(tail) == n && !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}
	return 0
}
