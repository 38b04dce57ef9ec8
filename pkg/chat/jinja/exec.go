package jinja

import (
	"errors"
	"fmt"
	"math/big"
	"time"
)

// runtime is the state of one rendering.
type runtime struct {
	vars      *Dict
	now       time.Time
	out       []byte
	steps     int
	maxOutput int
	calls     int
	nested    int // how deep in a value a comparison is
	// scratch holds the parts of sums that are being worked out, inner ones on top.
	scratch []Value
}

// frame holds the variables of a scope in use.
type frame struct {
	rt     *runtime
	parent *frame
	vars   []Value
	few    [6]Value // where the variables lie if they are few
}

// enter makes a frame; its variables get the values the scope says.
func (rt *runtime) enter(s *scope, parent *frame) *frame {
	f := rt.newFrame(s, parent)
	f.reset(s)
	return f
}

func (rt *runtime) newFrame(s *scope, parent *frame) *frame {
	f := &frame{rt: rt, parent: parent}
	if n := len(s.slots); n <= len(f.few) {
		f.vars = f.few[:n]
	} else {
		f.vars = make([]Value, n)
	}
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

// A unit of work takes some ten nanoseconds, whether it is a step, a value looked
// at or a few bytes of text; so the limit of steps bounds the time of a rendering
// also where one step does much.

// spend takes units of work from those that are left and tells whether they were
// enough. What walks over a value stops at once when they were not; its result is
// of no use then, and whoever began it returns what spent says. A nil runtime is
// for values that Go code makes: it has no limit.
func (rt *runtime) spend(n int) bool {
	if rt == nil {
		return true
	}
	rt.steps -= n
	return rt.steps >= 0
}

// exhaust leaves no work to be done.
func (rt *runtime) exhaust() { rt.steps = min(rt.steps, -1) }

// spent returns err, or that the work ran out: then err may come from a walk that
// stopped early.
func (rt *runtime) spent(err error) error {
	if rt.steps < 0 && !errors.Is(err, ErrLimit) {
		return fmt.Errorf("%w: too many steps", ErrLimit)
	}
	return err
}

// charge spends the work of going over a value once, but not over what is in it.
func (rt *runtime) charge(v Value) bool {
	n := 1
	switch v := v.(type) {
	case string:
		n += len(v) / 8
	case markup:
		n += len(v) / 8
	case *List:
		n += len(v.Items)
	case *Tuple:
		n += len(v.Items)
	case *Dict:
		n += v.Len()
	case *dictView:
		n += v.dict.Len()
	case *big.Int: // printing, multiplying and dividing are quadratic
		words := v.BitLen() / 64
		n += words + words*words/32
	}
	return rt.spend(n)
}

// chargeArgs charges all arguments of a call.
func (rt *runtime) chargeArgs(a args) {
	for _, v := range a.pos {
		rt.charge(v)
	}
	for _, n := range a.named {
		rt.charge(n.value)
	}
}

// descend is called before the values inside of another are walked over, and
// ascend after that, so that deep nesting cannot use up the stack.
func (rt *runtime) descend() bool {
	if rt == nil {
		return true
	}
	if rt.nested++; rt.nested > maxNesting {
		rt.exhaust()
	}
	return rt.steps >= 0
}

func (rt *runtime) ascend() {
	if rt != nil {
		rt.nested--
	}
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
	if times > 0 {
		rt.spend(n * int(times) / 64)
	}
	return rt.spent(nil)
}

func (rt *runtime) write(s string) error {
	if err := rt.room(len(rt.out) + len(s)); err != nil {
		return err
	}
	rt.spend(len(s) / 64)
	rt.out = append(rt.out, s...)
	return rt.spent(nil)
}

// capture returns what a body writes. It writes behind what is there already and
// is cut off again, so that a macro needs no buffer of its own.
func (rt *runtime) capture(f *frame, body []stmt) (string, control, error) {
	start := len(rt.out)
	c, err := execAll(f, body)
	return rt.cut(start), c, err
}

// cut takes back what was written from a point on.
func (rt *runtime) cut(start int) string {
	rt.spend((len(rt.out) - start) / 64)
	text := string(rt.out[start:])
	rt.out = rt.out[:start]
	return text
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
		if err := f.rt.print(f, x); err != nil {
			return goOn, atLine(s.line, err)
		}
	}
	return goOn, nil
}

// print writes the value of an expression.
func (rt *runtime) print(f *frame, x expr) error {
	if sum, ok := x.(*sumExpr); ok { // its parts need not be joined to be written
		base := len(rt.scratch)
		defer func() { rt.scratch = rt.scratch[:base] }()
		v, joined, err := sum.parts(f)
		if err != nil {
			return err
		}
		if !joined {
			for _, part := range rt.scratch[base:] {
				if err := rt.write(part.(string)); err != nil {
					return err
				}
			}
			return nil
		}
		return rt.printValue(v)
	}
	v, err := x.eval(f)
	if err != nil {
		return err
	}
	return rt.printValue(v)
}

func (rt *runtime) printValue(v Value) error {
	t, err := rt.str(v)
	if err != nil {
		return err
	}
	return rt.write(t)
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
		values, err := f.rt.items(v)
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
	text, c, err := f.rt.capture(inner, s.body)
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
	text, c, err := f.rt.capture(inner, s.body)
	if err != nil || c != goOn {
		return c, err
	}
	v, err := applyFilters(inner, s.filter, text)
	if err == nil {
		if text, err = f.rt.str(v); err == nil {
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
		if text, err = f.rt.str(v); err == nil {
			err = f.rt.write(text)
		}
	}
	return goOn, atLine(s.line, err)
}
