package jinja

import (
	"math"
	"math/big"
)

func absFilter(rt *runtime, in Value, a args) (Value, error) {
	if u, ok := in.(*undefined); ok {
		return nil, u.err()
	}
	switch n := in.(type) {
	case float64:
		return math.Abs(n), nil
	default:
		b, ok := bigOf(n)
		if !ok {
			return nil, typeError("bad operand type for abs(): '%s'", typeName(in))
		}
		return normInt(new(big.Int).Abs(b)), nil
	}
}

func intFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "default", "base")
	if err != nil {
		return nil, err
	}
	fallback := or(p[0], int64(0))
	base, ok := asInt(or(p[1], int64(10)))
	if !ok || base != 0 && (base < 2 || base > 36) {
		return fallback, nil
	}
	toInt := func(f float64) (Value, bool) {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, false
		}
		b, _ := big.NewFloat(math.Trunc(f)).Int(nil)
		return normInt(b), true
	}
	switch v := in.(type) {
	case *undefined:
		return nil, v.err()
	case float64:
		if math.IsInf(v, 0) {
			return nil, errInfinite()
		}
		if n, ok := toInt(v); ok {
			return n, nil
		}
		return fallback, nil
	case string, markup:
		s, _ := text(v)
		if n, ok := parseInt(s, int(base)); ok {
			return n, nil
		}
		if f, ok := parseFloat(s); ok {
			if n, ok := toInt(f); ok {
				return n, nil
			}
		}
		return fallback, nil
	}
	if b, ok := bigOf(in); ok {
		return normInt(b), nil
	}
	return fallback, nil
}

func floatFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "default")
	if err != nil {
		return nil, err
	}
	fallback := or(p[0], 0.0)
	if u, ok := in.(*undefined); ok {
		return nil, u.err()
	}
	if s, ok := text(in); ok {
		if f, ok := parseFloat(s); ok {
			return f, nil
		}
		return fallback, nil
	}
	if f, ok := floatOf(in); ok {
		return f, nil
	}
	return fallback, nil
}

// roundHalfEven rounds to a number of digits as Python's round does.
func roundHalfEven(f float64, digits int64) float64 {
	if digits > 300 || math.IsInf(f, 0) || math.IsNaN(f) {
		return f
	}
	if digits < -310 {
		return math.Copysign(0, f)
	}
	exact := new(big.Rat).SetFloat64(f)
	scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(abs64(digits)), nil))
	if digits < 0 {
		scale.Inv(scale)
	}
	scaled := new(big.Rat).Mul(exact, scale)
	quotient, rest := new(big.Int).QuoRem(scaled.Num(), scaled.Denom(), new(big.Int))
	rest.Abs(rest).Lsh(rest, 1)
	if c := rest.Cmp(scaled.Denom()); c > 0 || c == 0 && quotient.Bit(0) == 1 {
		quotient.Add(quotient, big.NewInt(int64(scaled.Sign())))
	}
	out, _ := new(big.Rat).Quo(new(big.Rat).SetInt(quotient), scale).Float64()
	if out == 0 {
		return math.Copysign(0, f)
	}
	return out
}

func abs64(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

func roundFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "precision", "method")
	if err != nil {
		return nil, err
	}
	digits, ok := asInt(or(p[0], int64(0)))
	if !ok {
		return nil, typeError("'%s' object cannot be interpreted as an integer", typeName(p[0]))
	}
	how, _ := text(or(p[1], "common"))
	if u, ok := in.(*undefined); ok {
		return nil, u.err()
	}
	if !isNumber(in) {
		return nil, typeError("type %s doesn't define __round__ method", typeName(in))
	}
	f, isFloat := in.(float64)
	switch how {
	case "common":
		if isFloat {
			return roundHalfEven(f, digits), nil
		}
		return roundInt(in, digits)
	case "ceil", "floor":
		power, err := rt.arith("**", int64(10), digits)
		if err != nil {
			return nil, err
		}
		scaled, err := rt.arith("*", in, power)
		if err != nil {
			return nil, err
		}
		n, isFloat := scaled.(float64)
		if isFloat {
			if math.IsInf(n, 0) || math.IsNaN(n) {
				return nil, errInfinite()
			}
			if how == "ceil" {
				n = math.Ceil(n)
			} else {
				n = math.Floor(n)
			}
			b, _ := big.NewFloat(n).Int(nil)
			scaled = normInt(b)
		}
		return rt.arith("/", scaled, power)
	}
	return nil, valueError("method must be common, ceil or floor")
}

// roundInt rounds an integer to tens, hundreds and so on.
func roundInt(in Value, digits int64) (Value, error) {
	b, _ := bigOf(in)
	if digits >= 0 {
		return normInt(b), nil
	}
	if digits < -5000 {
		return int64(0), nil
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(-digits), nil)
	quotient, rest := new(big.Int).DivMod(b, unit, new(big.Int))
	rest.Lsh(rest, 1)
	if c := rest.Cmp(unit); c > 0 || c == 0 && quotient.Bit(0) == 1 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return normInt(quotient.Mul(quotient, unit)), nil
}
