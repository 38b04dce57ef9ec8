package jinja

import (
	"fmt"
	"time"
)

// maxRange is how long a range the sandbox allows.
const maxRange = 100000

// globals are the functions a template can always call.
var globals = map[string]Value{
	"range":           &function{"range", rangeFunc},
	"dict":            &function{"dict", dictFunc},
	"namespace":       &function{"namespace", namespaceFunc},
	"joiner":          &function{"joiner", joinerFunc},
	"cycler":          &function{"cycler", cyclerFunc},
	"raise_exception": &function{"raise_exception", raiseFunc},
	"strftime_now":    &function{"strftime_now", strftimeFunc},
}

// printCaller runs the body of a generation tag.
var printCaller = &function{"generation", func(rt *runtime, a args) (Value, error) {
	return call(rt, a.named[0].value, args{})
}}

func rangeFunc(rt *runtime, a args) (Value, error) {
	if len(a.named) > 0 || len(a.pos) == 0 || len(a.pos) > 3 {
		return nil, typeError("range expected 1 to 3 arguments")
	}
	bounds := [3]int64{0, 0, 1}
	for i, v := range a.pos {
		n, ok := asInt(v)
		if u, isU := v.(*undefined); isU {
			return nil, u.err()
		}
		if !ok {
			return nil, typeError("'%s' object cannot be interpreted as an integer", typeName(v))
		}
		if len(a.pos) == 1 {
			i = 1
		}
		bounds[i] = n
	}
	r := &rangeValue{bounds[0], bounds[1], bounds[2]}
	if r.step == 0 {
		return nil, valueError("range() arg 3 must not be zero")
	}
	const far = 1 << 60
	if r.start > far || r.start < -far || r.stop > far || r.stop < -far || r.step > far || r.step < -far || r.len() > maxRange {
		return nil, fmt.Errorf("OverflowError: range too big. The sandbox blocks ranges larger than %d", maxRange)
	}
	return r, nil
}

func dictFunc(rt *runtime, a args) (Value, error) {
	if len(a.pos) > 1 {
		return nil, typeError("dict expected at most 1 argument, got %d", len(a.pos))
	}
	d := NewDict(len(a.named))
	if len(a.pos) == 1 {
		if from, ok := a.pos[0].(*Dict); ok {
			for _, e := range from.entries {
				d.set(rt, e.key, e.value)
			}
		} else {
			list, err := rt.items(a.pos[0])
			if err != nil {
				return nil, err
			}
			for _, item := range list {
				pair, err := rt.items(item)
				if err != nil {
					return nil, err
				}
				if len(pair) != 2 {
					return nil, valueError("dictionary update sequence element has length %d; 2 is required", len(pair))
				}
				if !rt.hashable(pair[0]) {
					return nil, typeError("unhashable type: '%s'", typeName(pair[0]))
				}
				d.set(rt, pair[0], pair[1])
			}
		}
	}
	for _, n := range a.named {
		d.Set(n.name, n.value)
	}
	return d, nil
}

func namespaceFunc(rt *runtime, a args) (Value, error) {
	d, err := dictFunc(rt, a)
	if err != nil {
		return nil, err
	}
	return &namespace{d.(*Dict)}, nil
}

func joinerFunc(rt *runtime, a args) (Value, error) {
	p, err := a.bind(0, "sep")
	if err != nil {
		return nil, err
	}
	used := false
	return &function{"joiner", func(_ *runtime, _ args) (Value, error) {
		if !used {
			used = true
			return "", nil
		}
		return or(p[0], ", "), nil
	}}, nil
}

// cyclerValue is what cycler() makes.
type cyclerValue struct {
	items []Value
	at    int
}

func cyclerFunc(rt *runtime, a args) (Value, error) {
	if len(a.pos) == 0 {
		return nil, fmt.Errorf("RuntimeError: at least one item has to be provided")
	}
	return &cyclerValue{items: a.pos}, nil
}

func (c *cyclerValue) attr(name string) (Value, bool) {
	switch name {
	case "current":
		return c.items[c.at], true
	case "next":
		return method(name, func(_ *runtime, _ args) (Value, error) {
			v := c.items[c.at]
			c.at = (c.at + 1) % len(c.items)
			return v, nil
		}), true
	case "reset":
		return method(name, func(_ *runtime, _ args) (Value, error) {
			c.at = 0
			return nil, nil
		}), true
	}
	return nil, false
}

func raiseFunc(rt *runtime, a args) (Value, error) {
	p, err := a.bind(1, "message")
	if err != nil {
		return nil, err
	}
	message, err := rt.str(p[0])
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s", ErrRaised, message)
}

func strftimeFunc(rt *runtime, a args) (Value, error) {
	p, err := a.bind(1, "format")
	if err != nil {
		return nil, err
	}
	layout, ok := text(p[0])
	if !ok {
		return nil, typeError("strftime() argument 1 must be str, not %s", typeName(p[0]))
	}
	now := rt.now
	if now.IsZero() {
		now = time.Now()
	}
	return strftime(now, layout)
}
