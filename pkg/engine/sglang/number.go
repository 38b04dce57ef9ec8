package sglang

import (
	"math"
	"strconv"
)

// pow10 holds the powers of ten that a float64 represents exactly.
var pow10 = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// scanFloat reads a JSON number at b[i:] and returns the float32 nearest to it
// and the index after it. ok is false where no number stands.
//
// The fast way computes in float64, two operations with at most one unit of
// error in all, and rounds to float32. That is the nearest float32 unless the
// float64 lies within a few units of the middle between two of them; then, and
// for long numbers and extreme exponents, strconv decides.
func scanFloat(b []byte, i int) (v float32, next int, ok bool) {
	start := i
	negative := false
	if i < len(b) && b[i] == '-' {
		negative = true
		i++
	}
	var mant uint64
	digits, exp := 0, 0
	first := i
	for i < len(b) && b[i]-'0' < 10 {
		mant = mant*10 + uint64(b[i]-'0')
		i++
	}
	if i == first {
		return 0, start, false
	}
	digits = i - first
	if i < len(b) && b[i] == '.' {
		i++
		frac := i
		for i < len(b) && b[i]-'0' < 10 {
			mant = mant*10 + uint64(b[i]-'0')
			i++
		}
		if i == frac {
			return 0, start, false
		}
		digits += i - frac
		exp = frac - i
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		expNegative := false
		if i < len(b) && (b[i] == '-' || b[i] == '+') {
			expNegative = b[i] == '-'
			i++
		}
		first, e := i, 0
		for i < len(b) && b[i]-'0' < 10 {
			if e < 10000 {
				e = e*10 + int(b[i]-'0')
			}
			i++
		}
		if i == first {
			return 0, start, false
		}
		if expNegative {
			e = -e
		}
		exp += e
	}

	if digits <= 19 && exp >= -22 && exp <= 22 {
		f := float64(mant)
		if exp < 0 {
			f /= pow10[-exp]
		} else {
			f *= pow10[exp]
		}
		const below = 1<<29 - 1 // the bits of a float64 that a float32 has not
		fromMiddle := int64(math.Float64bits(f)&below) - 1<<28
		if mant == 0 || f >= 0x1p-126 && f < 0x1p127 && (fromMiddle > 4 || fromMiddle < -4) {
			if negative {
				f = -f
			}
			return float32(f), i, true
		}
	}
	f, err := strconv.ParseFloat(string(b[start:i]), 32)
	if err != nil && !math.IsInf(f, 0) {
		return 0, start, false
	}
	return float32(f), i, true
}

// scanInt reads a whole number at b[i:]. A number beyond 64 bits comes back as
// the largest or smallest, which no caller takes for valid.
func scanInt(b []byte, i int) (v int64, next int, ok bool) {
	start := i
	negative := false
	if i < len(b) && b[i] == '-' {
		negative = true
		i++
	}
	first := i
	for i < len(b) && b[i]-'0' < 10 {
		if v > (math.MaxInt64-9)/10 {
			v = math.MaxInt64
		} else {
			v = v*10 + int64(b[i]-'0')
		}
		i++
	}
	if i == first {
		return 0, start, false
	}
	if negative {
		v = -v
	}
	return v, i, true
}
