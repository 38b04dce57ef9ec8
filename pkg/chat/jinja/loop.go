package jinja

func (s *forStmt) exec(f *frame) (control, error) {
	v, err := s.iter.eval(f)
	if err != nil {
		return goOn, atLine(s.line, err)
	}
	return goOn, atLine(s.line, s.run(f, v, 0))
}

// run loops over a value; depth counts the loops it is inside of by recursion.
func (s *forStmt) run(f *frame, over Value, depth int) error {
	list, err := f.rt.items(over)
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
	inner := f.rt.newFrame(s.scope, f)
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
			return &undefined{why: "there is no previous item"}, true
		}
		return l.list[l.at-1], true
	case "nextitem":
		if l.at == len(l.list)-1 {
			return &undefined{why: "there is no next item"}, true
		}
		return l.list[l.at+1], true
	case "cycle":
		return &function{name, func(rt *runtime, a args) (Value, error) {
			if len(a.pos) == 0 {
				return nil, typeError("no items for cycling given")
			}
			return a.pos[l.at%len(a.pos)], nil
		}}, true
	case "changed":
		return &function{name, func(rt *runtime, a args) (Value, error) {
			now := &Tuple{a.pos}
			if l.changed != nil && rt.equal(&Tuple{l.changed}, now) {
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
	start := len(rt.out)
	err := l.stmt.run(l.around, a.pos[0], l.depth+1)
	return rt.cut(start), err
}
