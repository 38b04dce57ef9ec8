package jinja

import (
	"errors"
	"fmt"
	"time"
)

// maxCalls bounds the depth of macro calls and recursive loops.
const maxCalls = 200

// runtime is the state of one rendering.
type runtime struct {
	vars      *Dict
	now       time.Time
	out       []byte
	steps     int
	maxOutput int
	calls     int
	// scratch holds the parts of sums that are being worked out, inner ones on top.
	scratch []Value
}

// frame holds the variables of a scope in use.
type frame struct {
	rt     *runtime
	parent *frame
	vars   []Value
}

// enter makes a frame; its variables get the values the scope says.
func (rt *runtime) enter(s *scope, parent *frame) *frame {
	f := &frame{rt: rt, parent: parent, vars: make([]Value, len(s.slots))}
	f.reset(s)
	return f
}

// reset gives the variables that are no parameters their first values again.
func (f *frame) reset(s *scope) {
	for i := range s.loads {
		l := &s.loads[i]
		switch l.action {
		case loadResolve:
			f.vars[l.slot] = f.rt.resolve(l.name)
		case loadAlias:
			f.vars[l.slot] = *f.at(l.outer)
		case loadUndefined:
			f.vars[l.slot] = missing{}
		}
	}
}

func (f *frame) at(ref varRef) *Value {
	for ; ref.up > 0; ref.up-- {
		f = f.parent
	}
	return &f.vars[ref.slot]
}

// resolve finds a name outside the template.
func (rt *runtime) resolve(name string) Value {
	if v, ok := rt.vars.Get(name); ok {
		return v
	}
	if v, ok := globals[name]; ok {
		return v
	}
	return missing{}
}

// step counts the work done.
func (rt *runtime) step() error {
	if rt.steps--; rt.steps < 0 {
		return fmt.Errorf("%w: too many steps", ErrLimit)
	}
	return nil
}

// room checks the size of a string or list that is about to be made.
func (rt *runtime) room(n int) error {
	if n > rt.maxOutput || n < 0 {
		return fmt.Errorf("%w: a value of %d bytes", ErrLimit, n)
	}
	return nil
}

// room64 is room for the product of two sizes.
func (rt *runtime) roomTimes(n int, times int64) error {
	if times > 0 && n > 0 && int64(n) > int64(rt.maxOutput)/times {
		return fmt.Errorf("%w: a value of %d times %d bytes", ErrLimit, times, n)
	}
	return nil
}

func (rt *runtime) write(s string) error {
	rt.out = append(rt.out, s...)
	return rt.room(len(rt.out))
}

// capture returns what run writes. It writes behind what is there already and is
// cut off again, so that a macro needs no buffer of its own.
func (rt *runtime) capture(run func() error) (string, error) {
	start := len(rt.out)
	err := run()
	text := string(rt.out[start:])
	rt.out = rt.out[:start]
	return text, err
}

// at adds the line to an error that has none.
func atLine(line int, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	return &Error{Line: line, err: err}
}

func execAll(f *frame, body []stmt) (control, error) {
	for _, s := range body {
		if c, err := s.exec(f); c != goOn || err != nil {
			return c, err
		}
	}
	return goOn, nil
}

func (s *dataStmt) exec(f *frame) (control, error) { return goOn, f.rt.write(s.text) }

func (s *outputStmt) exec(f *frame) (control, error) {
	for _, x := range s.exprs {
		v, err := x.eval(f)
		if err != nil {
			return goOn, atLine(s.line, err)
		}
		t, err := str(v)
		if err == nil {
			err = f.rt.write(t)
		}
		if err != nil {
			return goOn, atLine(s.line, err)
		}
	}
	return goOn, nil
}

func (s *ifStmt) exec(f *frame) (control, error) {
	for i, test := range s.tests {
		v, err := test.eval(f)
		if err != nil {
			return goOn, atLine(s.line, err)
		}
		if truth(v) {
			return execAll(f, s.bodies[i])
		}
	}
	return execAll(f, s.orElse)
}

func (s *controlStmt) exec(*frame) (control, error) { return s.what, nil }

func (s *setStmt) exec(f *frame) (control, error) {
	v, err := s.value.eval(f)
	if err == nil {
		err = assign(f, s.target, v)
	}
	return goOn, atLine(s.line, err)
}

// assign gives a target its value.
func assign(f *frame, t target, v Value) error {
	switch {
	case t.many != nil:
		values, err := items(v)
		if err != nil {
			if isUndefined(v) {
				return err
			}
			return typeError("cannot unpack non-iterable %s object", typeName(v))
		}
		if len(values) < len(t.many) {
			return valueError("not enough values to unpack (expected %d, got %d)", len(t.many), len(values))
		}
		if len(values) > len(t.many) {
			return valueError("too many values to unpack (expected %d)", len(t.many))
		}
		for i, sub := range t.many {
			if err := assign(f, sub, values[i]); err != nil {
				return err
			}
		}
	case t.attr != "":
		ns, ok := (*f.at(t.name.ref)).(*namespace)
		if !ok {
			return errors.New("cannot assign attribute on non-namespace object")
		}
		ns.attrs.Set(t.attr, v)
	default:
		*f.at(t.name.ref) = v
	}
	return nil
}

func (s *setBlockStmt) exec(f *frame) (control, error) {
	inner := f.rt.enter(s.scope, f)
	c := goOn
	text, err := f.rt.capture(func() (err error) {
		c, err = execAll(inner, s.body)
		return err
	})
	if err != nil || c != goOn {
		return c, err
	}
	v, err := applyFilters(inner, s.filter, text)
	if err == nil {
		err = assign(f, s.target, v)
	}
	return goOn, atLine(s.line, err)
}

// applyFilters runs a chain of filters on the text of a block.
func applyFilters(f *frame, chain expr, text string) (Value, error) {
	if chain == nil {
		return text, nil
	}
	link := chain.(*filterExpr)
	in, err := applyFilters(f, link.x, text)
	if err != nil {
		return nil, err
	}
	return link.apply(f, in)
}

func (s *filterStmt) exec(f *frame) (control, error) {
	inner := f.rt.enter(s.scope, f)
	c := goOn
	text, err := f.rt.capture(func() (err error) {
		c, err = execAll(inner, s.body)
		return err
	})
	if err != nil || c != goOn {
		return c, err
	}
	v, err := applyFilters(inner, s.filter, text)
	if err == nil {
		if text, err = str(v); err == nil {
			err = f.rt.write(text)
		}
	}
	return goOn, atLine(s.line, err)
}

func (s *withStmt) exec(f *frame) (control, error) {
	inner := f.rt.enter(s.scope, f)
	for i, t := range s.targets {
		v, err := s.values[i].eval(f)
		if err == nil {
			err = assign(inner, t, v)
		}
		if err != nil {
			return goOn, atLine(s.line, err)
		}
	}
	return execAll(inner, s.body)
}

func (s *callStmt) exec(f *frame) (control, error) {
	v, err := s.call.eval(f)
	if err == nil {
		var text string
		if text, err = str(v); err == nil {
			err = f.rt.write(text)
		}
	}
	return goOn, atLine(s.line, err)
}

func (s *macroStmt) exec(f *frame) (control, error) {
	*f.at(s.ref) = &macroValue{s, f}
	return goOn, nil
}

func (s *forStmt) exec(f *frame) (control, error) {
	v, err := s.iter.eval(f)
	if err != nil {
		return goOn, atLine(s.line, err)
	}
	return goOn, atLine(s.line, s.run(f, v, 0))
}

// run loops over a value; depth counts the loops it is inside of by recursion.
func (s *forStmt) run(f *frame, over Value, depth int) error {
	list, err := items(over)
	if err != nil {
		return err
	}
	if s.test != nil {
		if list, err = s.filtered(f, list); err != nil {
			return err
		}
	}
	completed, err := s.rounds(f, list, depth)
	if err != nil || completed || s.orElse == nil {
		return err
	}
	_, err = execAll(f.rt.enter(s.elseScope, f), s.orElse)
	return err
}

// rounds runs the body for every item and tells whether it reached its end in any
// round: where none did, by break or continue, the loop's else counts.
func (s *forStmt) rounds(f *frame, list []Value, depth int) (completed bool, err error) {
	inner := &frame{rt: f.rt, parent: f, vars: make([]Value, len(s.scope.slots))}
	var loop *loopValue
	if s.loopVar != nil {
		loop = &loopValue{list: list, depth: depth, stmt: s, around: f}
	}
	for i, item := range list {
		if err := f.rt.step(); err != nil {
			return completed, err
		}
		inner.reset(s.scope)
		if loop != nil {
			loop.at = i
			*inner.at(*s.loopVar) = loop
		}
		if err := assign(inner, s.target, item); err != nil {
			return completed, err
		}
		c, err := execAll(inner, s.body)
		if err != nil || c == breakLoop {
			return completed, err
		}
		completed = completed || c == goOn
	}
	return completed, nil
}

func (s *forStmt) filtered(f *frame, list []Value) ([]Value, error) {
	test := f.rt.enter(s.testScope, f)
	var kept []Value
	for _, item := range list {
		test.reset(s.testScope)
		if err := assign(test, s.testTarget, item); err != nil {
			return nil, err
		}
		v, err := s.test.eval(test)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// loopValue is the variable loop.
type loopValue struct {
	list    []Value
	at      int
	depth   int
	stmt    *forStmt
	around  *frame
	changed []Value
}

func (l *loopValue) attr(name string) (Value, bool) {
	switch name {
	case "index":
		return int64(l.at + 1), true
	case "index0":
		return int64(l.at), true
	case "revindex":
		return int64(len(l.list) - l.at), true
	case "revindex0":
		return int64(len(l.list) - l.at - 1), true
	case "first":
		return l.at == 0, true
	case "last":
		return l.at == len(l.list)-1, true
	case "length":
		return int64(len(l.list)), true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if l.at == 0 {
			return &undefined{"there is no previous item"}, true
		}
		return l.list[l.at-1], true
	case "nextitem":
		if l.at == len(l.list)-1 {
			return &undefined{"there is no next item"}, true
		}
		return l.list[l.at+1], true
	case "cycle":
		return &function{name, func(_ *runtime, a args) (Value, error) {
			if len(a.pos) == 0 {
				return nil, typeError("no items for cycling given")
			}
			return a.pos[l.at%len(a.pos)], nil
		}}, true
	case "changed":
		return &function{name, func(_ *runtime, a args) (Value, error) {
			now := &Tuple{a.pos}
			if l.changed != nil && equal(&Tuple{l.changed}, now) {
				return false, nil
			}
			l.changed = append([]Value{}, a.pos...)
			return true, nil
		}}, true
	}
	return nil, false
}

// recurse runs a recursive loop over another value.
func (l *loopValue) recurse(rt *runtime, a args) (Value, error) {
	if !l.stmt.recursive {
		return nil, typeError("the loop must have the 'recursive' marker to be called recursively")
	}
	if len(a.pos) != 1 {
		return nil, typeError("loop() takes one argument")
	}
	if err := rt.enterCall(); err != nil {
		return nil, err
	}
	defer rt.leaveCall()
	return rt.capture(func() error { return l.stmt.run(l.around, a.pos[0], l.depth+1) })
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
	return rt.capture(func() error {
		_, err := execAll(f, m.def.body)
		return err
	})
}

// bind gives the parameters their values.
func (m *macroValue) bind(f *frame, a args) error {
	d := m.def
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
			v = &undefined{"No caller defined"}
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
			*f.at(p.ref) = &undefined{"parameter '" + p.name + "' was not provided"}
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
