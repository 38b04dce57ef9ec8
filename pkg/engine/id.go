package engine

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID returns a request id: 32 random hex digits, all of one length so that
// none is another's prefix (hazard 11).
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}
