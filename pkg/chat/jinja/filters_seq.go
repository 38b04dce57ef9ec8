package jinja

import (
	"errors"
	"strconv"
	"strings"
	"unicode"
)

func errDivision() error { return errors.New("ZeroDivisionError: integer division or modulo by zero") }

func errInfinite() error {
	return errors.New("OverflowError: cannot convert float infinity to integer")
}

// attrPath is a dotted path as filters take it: its numbers are indexes.
func attrPath(attribute Value) []Value {
	s, ok := text(attribute)
	if !ok {
		if attribute == nil {
			return nil
		}
		return []Value{attribute}
	}
	var path []Value
	for part := range strings.SplitSeq(s, ".") {
		if part != "" && strings.IndexFunc(part, func(r rune) bool { return !unicode.IsDigit(r) }) < 0 {
			if n, err := strconv.ParseInt(part, 10, 64); err == nil {
				path = append(path, n)
				continue
			}
		}
		path = append(path, part)
	}
	return path
}

// attrGetter follows a path from an item.
func (rt *runtime) attrGetter(attribute Value) func(Value) (Value, error) {
	path := attrPath(attribute)
	return func(v Value) (Value, error) {
		for _, part := range path {
			var err error
			if v, err = rt.getItem(v, part); err != nil {
				return nil, err
			}
		}
		return v, nil
	}
}

// multiGetter makes the key for sorting by attributes parted by commas.
func (rt *runtime) multiGetter(attribute Value, caseSensitive bool) func(Value) (Value, error) {
	var getters []func(Value) (Value, error)
	if s, ok := text(attribute); ok {
		for part := range strings.SplitSeq(s, ",") {
			getters = append(getters, rt.attrGetter(part))
		}
	} else {
		getters = append(getters, rt.attrGetter(attribute))
	}
	return func(v Value) (Value, error) {
		key := make([]Value, len(getters))
		for i, get := range getters {
			k, err := get(v)
			if err != nil {
				return nil, err
			}
			if !caseSensitive {
				k = rt.foldCase(k)
			}
			key[i] = k
		}
		return &List{key}, nil
	}
}

func sortFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	key := rt.multiGetter(or(p[2], nil), truth(or(p[1], false)))
	out, err := rt.sortStable(list, key, truth(or(p[0], false)))
	return &List{out}, err
}

func uniqueFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	get := rt.attrGetter(or(p[1], nil))
	seen := NewDict(len(list))
	var out []Value
	for _, item := range list {
		k, err := get(item)
		if err != nil {
			return nil, err
		}
		if !truth(or(p[0], false)) {
			k = rt.foldCase(k)
		}
		_, found, err := seen.lookup(rt, k)
		if err != nil {
			return nil, err
		}
		if !found {
			seen.set(rt, k, true)
			out = append(out, item)
		}
	}
	return &generator{out}, nil
}

func extremeFilter(op string) filterFunc {
	return func(rt *runtime, in Value, a args) (Value, error) {
		p, err := a.bind(0, "case_sensitive", "attribute")
		if err != nil {
			return nil, err
		}
		list, err := rt.items(in)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return &undefined{why: "No aggregated item, sequence was empty."}, nil
		}
		get := rt.attrGetter(or(p[1], nil))
		var best, bestKey Value
		for i, item := range list {
			k, err := get(item)
			if err != nil {
				return nil, err
			}
			if !truth(or(p[0], false)) {
				k = rt.foldCase(k)
			}
			if i > 0 {
				if better, err := rt.ordered(op, k, bestKey); err != nil {
					return nil, err
				} else if !better {
					continue
				}
			}
			best, bestKey = item, k
		}
		return best, nil
	}
}

func sumFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "attribute", "start")
	if err != nil {
		return nil, err
	}
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	total := or(p[1], int64(0))
	if _, ok := text(total); ok {
		return nil, typeError("sum() can't sum strings [use ''.join(seq) instead]")
	}
	get := rt.attrGetter(or(p[0], nil))
	for _, item := range list {
		if item, err = get(item); err != nil {
			return nil, err
		}
		if total, err = binary(rt, "+", total, item); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func groupByFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(1, "attribute", "default", "case_sensitive")
	if err != nil {
		return nil, err
	}
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	path := rt.attrGetter(p[0])
	caseSensitive := truth(or(p[2], false))
	get := func(v Value) (Value, error) {
		k, err := path(v)
		if fallback := or(p[1], nil); err == nil && isUndefined(k) && fallback != nil {
			k = fallback
		}
		return k, err
	}
	key := func(v Value) (Value, error) {
		k, err := get(v)
		if err == nil && !caseSensitive {
			k = rt.foldCase(k)
		}
		return k, err
	}
	sorted, err := rt.sortStable(list, key, false)
	if err != nil {
		return nil, err
	}
	var out []Value
	var last Value
	for i, item := range sorted {
		k, err := key(item)
		if err != nil {
			return nil, err
		}
		if i == 0 || !rt.equal(k, last) {
			shown, err := get(item) // the first of a group gives its name
			if err != nil {
				return nil, err
			}
			out = append(out, &Tuple{[]Value{shown, &List{}}})
			last = k
		}
		group := out[len(out)-1].(*Tuple).Items[1].(*List)
		group.Items = append(group.Items, item)
	}
	return &List{out}, nil
}

func mapFilter(rt *runtime, in Value, a args) (Value, error) {
	if !truth(in) { // then nothing is looked at
		return &generator{}, nil
	}
	list, err := rt.items(in)
	if err != nil || len(list) == 0 {
		return &generator{}, err
	}
	apply, err := mapFunc(rt, a)
	if err != nil {
		return nil, err
	}
	out := make([]Value, len(list))
	for i, item := range list {
		if err := rt.step(); err != nil {
			return nil, err
		}
		if out[i], err = apply(item); err != nil {
			return nil, err
		}
	}
	return &generator{out}, nil
}

func mapFunc(rt *runtime, a args) (func(Value) (Value, error), error) {
	if len(a.pos) == 0 {
		attribute, fallback := Value(missing{}), Value(nil)
		for _, n := range a.named {
			switch n.name {
			case "attribute":
				attribute = n.value
			case "default":
				fallback = n.value
			default:
				return nil, errors.New("FilterArgumentError: unexpected keyword argument '" + n.name + "'")
			}
		}
		if attribute == Value(missing{}) {
			return nil, errors.New("FilterArgumentError: map requires a filter argument")
		}
		path := attrPath(attribute)
		return func(v Value) (Value, error) {
			for _, part := range path {
				var err error
				if v, err = rt.getItem(v, part); err != nil {
					return nil, err
				}
				if isUndefined(v) && fallback != nil {
					v = fallback
				}
			}
			return v, nil
		}, nil
	}
	name, err := rt.str(a.pos[0])
	if err != nil {
		return nil, err
	}
	fn := filterNamed(name)
	if fn == nil {
		return nil, errors.New("no filter named '" + name + "'")
	}
	rest := args{a.pos[1:], a.named}
	return func(v Value) (Value, error) { return runFilter(rt, fn, v, rest) }, nil
}

// selectFilter keeps the items that pass a test, or those that do not.
func selectFilter(byAttr, keep bool) filterFunc {
	return func(rt *runtime, in Value, a args) (Value, error) {
		if !truth(in) { // then nothing is looked at
			return &generator{}, nil
		}
		list, err := rt.items(in)
		if err != nil || len(list) == 0 {
			return &generator{}, err
		}
		get := rt.attrGetter(nil)
		pos := a.pos
		if byAttr {
			if len(pos) == 0 {
				return nil, errors.New("FilterArgumentError: missing parameter for attribute name")
			}
			get = rt.attrGetter(pos[0])
			pos = pos[1:]
		}
		pass := func(v Value) (bool, error) { return truth(v), nil }
		if len(pos) > 0 {
			name, err := rt.str(pos[0])
			if err != nil {
				return nil, err
			}
			fn := testNamed(name)
			if fn == nil {
				return nil, errors.New("no test named '" + name + "'")
			}
			rest := args{pos[1:], a.named}
			pass = func(v Value) (bool, error) { return fn(rt, v, rest) }
		}
		var out []Value
		for _, item := range list {
			if err := rt.step(); err != nil {
				return nil, err
			}
			v, err := get(item)
			if err != nil {
				return nil, err
			}
			ok, err := pass(v)
			if err != nil {
				return nil, err
			}
			if ok == keep {
				out = append(out, item)
			}
		}
		return &generator{out}, nil
	}
}
