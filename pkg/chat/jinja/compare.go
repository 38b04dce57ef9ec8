package jinja

import (
	"cmp"
	"math/big"
	"strings"
)

// equal is Python's ==.
func equal(a, b Value) bool {
	if x, ok := text(a); ok {
		y, ok := text(b)
		return ok && x == y
	}
	if isNumber(a) {
		return isNumber(b) && compareNumbers(a, b) == 0
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case *List:
		y, ok := b.(*List)
		return ok && equalItems(x.Items, y.Items)
	case *Tuple:
		y, ok := b.(*Tuple)
		return ok && equalItems(x.Items, y.Items)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false
		}
		for _, e := range x.entries {
			v, found, err := y.lookup(e.key)
			if err != nil || !found || !equal(e.value, v) {
				return false
			}
		}
		return true
	case *undefined:
		return isUndefined(b)
	case *rangeValue:
		y, ok := b.(*rangeValue)
		return ok && (*x == *y || x.len() == 0 && y.len() == 0)
	case *dictView:
		y, ok := b.(*dictView)
		return ok && x.kind == y.kind && x.kind != "values" && x.dict == y.dict
	case missing:
		return false
	}
	return a == b
}

func equalItems(a, b []Value) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// compareNumbers is exact also between integers and floats; NaN is unlike all.
func compareNumbers(a, b Value) int {
	x, xIsFloat := a.(float64)
	y, yIsFloat := b.(float64)
	if !xIsFloat && !yIsFloat {
		p, _ := bigOf(a)
		q, _ := bigOf(b)
		return p.Cmp(q)
	}
	if xIsFloat != yIsFloat {
		if n, ok := b.(*big.Int); ok && x-x == 0 {
			return new(big.Float).SetFloat64(x).Cmp(new(big.Float).SetInt(n))
		}
		if n, ok := a.(*big.Int); ok && y-y == 0 {
			return new(big.Float).SetInt(n).Cmp(new(big.Float).SetFloat64(y))
		}
	}
	x, _ = floatOf(a)
	y, _ = floatOf(b)
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	case x == y:
		return 0
	}
	return unordered
}

// unordered is the result of comparing with NaN.
const unordered = 2

// ordered applies <, <=, > and >=.
func ordered(op string, a, b Value) (bool, error) {
	c, err := compare(a, b, op)
	if err != nil || c == unordered {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

// compare orders two values or says that they have no order.
func compare(a, b Value, op string) (int, error) {
	for _, v := range [...]Value{a, b} {
		if u, ok := v.(*undefined); ok {
			return 0, u.err()
		}
	}
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b), nil
	}
	if x, ok := text(a); ok {
		if y, ok := text(b); ok {
			return strings.Compare(x, y), nil
		}
	}
	var x, y []Value
	switch l := a.(type) {
	case *List:
		if r, ok := b.(*List); ok {
			x, y = l.Items, r.Items
		} else {
			return 0, notOrdered(a, b, op)
		}
	case *Tuple:
		if r, ok := b.(*Tuple); ok {
			x, y = l.Items, r.Items
		} else {
			return 0, notOrdered(a, b, op)
		}
	default:
		return 0, notOrdered(a, b, op)
	}
	for i := range min(len(x), len(y)) {
		if !equal(x[i], y[i]) {
			return compare(x[i], y[i], op)
		}
	}
	return cmp.Compare(len(x), len(y)), nil
}

func notOrdered(a, b Value, op string) error {
	return typeError("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
}

// contains is Python's in.
func contains(container, v Value) (bool, error) {
	switch c := container.(type) {
	case string, markup:
		part, ok := text(v)
		if !ok {
			return false, typeError("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		whole, _ := text(c)
		return strings.Contains(whole, part), nil
	case *Dict:
		_, found, err := c.lookup(v)
		return found, err
	case *dictView:
		if c.kind == "keys" {
			_, found, err := c.dict.lookup(v)
			return found, err
		}
	}
	list, err := items(container)
	if err != nil {
		return false, typeError("argument of type '%s' is not iterable", typeName(container))
	}
	for _, item := range list {
		if equal(item, v) {
			return true, nil
		}
	}
	return false, nil
}
