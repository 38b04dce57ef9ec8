// Package unidata holds the general category of every code point, as the
// reference tokenizers see it.
//
// Go's unicode tables follow the Go version. Word boundaries of a tokenizer must
// not, so the table is pinned here; scripts/chatmodels/unicode_table.py asks it of
// the reference.
package unidata

import (
	"strings"
	"sync"
)

// Category is the general category of a code point.
type Category uint8

// The general categories. Surrogates, which UTF-8 cannot carry, count as Cn.
const (
	Cn Category = iota
	Lu
	Ll
	Lt
	Lm
	Lo
	Mn
	Mc
	Me
	Nd
	Nl
	No
	Pc
	Pd
	Ps
	Pe
	Pi
	Pf
	Po
	Sm
	Sc
	Sk
	So
	Zs
	Zl
	Zp
	Cc
	Cf
	Co
)

// Set is a set of categories.
type Set uint32

// Of returns the set of some categories.
func Of(categories ...Category) Set {
	var s Set
	for _, c := range categories {
		s |= 1 << c
	}
	return s
}

// Has tells whether c is in the set.
func (s Set) Has(c Category) bool { return s>>c&1 != 0 }

// ByName returns the set of a one- or two-letter category name, such as L or Nd.
func ByName(name string) (Set, bool) {
	names := [...]string{"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
		"Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"}
	var s Set
	for i, n := range names {
		if n == name || len(name) == 1 && n[:1] == name {
			s |= 1 << i
		}
	}
	return s, s != 0
}

// Table maps every code point to its category.
type Table [0x110000]Category

// Load returns the table. It is expanded once, a millisecond's work.
var Load = sync.OnceValue(func() *Table {
	table := new(Table)
	point := 0
	for r := (varints{categoryRuns}); r.left != ""; {
		category := Category(r.next())
		for range r.next() {
			table[point] = category
			point++
		}
	}
	return table
})

// varints reads a string of unsigned varints.
type varints struct{ left string }

func (v *varints) next() int {
	n := 0
	for shift := 0; v.left != ""; shift += 7 {
		b := v.left[0]
		v.left = v.left[1:]
		n |= int(b&0x7F) << shift
		if b < 0x80 {
			break
		}
	}
	return n
}

// composing holds the code points that the reference's normal form composes,
// decomposes or reorders.
var composing = sync.OnceValue(func() map[rune]bool {
	set := make(map[rune]bool)
	point := rune(0)
	for r := (varints{composingRuns}); r.left != ""; {
		point += rune(r.next())
		for range r.next() {
			set[point] = true
			point++
		}
	}
	return set
})

// Composes tells whether the reference's normal form knows r as anything but a
// character that stands for itself.
func Composes(r rune) bool { return composing()[r] }

// Of returns the category of a code point.
func (t *Table) Of(r rune) Category {
	if uint32(r) < uint32(len(t)) {
		return t[r]
	}
	return Cn
}

// IsSpace tells whether \s matches r.
func IsSpace(r rune) bool {
	if r < 0x80 {
		return r == ' ' || '\t' <= r && r <= '\r'
	}
	return strings.ContainsRune(spaces, r)
}

// Reference names the engine that the table was asked of.
func Reference() string { return reference }
