package jinja

import (
	"cmp"
	"math/big"
	"strings"
)

// equal is Python's ==.
func (rt *runtime) equal(a, b Value) bool {
	if !rt.spend(1) {
		return false
	}
	if x, ok := text(a); ok {
		y, ok := text(b)
		if !ok || len(x) != len(y) {
			return false
		}
		return rt.spend(len(x)/64) && x == y
	}
	if isNumber(a) {
		rt.spend(words(a) + words(b))
		return isNumber(b) && compareNumbers(a, b) == 0
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case *List:
		y, ok := b.(*List)
		return ok && rt.equalItems(x.Items, y.Items)
	case *Tuple:
		y, ok := b.(*Tuple)
		return ok && rt.equalItems(x.Items, y.Items)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false
		}
		defer rt.ascend()
		if !rt.descend() {
			return false
		}
		for _, e := range x.entries {
			v, found, err := y.lookup(rt, e.key)
			if err != nil || !found || !rt.equal(e.value, v) {
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

func (rt *runtime) equalItems(a, b []Value) bool {
	if len(a) != len(b) {
		return false
	}
	defer rt.ascend()
	if !rt.descend() {
		return false
	}
	for i := range a {
		if !rt.equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// words is the size of an integer that is large.
func words(v Value) int {
	if b, ok := v.(*big.Int); ok {
		return b.BitLen() / 64
	}
	return 0
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
func (rt *runtime) ordered(op string, a, b Value) (bool, error) {
	c, err := rt.compare(a, b, op)
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
func (rt *runtime) compare(a, b Value, op string) (int, error) {
	rt.spend(1)
	if err := rt.spent(nil); err != nil {
		return 0, err
	}
	for _, v := range [...]Value{a, b} {
		if u, ok := v.(*undefined); ok {
			return 0, u.err()
		}
	}
	if isNumber(a) && isNumber(b) {
		rt.spend(words(a) + words(b))
		return compareNumbers(a, b), nil
	}
	if x, ok := text(a); ok {
		if y, ok := text(b); ok {
			rt.spend(min(len(x), len(y)) / 64)
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
	defer rt.ascend()
	rt.descend()
	for i := range min(len(x), len(y)) {
		if !rt.equal(x[i], y[i]) {
			return rt.compare(x[i], y[i], op)
		}
	}
	return cmp.Compare(len(x), len(y)), nil
}

func notOrdered(a, b Value, op string) error {
	return typeError("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
}

// contains is Python's in.
func (rt *runtime) contains(container, v Value) (bool, error) {
	switch c := container.(type) {
	case string, markup:
		part, ok := text(v)
		if !ok {
			return false, typeError("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		whole, _ := text(c)
		rt.spend((len(whole) + len(part)) / 32)
		return strings.Contains(whole, part), nil
	case *Dict:
		_, found, err := c.lookup(rt, v)
		return found, err
	case *dictView:
		if c.kind == "keys" {
			_, found, err := c.dict.lookup(rt, v)
			return found, err
		}
	}
	list, err := rt.items(container)
	if err != nil {
		return false, typeError("argument of type '%s' is not iterable", typeName(container))
	}
	for _, item := range list {
		if rt.equal(item, v) {
			return true, nil
		}
	}
	return false, nil
}
