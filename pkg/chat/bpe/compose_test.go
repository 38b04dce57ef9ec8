package bpe

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

func TestComposedKeepsLongRowsOfMarksTogether(t *testing.T) {
	acute, below := "\u0301", "\u0323" // classes 230 and 220
	cases := []struct{ name, text, want string }{
		{"31 marks", "x" + strings.Repeat(acute, 31), "x" + strings.Repeat(acute, 31)},
		{"the first joins its letter", "e" + strings.Repeat(acute, 40), "\u00e9" + strings.Repeat(acute, 39)},
		{"marks are put in order", "x" + strings.Repeat(acute, 20) + strings.Repeat(below, 20), "x" + strings.Repeat(below, 20) + strings.Repeat(acute, 20)},
		{"the first in order joins", "e" + strings.Repeat(acute, 20) + strings.Repeat(below, 20), "\u1eb9" + strings.Repeat(below, 19) + strings.Repeat(acute, 20)},
		{"marks without a letter", strings.Repeat(acute, 50), strings.Repeat(acute, 50)},
		{"a mark that is two", "q" + strings.Repeat("\u0344", 16), "q" + strings.Repeat("\u0308\u0301", 16)},
		{"Hangul beside them", "\u1112\u1161\u11ab" + strings.Repeat(acute, 31), "\ud55c" + strings.Repeat(acute, 31)},
		{"a joiner that was there", "x" + strings.Repeat(acute, 31) + "\u034f" + acute, "x" + strings.Repeat(acute, 31) + "\u034f" + acute},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := composed(tc.text); got != tc.want {
				t.Errorf("got %+q, want %+q", got, tc.want)
			}
		})
	}
}

// TestComposeIsTheLibrarysFormC where the library puts nothing in between.
func TestComposeIsTheLibrarysFormC(t *testing.T) {
	letters := []rune("aeoxAÅ\u00e9\u1ebf\u1112\u1161\u11ab\uac00\u0344\u0301\u0308\u0323\u0345\u0958\u0f73\u2126\u1100\u0b47\u0b3e")
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.SampledFrom(letters), 0, 12).Draw(t, "text"))
		if got, want := string(compose(decompose(text))), norm.NFC.String(text); got != want {
			t.Fatalf("%+q: got %+q, want %+q", text, got, want)
		}
	})
}
