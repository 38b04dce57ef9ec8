package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// getAttr is x.name: a Python attribute of x if there is one, else its item.
func getAttr(obj Value, name string) (Value, error) {
	if u, ok := obj.(*undefined); ok {
		return nil, u.err()
	}
	if v, ok := attribute(obj, name); ok {
		return v, nil
	}
	if d, ok := obj.(*Dict); ok {
		if v, ok := d.Get(name); ok {
			return v, nil
		}
	}
	return noAttribute(obj, name), nil
}

func noAttribute(obj Value, name string) Value {
	switch obj.(type) {
	case nil:
		return &undefined{"'None' has no attribute '", name, "'"}
	case *Dict:
		return &undefined{"'dict object' has no attribute '", name, "'"}
	}
	return &undefined{"'" + typeName(obj) + " object' has no attribute '", name, "'"}
}

// getItem is x[index]: an item of x if there is one, else the attribute of that name.
func (rt *runtime) getItem(obj, index Value) (Value, error) {
	rt.spend(1)
	if u, ok := obj.(*undefined); ok {
		return nil, u.err()
	}
	switch o := obj.(type) {
	case *Dict:
		if v, ok, err := o.lookup(rt, index); ok && err == nil {
			return v, nil
		}
	case *List:
		if v, ok := itemAt(o.Items, index); ok {
			return v, nil
		}
	case *Tuple:
		if v, ok := itemAt(o.Items, index); ok {
			return v, nil
		}
	case *rangeValue:
		if i, ok := asInt(index); ok {
			n := o.len()
			if i < 0 {
				i += n
			}
			if 0 <= i && i < n {
				return o.start + i*o.step, nil
			}
		}
	case string, markup:
		s, _ := text(o)
		if i, ok := asInt(index); ok {
			if c, ok := rt.charAt(s, i); ok {
				if _, ok := o.(markup); ok {
					return markup(c), nil
				}
				return c, nil
			}
		}
	}
	if name, ok := text(index); ok {
		if v, ok := attribute(obj, name); ok {
			return v, nil
		}
		return noAttribute(obj, name), nil
	}
	return &undefined{"", typeName(obj), " object has no such element"}, nil
}

func itemAt(list []Value, index Value) (Value, bool) {
	i, ok := asInt(index)
	if !ok {
		return nil, false
	}
	if i < 0 {
		i += int64(len(list))
	}
	if i < 0 || i >= int64(len(list)) {
		return nil, false
	}
	return list[i], true
}

func (rt *runtime) charAt(s string, i int64) (string, bool) {
	if i < 0 {
		rt.spend(len(s) / 8)
		i += int64(utf8.RuneCountInString(s))
	}
	if !rt.spend(int(max(0, min(i, int64(len(s))))) / 8) {
		return "", false
	}
	for _, r := range s {
		if i == 0 {
			return string(r), true
		}
		i--
	}
	return "", false
}

// getSlice is x[start:stop:step]. Unlike an index, a slice that does not fit is an
// error and not undefined.
func (rt *runtime) getSlice(obj Value, bounds [3]Value) (Value, error) {
	rt.charge(obj)
	if err := rt.spent(nil); err != nil {
		return nil, err
	}
	switch o := obj.(type) {
	case *undefined:
		return nil, o.err()
	case *List:
		list, err := slice(o.Items, bounds)
		return &List{list}, err
	case *Tuple:
		list, err := slice(o.Items, bounds)
		return &Tuple{list}, err
	case string:
		runes, err := slice([]rune(o), bounds)
		return string(runes), err
	case markup:
		runes, err := slice([]rune(o), bounds)
		return markup(runes), err
	case *rangeValue:
		start, stop, step, err := sliceBounds(o.len(), bounds)
		return &rangeValue{o.start + start*o.step, o.start + stop*o.step, o.step * step}, err
	}
	return nil, typeError("'%s' object is not subscriptable", typeName(obj))
}

// sliceBounds are the bounds of a slice of n items, brought inside.
func sliceBounds(n int64, bounds [3]Value) (start, stop, step int64, err error) {
	bound := func(v Value, fallback int64) int64 {
		if v == nil {
			return fallback
		}
		i, ok := asInt(v)
		if u, isU := v.(*undefined); isU && err == nil {
			err = u.err()
		} else if !ok && err == nil {
			err = typeError("slice indices must be integers or None or have an __index__ method")
		}
		return i
	}
	step = bound(bounds[2], 1)
	if step == 0 && err == nil {
		err = valueError("slice step cannot be zero")
	}
	low, high := int64(0), n
	first, last := low, high
	if step < 0 {
		low, high = -1, n-1
		first, last = high, low
	}
	inside := func(v Value, fallback int64) int64 {
		i := bound(v, fallback)
		if v != nil && i < 0 {
			i = max(i, -n-1) + n
		}
		return min(max(i, low), high)
	}
	start, stop = inside(bounds[0], first), inside(bounds[1], last)
	return start, stop, min(max(step, -n-1), n+1), err
}

// slice cuts a sequence as Python does.
func slice[T any](list []T, bounds [3]Value) ([]T, error) {
	start, stop, step, err := sliceBounds(int64(len(list)), bounds)
	if err != nil {
		return nil, err
	}
	if step == 1 {
		return slices.Clone(list[start:max(start, stop)]), nil
	}
	out := make([]T, 0, max(0, (stop-start)/step+1))
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, list[i])
	}
	return out, nil
}

// attribute returns a Python attribute, which are methods mostly.
func attribute(obj Value, name string) (Value, bool) {
	if strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") && len(name) > 4 {
		switch name {
		case "__class__", "__doc__", "__init__", "__len__", "__getitem__", "__str__", "__repr__", "__dict__", "__iter__":
			return unsafe(obj, name), true
		}
		return nil, false
	}
	switch o := obj.(type) {
	case *Dict:
		return dictMethod(o, name)
	case *List:
		if slices.Contains([]string{"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}, name) {
			return unsafe(obj, name), true
		}
		if name == "copy" {
			return method(name, func(rt *runtime, a args) (Value, error) {
				rt.charge(o)
				_, err := a.bind(0)
				return &List{slices.Clone(o.Items)}, err
			}), true
		}
		return sequenceMethod(o.Items, name)
	case *Tuple:
		return sequenceMethod(o.Items, name)
	case string:
		return stringMethod(o, name)
	case markup:
		return markupMethod(o, name)
	case *namespace:
		return o.attrs.Get(name)
	case *loopValue:
		return o.attr(name)
	case *macroValue:
		if name == "name" {
			return o.def.name, true
		}
	case *cyclerValue:
		return o.attr(name)
	case int64, bool:
		if n, _ := asInt(o); name == "real" || name == "numerator" {
			return n, true
		}
		switch name {
		case "imag":
			return int64(0), true
		case "denominator":
			return int64(1), true
		}
	case float64:
		switch name {
		case "real":
			return o, true
		case "imag":
			return 0.0, true
		case "is_integer":
			return method(name, func(_ *runtime, _ args) (Value, error) { return o == float64(int64(o)), nil }), true
		}
	}
	return nil, false
}

// unsafe is what the sandbox gives for an attribute it does not let through.
func unsafe(obj Value, name string) Value {
	return &undefined{"access to attribute '", name, "' of '" + typeName(obj) + "' object is unsafe"}
}

func method(name string, call func(rt *runtime, a args) (Value, error)) Value {
	return &function{name, call}
}

func dictMethod(d *Dict, name string) (Value, bool) {
	switch name {
	case "items", "keys", "values":
		return method(name, func(rt *runtime, a args) (Value, error) {
			_, err := a.bind(0)
			return &dictView{d, name}, err
		}), true
	case "get":
		return method(name, func(rt *runtime, a args) (Value, error) {
			if len(a.named) > 0 {
				return nil, typeError("dict.get() takes no keyword arguments")
			}
			p, err := a.bind(1, "key", "default")
			if err != nil {
				return nil, err
			}
			if v, ok, err := d.lookup(rt, p[0]); ok || err != nil {
				return v, err
			}
			return or(p[1], nil), nil
		}), true
	case "copy":
		return method(name, func(rt *runtime, a args) (Value, error) {
			_, err := a.bind(0)
			rt.charge(d)
			out := NewDict(d.Len())
			for _, e := range d.entries {
				out.set(rt, e.key, e.value)
			}
			return out, err
		}), true
	case "clear", "pop", "popitem", "setdefault", "update":
		return unsafe(d, name), true
	case "fromkeys":
		return method(name, func(_ *runtime, _ args) (Value, error) {
			return nil, typeError("dict.fromkeys is not supported")
		}), true
	}
	return nil, false
}

func sequenceMethod(list []Value, name string) (Value, bool) {
	switch name {
	case "count":
		return method(name, func(rt *runtime, a args) (Value, error) {
			p, err := a.bind(1, "value")
			if err != nil {
				return nil, err
			}
			n := int64(0)
			for _, item := range list {
				if rt.equal(item, p[0]) {
					n++
				}
			}
			return n, nil
		}), true
	case "index":
		return method(name, func(rt *runtime, a args) (Value, error) {
			p, err := a.bind(1, "value")
			if err != nil {
				return nil, err
			}
			for i, item := range list {
				if rt.equal(item, p[0]) {
					return int64(i), nil
				}
			}
			return nil, valueError("the value is not in the sequence")
		}), true
	}
	return nil, false
}
