package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

// maxBits bounds integers, so that a power cannot take all memory.
const maxBits = 1 << 16

// bigOf returns the integer a value is.
func bigOf(v Value) (*big.Int, bool) {
	if b, ok := v.(*big.Int); ok {
		return b, true
	}
	n, ok := asInt(v)
	return big.NewInt(n), ok
}

// floatOf returns the number a value is, as a float.
func floatOf(v Value) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	n, ok := asInt(v)
	return float64(n), ok
}

func isNumber(v Value) bool {
	_, ok := floatOf(v)
	return ok
}

// arith applies an operator to two numbers.
func (rt *runtime) arith(op string, l, r Value) (Value, error) {
	if words(l)+words(r) > 0 {
		rt.charge(l)
		rt.charge(r)
		if err := rt.spent(nil); err != nil {
			return nil, err
		}
	}
	_, lf := l.(float64)
	_, rf := r.(float64)
	if lf || rf || op == "/" {
		return floatArith(op, l, r)
	}
	if a, ok := l.(int64); ok {
		if b, ok := r.(int64); ok {
			switch c := a + b; {
			case op == "+" && (c > a) == (b > 0):
				return c, nil
			case op == "-" && (a-b < a) == (b > 0):
				return a - b, nil
			}
		}
	}
	a, _ := bigOf(l)
	b, _ := bigOf(r)
	out := new(big.Int)
	switch op {
	case "+":
		out.Add(a, b)
	case "-":
		out.Sub(a, b)
	case "*":
		out.Mul(a, b)
	case "//", "%":
		if b.Sign() == 0 {
			return nil, fmt.Errorf("ZeroDivisionError: integer division or modulo by zero")
		}
		quotient, rest := new(big.Int).QuoRem(a, b, new(big.Int))
		if rest.Sign() != 0 && rest.Sign() != b.Sign() { // Python rounds down
			quotient.Sub(quotient, big.NewInt(1))
			rest.Add(rest, b)
		}
		if out = quotient; op == "%" {
			out = rest
		}
	case "**":
		if b.Sign() < 0 {
			return floatArith(op, l, r)
		}
		if a.BitLen() > 1 && (!b.IsInt64() || b.Int64() > maxBits || int64(a.BitLen())*b.Int64() > maxBits) {
			return nil, fmt.Errorf("%w: the power is too large", ErrLimit)
		}
		out.Exp(a, b, nil)
	}
	if out.BitLen() > maxBits {
		return nil, fmt.Errorf("%w: the integer is too large", ErrLimit)
	}
	return normInt(out), nil
}

func floatArith(op string, l, r Value) (Value, error) {
	a, _ := floatOf(l)
	b, _ := floatOf(r)
	for _, v := range []Value{l, r} {
		if f, _ := floatOf(v); math.IsInf(f, 0) {
			if _, isInt := v.(*big.Int); isInt {
				return nil, fmt.Errorf("OverflowError: int too large to convert to float")
			}
		}
	}
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "/", "//", "%":
		if b == 0 {
			return nil, fmt.Errorf("ZeroDivisionError: division by zero")
		}
		if op == "/" {
			return divide(l, r, a, b), nil
		}
		rest := math.Mod(a, b)
		quotient := (a - rest) / b
		if rest != 0 && (rest < 0) != (b < 0) {
			rest += b
			quotient--
		} else if rest == 0 {
			rest = math.Copysign(0, b)
		}
		if op == "%" {
			return rest, nil
		}
		if quotient == 0 {
			return math.Copysign(0, a/b), nil
		}
		floor := math.Floor(quotient)
		if quotient-floor > 0.5 {
			floor++
		}
		return floor, nil
	}
	if a == 0 && b < 0 {
		return nil, fmt.Errorf("ZeroDivisionError: 0.0 cannot be raised to a negative power")
	}
	if a < 0 && b != math.Trunc(b) && !math.IsInf(b, 0) {
		return nil, typeError("complex numbers are not supported")
	}
	out := math.Pow(a, b)
	if math.IsInf(out, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
		return nil, fmt.Errorf("OverflowError: (34, 'Numerical result out of range')")
	}
	return out, nil
}

// divide is true division, which for integers rounds once.
func divide(l, r Value, a, b float64) float64 {
	x, ok1 := bigOf(l)
	y, ok2 := bigOf(r)
	if ok1 && ok2 {
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		return f
	}
	return a / b
}

// floatText prints a float as Python does.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	short := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(short, "e")
	exp, _ := strconv.Atoi(exponent)
	if exp < -4 || exp >= 16 {
		return fmt.Sprintf("%se%+03d", mantissa, exp)
	}
	fixed := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(fixed, ".") {
		fixed += ".0"
	}
	return fixed
}

// parseInt reads an integer as Python's int() does; base 0 takes the prefix.
func parseInt(s string, base int) (Value, bool) {
	s = asciiDigits(strings.TrimFunc(s, isSpace))
	sign := ""
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		sign, s = s[:1], s[1:]
	}
	prefixes := map[int]string{16: "0x", 8: "0o", 2: "0b"}
	if p := prefixes[base]; p != "" && len(s) > 2 && strings.EqualFold(s[:2], p) {
		s = strings.TrimPrefix(s[2:], "_")
	}
	if s == "" || s[0] == '_' || s[len(s)-1] == '_' || strings.Contains(s, "__") || strings.ContainsAny(s, "+-") ||
		len(s) > 4300 {
		return nil, false
	}
	b, ok := new(big.Int).SetString(sign+strings.ReplaceAll(s, "_", ""), base)
	if !ok {
		return nil, false
	}
	return normInt(b), true
}

// asciiDigits writes the decimal digits of all scripts as ASCII ones.
func asciiDigits(s string) string {
	table := unidata.Load()
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf || table.Of(r) != unidata.Nd {
			return r
		}
		first := r // digits come in runs of ten
		for table.Of(first-1) == unidata.Nd {
			first--
		}
		return '0' + (r-first)%10
	}, s)
}

// parseFloat reads a float as Python's float() does.
func parseFloat(s string) (float64, bool) {
	s = asciiDigits(strings.TrimFunc(s, isSpace))
	if strings.ContainsAny(s, "xXpP") || strings.Contains(s, "__") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}
