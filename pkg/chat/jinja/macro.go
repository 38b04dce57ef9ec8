package jinja

import "fmt"

// maxCalls bounds the depth of macro calls and recursive loops.
const maxCalls = 200

func (s *macroStmt) exec(f *frame) (control, error) {
	*f.at(s.ref) = &macroValue{s, f}
	return goOn, nil
}

func (rt *runtime) enterCall() error {
	if rt.calls++; rt.calls > maxCalls {
		return fmt.Errorf("%w: too many nested calls", ErrLimit)
	}
	return rt.step()
}

func (rt *runtime) leaveCall() { rt.calls-- }

// macroValue is a macro and the frame it was made in.
type macroValue struct {
	def    *macroStmt
	around *frame
}

func (m *macroValue) call(rt *runtime, a args) (Value, error) {
	if err := rt.enterCall(); err != nil {
		return nil, err
	}
	defer rt.leaveCall()
	f := rt.enter(m.def.scope, m.around)
	if err := m.bind(f, a); err != nil {
		return nil, err
	}
	text, _, err := rt.capture(f, m.def.body)
	return text, err
}

// bind gives the parameters their values.
func (m *macroValue) bind(f *frame, a args) error {
	d := m.def
	if !f.rt.spend(len(a.pos) + len(d.params)*len(a.named)) {
		return f.rt.spent(nil)
	}
	used := 0
	take := func(name string) (Value, bool) {
		for _, n := range a.named {
			if n.name == name {
				used++
				return n.value, true
			}
		}
		return missing{}, false
	}
	for i, p := range d.params {
		if i < len(a.pos) {
			*f.at(p.ref) = a.pos[i]
		} else {
			*f.at(p.ref), _ = take(p.name)
		}
	}
	if d.caller != nil {
		v, ok := take("caller")
		if !ok {
			v = &undefined{why: "No caller defined"}
		}
		*f.at(*d.caller) = v
	}
	if d.kwargs != nil || used < len(a.named) {
		if err := m.bindRest(f, a); err != nil {
			return err
		}
	}
	if d.varargs != nil {
		*f.at(*d.varargs) = &Tuple{a.pos[min(len(d.params), len(a.pos)):]}
	} else if len(a.pos) > len(d.params) {
		return typeError("macro '%s' takes not more than %d argument(s)", d.name, len(d.params))
	}
	return m.bindDefaults(f)
}

// bindRest gives kwargs the named arguments that are no parameters.
func (m *macroValue) bindRest(f *frame, a args) error {
	d := m.def
	rest := NewDict(len(a.named))
	for _, n := range a.named {
		known := n.name == "caller" && d.caller != nil
		for i, p := range d.params {
			known = known || p.name == n.name && i >= len(a.pos)
		}
		if !known {
			rest.Set(n.name, n.value)
		}
	}
	if d.kwargs != nil {
		*f.at(*d.kwargs) = rest
	} else if rest.Len() > 0 {
		return typeError("macro '%s' takes no keyword argument '%v'", d.name, rest.entries[0].key)
	}
	return nil
}

// bindDefaults gives the parameters that were not passed their defaults.
func (m *macroValue) bindDefaults(f *frame) error {
	d := m.def
	for i, p := range d.params {
		if *f.at(p.ref) != Value(missing{}) {
			continue
		}
		from := len(d.params) - len(d.defaults)
		if i < from {
			*f.at(p.ref) = &undefined{"parameter '", p.name, "' was not provided"}
			continue
		}
		v, err := d.defaults[i-from].eval(f)
		if err != nil {
			return err
		}
		*f.at(p.ref) = v
	}
	return nil
}
