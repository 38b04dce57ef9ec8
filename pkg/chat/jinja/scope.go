package jinja

import "maps"

// Which variable a name means is decided when a template is parsed, by the rules
// of jinja2's compiler. They are not plain dynamic scoping, and templates depend
// on the difference: a name that a loop body sets before it reads it starts every
// round undefined, even if the caller passed a variable of that name, while a name
// of the template around starts every round with the value it has there.

// scope describes the variables of one frame: the template, a loop body, a macro.
type scope struct {
	depth int // frames between the template and this one
	slots map[string]int
	loads []load
}

// varRef is a variable: the slot of a frame so many scopes up from the place that
// names it.
type varRef struct{ up, slot int }

// load says what a variable holds when its frame is entered.
type load struct {
	slot   int
	action loadAction
	name   string // of loadResolve
	outer  varRef // of loadAlias, seen from this frame
}

type loadAction uint8

const (
	loadParam     loadAction = iota // whatever was passed
	loadResolve                     // the caller's variable of that name
	loadAlias                       // what the variable around holds now
	loadUndefined                   // nothing
)

// variable identifies a slot of a scope.
type variable struct {
	scope *scope
	slot  int
}

// symbols is the knowledge about names at a place while a frame is analysed.
type symbols struct {
	parent *symbols
	scope  *scope
	refs   map[string]variable
	loads  map[variable]symbolLoad
	stores map[string]bool
}

type symbolLoad struct {
	action loadAction
	name   string
	outer  variable
}

func newSymbols(parent *symbols) *symbols {
	s := &symbols{
		parent: parent,
		scope:  &scope{slots: map[string]int{}},
		refs:   map[string]variable{},
		loads:  map[variable]symbolLoad{},
		stores: map[string]bool{},
	}
	if parent != nil {
		s.scope.depth = parent.scope.depth + 1
	}
	return s
}

func (s *symbols) copy() *symbols {
	return &symbols{s.parent, s.scope, maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)}
}

func (s *symbols) define(name string, l symbolLoad) variable {
	slot, ok := s.scope.slots[name]
	if !ok {
		slot = len(s.scope.slots)
		s.scope.slots[name] = slot
	}
	v := variable{s.scope, slot}
	s.refs[name] = v
	s.loads[v] = l
	return v
}

func (s *symbols) find(name string) (variable, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.refs[name]; ok {
			return v, true
		}
	}
	return variable{}, false
}

func (s *symbols) outer(name string) (variable, bool) { return s.parent.find(name) }

func (s *symbols) load(name string) {
	if _, ok := s.find(name); !ok {
		s.define(name, symbolLoad{action: loadResolve, name: name})
	}
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if _, ok := s.refs[name]; ok {
		return
	}
	if outer, ok := s.outer(name); ok {
		s.define(name, symbolLoad{action: loadAlias, outer: outer})
		return
	}
	s.define(name, symbolLoad{action: loadUndefined})
}

func (s *symbols) param(name string) variable {
	s.stores[name] = true
	return s.define(name, symbolLoad{action: loadParam})
}

// merge joins what the branches of an if know. A name that not all branches store
// has, where none did, the value it had before.
func (s *symbols) merge(branches []*symbols) {
	stores := map[string]int{}
	for _, b := range branches {
		for name := range b.stores {
			if !s.stores[name] {
				stores[name]++
			}
		}
	}
	for _, b := range branches {
		maps.Copy(s.refs, b.refs)
		maps.Copy(s.loads, b.loads)
		maps.Copy(s.stores, b.stores)
	}
	for name, n := range stores {
		if n == len(branches) {
			continue
		}
		v := s.refs[name]
		if outer, ok := s.outer(name); ok {
			s.loads[v] = symbolLoad{action: loadAlias, outer: outer}
		} else {
			s.loads[v] = symbolLoad{action: loadResolve, name: name}
		}
	}
}

// ref is how the frame of s reaches a variable.
func (s *symbols) ref(v variable) varRef { return varRef{s.scope.depth - v.scope.depth, v.slot} }

// finish writes down how the frame is entered.
func (s *symbols) finish() *scope {
	for v, l := range s.loads {
		if v.scope != s.scope || l.action == loadParam {
			continue
		}
		out := load{slot: v.slot, action: l.action, name: l.name}
		if l.action == loadAlias {
			out.outer = s.ref(l.outer)
		}
		s.scope.loads = append(s.scope.loads, out)
	}
	return s.scope
}

// analyse visits statements as the frame of s sees them: bodies that get a frame
// of their own are left to that frame.
func (s *symbols) analyse(body []stmt) {
	for _, st := range body {
		switch st := st.(type) {
		case *outputStmt:
			s.exprs(st.exprs...)
		case *ifStmt:
			s.analyseIf(st)
		case *forStmt:
			s.exprs(st.iter)
		case *setStmt:
			s.exprs(st.value)
			s.target(st.target, s.store)
		case *setBlockStmt:
			s.target(st.target, s.store)
		case *withStmt:
			s.exprs(st.values...)
		case *macroStmt:
			s.store(st.name)
		case *callStmt:
			s.exprs(st.call)
		case *filterStmt:
			s.exprs(st.filter)
		}
	}
}

func (s *symbols) analyseIf(st *ifStmt) {
	s.exprs(st.tests[0])
	inner := *s
	branch := func(visit func(*symbols)) *symbols {
		c := inner.copy()
		visit(c)
		return c
	}
	then := branch(func(c *symbols) { c.analyse(st.bodies[0]) })
	// Each elif is an if of its own, one after the other in one branch.
	elif := branch(func(c *symbols) {
		for i := range st.tests[1:] {
			c.analyseIf(&ifStmt{tests: st.tests[i+1 : i+2], bodies: st.bodies[i+1 : i+2]})
		}
	})
	otherwise := branch(func(c *symbols) { c.analyse(st.orElse) })
	s.merge([]*symbols{then, elif, otherwise})
}

// target visits the names that are assigned to.
func (s *symbols) target(t target, assign func(string)) {
	switch {
	case t.many != nil:
		for _, sub := range t.many {
			s.target(sub, assign)
		}
	case t.attr != "":
		s.load(t.name.name)
	default:
		assign(t.name.name)
	}
}

// exprs visits the names that expressions read.
func (s *symbols) exprs(list ...expr) {
	for _, x := range list {
		walkExpr(x, func(n *nameExpr) { s.load(n.name) })
	}
}

// walkExpr visits every name of an expression.
func walkExpr(x expr, visit func(*nameExpr)) {
	walk := func(list ...expr) {
		for _, x := range list {
			walkExpr(x, visit)
		}
	}
	args := func(a *callArgs) {
		walk(a.pos...)
		walk(a.named...)
		walk(a.star, a.starStar)
	}
	switch x := x.(type) {
	case *nameExpr:
		visit(x)
	case *listExpr:
		walk(x.items...)
	case *tupleExpr:
		walk(x.items...)
	case *dictExpr:
		for i := range x.keys {
			walk(x.keys[i], x.values[i])
		}
	case *attrExpr:
		walk(x.obj)
	case *indexExpr:
		walk(x.obj, x.index)
	case *sliceExpr:
		walk(x.obj, x.start, x.stop, x.step)
	case *unaryExpr:
		walk(x.x)
	case *binaryExpr:
		walk(x.l, x.r)
	case *sumExpr:
		walk(x.terms...)
	case *logicExpr:
		walk(x.l, x.r)
	case *compareExpr:
		walk(x.first)
		walk(x.rest...)
	case *concatExpr:
		walk(x.parts...)
	case *condExpr:
		walk(x.test, x.then, x.otherwise)
	case *filterExpr:
		walk(x.x)
		args(&x.args)
	case *testExpr:
		walk(x.x)
		args(&x.args)
	case *callExpr:
		walk(x.fn)
		args(&x.args)
	}
}
