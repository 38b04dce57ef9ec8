package jinja

// args are the evaluated arguments of a call.
type args struct {
	pos   []Value
	named []namedArg
}

type namedArg struct {
	name  string
	value Value
}

func (c *callArgs) eval(f *frame) (args, error) {
	var a args
	if len(c.pos) > 0 {
		var err error
		if a.pos, err = evalAll(f, c.pos); err != nil {
			return a, err
		}
	}
	if c.star != nil {
		v, err := c.star.eval(f)
		if err != nil {
			return a, err
		}
		list, err := f.rt.items(v)
		if err != nil {
			return a, err
		}
		a.pos = append(a.pos, list...)
	}
	for i, name := range c.names {
		v, err := c.named[i].eval(f)
		if err != nil {
			return a, err
		}
		a.named = append(a.named, namedArg{name, v})
	}
	if c.starStar != nil {
		v, err := c.starStar.eval(f)
		if err != nil {
			return a, err
		}
		d, ok := v.(*Dict)
		if !ok {
			return a, typeError("argument after ** must be a mapping, not %s", typeName(v))
		}
		for _, e := range d.entries {
			if !f.rt.spend(1 + len(a.named)/4) {
				return a, f.rt.spent(nil)
			}
			name, ok := e.key.(string)
			if !ok {
				return a, typeError("keywords must be strings")
			}
			for _, n := range a.named {
				if n.name == name {
					return a, typeError("got multiple values for keyword argument '%s'", name)
				}
			}
			a.named = append(a.named, namedArg{name, e.value})
		}
	}
	return a, nil
}

// bind matches arguments to parameter names; what was not passed is missing.
// The first n must be passed.
func (a args) bind(n int, names ...string) ([]Value, error) {
	out := make([]Value, len(names))
	for i := range out {
		out[i] = missing{}
	}
	if len(a.pos) > len(names) {
		return nil, typeError("takes at most %d arguments (%d given)", len(names), len(a.pos))
	}
	copy(out, a.pos)
	for _, arg := range a.named {
		found := false
		for i, name := range names {
			if name != arg.name {
				continue
			}
			if out[i] != Value(missing{}) {
				return nil, typeError("got multiple values for argument '%s'", name)
			}
			out[i], found = arg.value, true
		}
		if !found {
			return nil, typeError("got an unexpected keyword argument '%s'", arg.name)
		}
	}
	for i := range n {
		if out[i] == Value(missing{}) {
			return nil, typeError("missing a required argument: '%s'", names[i])
		}
	}
	return out, nil
}

// or returns a bound argument or its default.
func or(v, fallback Value) Value {
	if v == Value(missing{}) {
		return fallback
	}
	return v
}

func (x *callExpr) eval(f *frame) (Value, error) {
	var fn Value
	var err error
	if attr, ok := x.fn.(*attrExpr); ok && x.caller == nil {
		obj, err := attr.obj.eval(f)
		if err != nil {
			return nil, err
		}
		if s, ok := obj.(string); ok {
			if x.method != nil { // without a value for the method itself
				return x.callString(f, s, x.method)
			}
		}
		fn, err = getAttr(obj, attr.name)
		if err != nil {
			return nil, err
		}
	} else if fn, err = x.fn.eval(f); err != nil {
		return nil, err
	}
	a, err := x.args.eval(f)
	if err != nil {
		return nil, err
	}
	if x.caller != nil {
		a.named = append(a.named, namedArg{"caller", &macroValue{x.caller, f}})
	}
	return call(f.rt, fn, a)
}

func (x *callExpr) callString(f *frame, s string, m *stringFunc) (Value, error) {
	if err := f.rt.step(); err != nil {
		return nil, err
	}
	a, err := x.args.eval(f)
	if err != nil {
		return nil, err
	}
	p, err := a.bind(m.required, m.params...)
	if err != nil {
		return nil, err
	}
	return m.run(f.rt, s, p)
}

func call(rt *runtime, fn Value, a args) (Value, error) {
	if err := rt.step(); err != nil {
		return nil, err
	}
	switch fn := fn.(type) {
	case *function:
		rt.chargeArgs(a)
		if err := rt.spent(nil); err != nil {
			return nil, err
		}
		v, err := fn.call(rt, a)
		return v, rt.spent(err)
	case *macroValue:
		return fn.call(rt, a)
	case *loopValue:
		return fn.recurse(rt, a)
	case *cyclerValue:
		return nil, typeError("'Cycler' object is not callable")
	case *undefined:
		return nil, fn.err()
	}
	return nil, typeError("'%s' object is not callable", typeName(fn))
}
