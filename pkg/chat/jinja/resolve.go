package jinja

// resolver gives every name of a template its variable, frame by frame.
type resolver struct{ err error }

// resolveTemplate returns the frame of the template itself.
func resolveTemplate(body []stmt) (*scope, error) {
	r := new(resolver)
	s := newSymbols(nil)
	s.analyse(body)
	r.body(s, body)
	return s.finish(), r.err
}

func (r *resolver) name(s *symbols, n *nameExpr) {
	v, ok := s.find(n.name)
	if !ok { // analysis visits every name, so this is a fault of ours
		r.err = &Error{Line: n.line, Msg: "no variable for " + n.name}
		return
	}
	n.ref = s.ref(v)
}

func (r *resolver) exprs(s *symbols, list ...expr) {
	for _, x := range list {
		walkExpr(x, func(n *nameExpr) { r.name(s, n) })
	}
}

func (r *resolver) target(s *symbols, t target) {
	if t.name != nil {
		r.name(s, t.name)
	}
	for _, sub := range t.many {
		r.target(s, sub)
	}
}

func (r *resolver) body(s *symbols, body []stmt) {
	for _, st := range body {
		switch st := st.(type) {
		case *outputStmt:
			r.exprs(s, st.exprs...)
		case *ifStmt:
			r.exprs(s, st.tests...)
			for _, b := range st.bodies {
				r.body(s, b)
			}
			r.body(s, st.orElse)
		case *forStmt:
			r.loop(s, st)
		case *setStmt:
			r.exprs(s, st.value)
			r.target(s, st.target)
		case *setBlockStmt:
			inner := newSymbols(s)
			inner.analyse(st.body)
			inner.exprs(st.filter)
			r.body(inner, st.body)
			r.exprs(inner, st.filter)
			st.scope = inner.finish()
			r.target(s, st.target)
		case *withStmt:
			r.exprs(s, st.values...)
			inner := newSymbols(s)
			for _, t := range st.targets {
				inner.target(t, func(name string) { inner.param(name) })
			}
			inner.analyse(st.body)
			for _, t := range st.targets {
				r.target(inner, t)
			}
			r.body(inner, st.body)
			st.scope = inner.finish()
		case *macroStmt:
			r.macro(s, st)
			v, _ := s.find(st.name)
			st.ref = s.ref(v)
		case *callStmt:
			r.exprs(s, st.call)
			r.macro(s, st.call.caller)
		case *filterStmt:
			inner := newSymbols(s)
			inner.exprs(st.filter)
			inner.analyse(st.body)
			r.body(inner, st.body)
			r.exprs(inner, st.filter)
			st.scope = inner.finish()
		}
	}
}

func (r *resolver) loop(s *symbols, st *forStmt) {
	r.exprs(s, st.iter)

	inner := newSymbols(s)
	if speaksOf("loop", st.body) {
		ref := inner.ref(inner.param("loop"))
		st.loopVar = &ref
	}
	inner.target(st.target, func(name string) {
		if name == "loop" && st.loopVar != nil {
			r.err = &Error{Line: st.line, Msg: "can't assign to special loop variable in for-loop"}
		}
		inner.param(name)
	})
	inner.analyse(st.body)
	r.target(inner, st.target)
	r.body(inner, st.body)
	st.scope = inner.finish()

	if st.orElse != nil {
		other := newSymbols(s)
		other.analyse(st.orElse)
		r.body(other, st.orElse)
		st.elseScope = other.finish()
	}
	if st.test != nil {
		test := newSymbols(s)
		test.target(st.target, func(name string) { test.param(name) })
		test.exprs(st.test)
		r.exprs(test, st.test)
		st.testTarget = rebind(test, st.target)
		st.testScope = test.finish()
	}
}

// rebind is the target as another frame sees it.
func rebind(s *symbols, t target) target {
	out := target{attr: t.attr}
	if t.name != nil {
		v, _ := s.find(t.name.name)
		out.name = &nameExpr{name: t.name.name, line: t.name.line, ref: s.ref(v)}
	}
	for _, sub := range t.many {
		out.many = append(out.many, rebind(s, sub))
	}
	return out
}

func (r *resolver) macro(s *symbols, m *macroStmt) {
	inner := newSymbols(s)
	names := map[string]bool{}
	for _, p := range m.params {
		if names[p.name] {
			r.err = &Error{Line: m.line, Msg: "duplicate argument '" + p.name + "' in macro"}
		}
		names[p.name] = true
		inner.param(p.name)
	}
	special := func(name string) *varRef {
		if names[name] || !speaksOf(name, m.body) {
			return nil
		}
		ref := inner.ref(inner.param(name))
		return &ref
	}
	inner.exprs(m.defaults...)
	m.caller, m.kwargs, m.varargs = special("caller"), special("kwargs"), special("varargs")
	inner.analyse(m.body)
	for _, p := range m.params {
		r.name(inner, p)
	}
	r.exprs(inner, m.defaults...)
	r.body(inner, m.body)
	m.scope = inner.finish()
}

// speaksOf tells whether a body reads a name anywhere.
func speaksOf(name string, body []stmt) bool {
	found := false
	exprs := func(list ...expr) {
		for _, x := range list {
			walkExpr(x, func(n *nameExpr) { found = found || n.name == name })
		}
	}
	for _, st := range body {
		switch st := st.(type) {
		case *outputStmt:
			exprs(st.exprs...)
		case *ifStmt:
			exprs(st.tests...)
			for _, b := range st.bodies {
				found = found || speaksOf(name, b)
			}
			found = found || speaksOf(name, st.orElse)
		case *forStmt:
			exprs(st.iter, st.test)
			found = found || speaksOf(name, st.body) || speaksOf(name, st.orElse)
		case *setStmt:
			exprs(st.value)
		case *setBlockStmt:
			exprs(st.filter)
			found = found || speaksOf(name, st.body)
		case *withStmt:
			exprs(st.values...)
			found = found || speaksOf(name, st.body)
		case *macroStmt:
			exprs(st.defaults...)
			found = found || speaksOf(name, st.body)
		case *callStmt:
			exprs(st.call)
			found = found || speaksOf(name, st.call.caller.body)
		case *filterStmt:
			exprs(st.filter)
			found = found || speaksOf(name, st.body)
		}
	}
	return found
}
