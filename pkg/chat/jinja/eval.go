package jinja

import (
	"fmt"
	"slices"
	"strings"
)

func (x *constExpr) eval(*frame) (Value, error) { return x.value, nil }

func (x *nameExpr) eval(f *frame) (Value, error) {
	v := *f.at(x.ref)
	if _, ok := v.(missing); ok {
		return &undefined{"'", x.name, "' is undefined"}, nil
	}
	return v, nil
}

func evalAll(f *frame, list []expr) ([]Value, error) {
	out := make([]Value, len(list))
	for i, x := range list {
		var err error
		if out[i], err = x.eval(f); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (x *listExpr) eval(f *frame) (Value, error) {
	list, err := evalAll(f, x.items)
	return &List{list}, err
}

func (x *tupleExpr) eval(f *frame) (Value, error) {
	list, err := evalAll(f, x.items)
	return &Tuple{list}, err
}

func (x *dictExpr) eval(f *frame) (Value, error) {
	d := NewDict(len(x.keys))
	for i := range x.keys {
		k, err := x.keys[i].eval(f)
		if err != nil {
			return nil, err
		}
		if !f.rt.hashable(k) {
			return nil, typeError("unhashable type: '%s'", typeName(k))
		}
		v, err := x.values[i].eval(f)
		if err != nil {
			return nil, err
		}
		d.set(f.rt, k, v)
	}
	return d, f.rt.spent(nil)
}

func (x *attrExpr) eval(f *frame) (Value, error) {
	obj, err := x.obj.eval(f)
	if err != nil {
		return nil, err
	}
	return getAttr(obj, x.name)
}

func (x *indexExpr) eval(f *frame) (Value, error) {
	obj, err := x.obj.eval(f)
	if err != nil {
		return nil, err
	}
	index, err := x.index.eval(f)
	if err != nil {
		return nil, err
	}
	v, err := f.rt.getItem(obj, index)
	return v, f.rt.spent(err)
}

func (x *sliceExpr) eval(f *frame) (Value, error) {
	obj, err := x.obj.eval(f)
	if err != nil {
		return nil, err
	}
	var bounds [3]Value
	for i, b := range []expr{x.start, x.stop, x.step} {
		if b != nil {
			if bounds[i], err = b.eval(f); err != nil {
				return nil, err
			}
		}
	}
	return f.rt.getSlice(obj, bounds)
}

func (x *unaryExpr) eval(f *frame) (Value, error) {
	v, err := x.x.eval(f)
	if err != nil {
		return nil, err
	}
	if x.op == '!' {
		return !truth(v), nil
	}
	if u, ok := v.(*undefined); ok {
		return nil, u.err()
	}
	if !isNumber(v) {
		return nil, typeError("bad operand type for unary %c: '%s'", x.op, typeName(v))
	}
	if n, ok := v.(float64); ok {
		if x.op == '-' {
			return -n, nil
		}
		return n, nil
	}
	if x.op == '-' {
		return f.rt.arith("-", int64(0), v)
	}
	return f.rt.arith("+", int64(0), v)
}

func (x *logicExpr) eval(f *frame) (Value, error) {
	v, err := x.l.eval(f)
	if err != nil || truth(v) != x.and {
		return v, err
	}
	return x.r.eval(f)
}

func (x *condExpr) eval(f *frame) (Value, error) {
	v, err := x.test.eval(f)
	if err != nil {
		return nil, err
	}
	if truth(v) {
		return x.then.eval(f)
	}
	if x.otherwise == nil {
		return &undefined{why: "the inline if-expression evaluated to false and no else section was defined"}, nil
	}
	return x.otherwise.eval(f)
}

func (x *concatExpr) eval(f *frame) (Value, error) {
	var b strings.Builder
	for _, part := range x.parts {
		v, err := part.eval(f)
		if err != nil {
			return nil, err
		}
		t, err := f.rt.str(v)
		if err != nil {
			return nil, err
		}
		if err := f.rt.room(b.Len() + len(t)); err != nil {
			return nil, err
		}
		f.rt.spend(len(t) / 64)
		b.WriteString(t)
	}
	return b.String(), f.rt.spent(nil)
}

func (x *compareExpr) eval(f *frame) (Value, error) {
	l, err := x.first.eval(f)
	if err != nil {
		return nil, err
	}
	var result Value
	for i, op := range x.ops {
		r, err := x.rest[i].eval(f)
		if err != nil {
			return nil, err
		}
		ok, err := f.rt.compareOp(op, l, r)
		if err = f.rt.spent(err); err != nil {
			return nil, err
		}
		if result = ok; !ok {
			break
		}
		l = r
	}
	return result, nil
}

func (rt *runtime) compareOp(op string, l, r Value) (bool, error) {
	switch op {
	case "==":
		return rt.equal(l, r), nil
	case "!=":
		return !rt.equal(l, r), nil
	case "in":
		return rt.contains(r, l)
	case "not in":
		ok, err := rt.contains(r, l)
		return !ok, err
	}
	return rt.ordered(op, l, r)
}

func (x *binaryExpr) eval(f *frame) (Value, error) {
	l, err := x.l.eval(f)
	if err != nil {
		return nil, err
	}
	r, err := x.r.eval(f)
	if err != nil {
		return nil, err
	}
	return binary(f.rt, x.op, l, r)
}

func (x *sumExpr) eval(f *frame) (Value, error) {
	rt := f.rt
	base, size := len(rt.scratch), 0
	defer func() { rt.scratch = rt.scratch[:base] }()
	v, joined, err := x.parts(f)
	if err != nil || joined {
		return v, err
	}
	for _, v := range rt.scratch[base:] {
		size += len(v.(string))
	}
	if err := rt.room(size); err != nil {
		return nil, err
	}
	if rt.spend(size / 64); rt.steps < 0 {
		return nil, rt.spent(nil)
	}
	var b strings.Builder
	b.Grow(size)
	for _, v := range rt.scratch[base:] {
		b.WriteString(v.(string))
	}
	return b.String(), nil
}

// parts evaluates the terms. If all are strings they are left on the scratch
// stack, and the caller takes them from there; else their sum is returned, joined.
func (x *sumExpr) parts(f *frame) (sum Value, joined bool, err error) {
	rt := f.rt
	base := len(rt.scratch)
	for i, term := range x.terms {
		v, err := term.eval(f)
		if err != nil {
			return nil, true, err
		}
		if _, ok := v.(string); !ok {
			sum, err := x.fold(f, rt.scratch[base:], v, i)
			return sum, true, err
		}
		rt.scratch = append(rt.scratch, v)
	}
	return nil, false, nil
}

// fold adds one by one, from the first term that is no string.
func (x *sumExpr) fold(f *frame, before []Value, v Value, at int) (Value, error) {
	var sum Value
	for i, part := range append(slices.Clone(before), v) {
		if i == 0 {
			sum = part
			continue
		}
		var err error
		if sum, err = binary(f.rt, "+", sum, part); err != nil {
			return nil, err
		}
	}
	for _, part := range x.terms[at+1:] {
		v, err := part.eval(f)
		if err != nil {
			return nil, err
		}
		if sum, err = binary(f.rt, "+", sum, v); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

func binary(rt *runtime, op string, l, r Value) (Value, error) {
	for _, v := range [...]Value{l, r} {
		if u, ok := v.(*undefined); ok && !(op == "%" && isString(l)) {
			return nil, u.err()
		}
	}
	if isNumber(l) && isNumber(r) {
		return rt.arith(op, l, r)
	}
	switch op {
	case "+":
		return add(rt, l, r)
	case "*":
		if n, ok := asInt(r); ok {
			return repeat(rt, l, n)
		}
		if n, ok := asInt(l); ok {
			return repeat(rt, r, n)
		}
	case "%":
		if isString(l) {
			return format(rt, l, r)
		}
	}
	return nil, typeError("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(l), typeName(r))
}

func isString(v Value) bool {
	_, ok := text(v)
	return ok
}

func add(rt *runtime, l, r Value) (Value, error) {
	for _, v := range [...]Value{l, r} {
		if s, ok := text(v); ok {
			rt.spend(len(s) / 64)
		} else {
			rt.charge(v)
		}
	}
	if err := rt.spent(nil); err != nil {
		return nil, err
	}
	switch a := l.(type) {
	case string:
		switch b := r.(type) {
		case string:
			return a + b, rt.room(len(a) + len(b))
		case markup:
			return markup(escapeHTML(a)) + b, rt.room(5*len(a) + len(b))
		}
	case markup:
		if b, ok := r.(markup); ok {
			return a + b, rt.room(len(a) + len(b))
		}
		if b, ok := r.(string); ok {
			return a + markup(escapeHTML(b)), rt.room(len(a) + 5*len(b))
		}
	case *List:
		if b, ok := r.(*List); ok {
			return &List{append(append(make([]Value, 0, len(a.Items)+len(b.Items)), a.Items...), b.Items...)},
				rt.room(16 * (len(a.Items) + len(b.Items)))
		}
	case *Tuple:
		if b, ok := r.(*Tuple); ok {
			return &Tuple{append(append(make([]Value, 0, len(a.Items)+len(b.Items)), a.Items...), b.Items...)},
				rt.room(16 * (len(a.Items) + len(b.Items)))
		}
	}
	return nil, typeError("unsupported operand type(s) for +: '%s' and '%s'", typeName(l), typeName(r))
}

func repeat(rt *runtime, v Value, n int64) (Value, error) {
	n = max(n, 0)
	size := 0
	switch v := v.(type) {
	case string:
		size = len(v)
	case markup:
		size = len(v)
	case *List:
		size = 16 * len(v.Items)
	case *Tuple:
		size = 16 * len(v.Items)
	default:
		return nil, typeError("can't multiply sequence by non-int of type '%s'", typeName(v))
	}
	if size == 0 {
		n = 0
	}
	if err := rt.roomTimes(size, n); err != nil {
		return nil, err
	}
	many := func(list []Value) []Value {
		out := make([]Value, 0, len(list)*int(n))
		for range n {
			out = append(out, list...)
		}
		return out
	}
	switch v := v.(type) {
	case markup:
		return markup(strings.Repeat(string(v), int(n))), nil
	case *List:
		return &List{many(v.Items)}, nil
	case *Tuple:
		return &Tuple{many(v.Items)}, nil
	}
	s, _ := text(v)
	return strings.Repeat(s, int(n)), nil
}

func (x *filterExpr) eval(f *frame) (Value, error) {
	in, err := x.x.eval(f)
	if err != nil {
		return nil, err
	}
	return x.apply(f, in)
}

func (x *filterExpr) apply(f *frame, in Value) (Value, error) {
	if err := f.rt.step(); err != nil {
		return nil, err
	}
	a, err := x.args.eval(f)
	if err != nil {
		return nil, err
	}
	if x.fn == nil {
		return nil, fmt.Errorf("no filter named '%s'", x.name)
	}
	return runFilter(f.rt, x.fn, in, a)
}

// runFilter charges what a filter is given, for it may go over all of that.
func runFilter(rt *runtime, fn filterFunc, in Value, a args) (Value, error) {
	rt.charge(in)
	rt.chargeArgs(a)
	if err := rt.spent(nil); err != nil {
		return nil, err
	}
	v, err := fn(rt, in, a)
	return v, rt.spent(err)
}

func (x *testExpr) eval(f *frame) (Value, error) {
	in, err := x.x.eval(f)
	if err != nil {
		return nil, err
	}
	a, err := x.args.eval(f)
	if err != nil {
		return nil, err
	}
	if x.fn == nil {
		return nil, fmt.Errorf("no test named '%s'", x.name)
	}
	ok, err := x.fn(f.rt, in, a)
	return ok, f.rt.spent(err)
}
