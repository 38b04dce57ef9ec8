package unidata

import (
	"testing"
	"unicode"
)

// Where Go's own tables and the pinned one know a letter or number, they agree;
// they differ only in what one of them does not know yet.
func TestTableAgreesWithGo(t *testing.T) {
	table := Load()
	letters, _ := ByName("L")
	numbers, _ := ByName("N")
	differ := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		category := table.Of(r)
		if letters.Has(category) == unicode.IsLetter(r) && numbers.Has(category) == unicode.IsNumber(r) {
			continue
		}
		if category != Cn && unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.Cc, unicode.Cf, unicode.Co) {
			t.Errorf("%U is %d here, Go knows it as something else", r, category)
		}
		differ++
	}
	if differ > 20000 {
		t.Errorf("%d code points differ", differ)
	}
}

func TestSpaces(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if IsSpace(r) != unicode.IsSpace(r) {
			t.Errorf("%U: %v, Go says %v", r, IsSpace(r), unicode.IsSpace(r))
		}
	}
}

func TestComposes(t *testing.T) {
	for r, want := range map[rune]bool{'a': false, 'é': true, '\u0301': true, '\uAC00': true, '\u1161': true, '\u0915': false, '\U000119E0': false} {
		if Composes(r) != want {
			t.Errorf("%U: %v, want %v", r, Composes(r), want)
		}
	}
}

func TestNames(t *testing.T) {
	if _, ok := ByName("Xx"); ok {
		t.Error("Xx is a category")
	}
	if s, ok := ByName("Nd"); !ok || !s.Has(Nd) || s.Has(Nl) {
		t.Error("Nd is not itself")
	}
	if Reference() == "" {
		t.Error("the table does not say where it is from")
	}
}
