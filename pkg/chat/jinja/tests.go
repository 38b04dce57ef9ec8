package jinja

import "math/big"

// compareTest is a test that compares with its one argument.
func compareTest(op string) testFunc {
	return func(rt *runtime, in Value, a args) (bool, error) {
		p, err := a.bind(1, "other")
		if err != nil {
			return false, err
		}
		return rt.compareOp(op, in, p[0])
	}
}

// kindTest is a test without arguments.
func kindTest(is func(Value) bool) testFunc {
	return func(rt *runtime, in Value, a args) (bool, error) {
		_, err := a.bind(0)
		return is(in), err
	}
}

// modTest tests the rest of a division.
func modTest(want int64) testFunc {
	return func(rt *runtime, in Value, a args) (bool, error) {
		rest, err := binary(rt, "%", in, int64(2))
		return err == nil && rt.equal(rest, want), err
	}
}

// testNamed returns the test of a name, or nil.
func testNamed(name string) testFunc {
	switch name {
	case "odd":
		return modTest(1)
	case "even":
		return modTest(0)
	case "divisibleby":
		return divisibleBy
	case "defined":
		return kindTest(func(v Value) bool { return !isUndefined(v) })
	case "undefined":
		return kindTest(isUndefined)
	case "none":
		return kindTest(func(v Value) bool { return v == nil })
	case "boolean":
		return kindTest(func(v Value) bool { _, ok := v.(bool); return ok })
	case "true":
		return kindTest(func(v Value) bool { return v == true })
	case "false":
		return kindTest(func(v Value) bool { return v == false })
	case "integer":
		return kindTest(isInteger)
	case "float":
		return kindTest(func(v Value) bool { _, ok := v.(float64); return ok })
	case "number":
		return kindTest(isNumber)
	case "string":
		return kindTest(isString)
	case "mapping":
		return kindTest(func(v Value) bool { _, ok := v.(*Dict); return ok })
	case "sequence":
		return kindTest(isSequence)
	case "iterable":
		return kindTest(isIterable)
	case "callable":
		return kindTest(isCallable)
	case "escaped":
		return kindTest(func(v Value) bool { _, ok := v.(markup); return ok })
	case "lower":
		return textTest(isLower)
	case "upper":
		return textTest(isUpper)
	case "sameas":
		return sameAs
	case "in":
		return inTest
	case "filter":
		return kindTest(func(v Value) bool { s, ok := text(v); return ok && filterNamed(s) != nil })
	case "test":
		return kindTest(func(v Value) bool { s, ok := text(v); return ok && testNamed(s) != nil })
	case "==", "eq", "equalto":
		return compareTest("==")
	case "!=", "ne":
		return compareTest("!=")
	case ">", "gt", "greaterthan":
		return compareTest(">")
	case ">=", "ge":
		return compareTest(">=")
	case "<", "lt", "lessthan":
		return compareTest("<")
	case "<=", "le":
		return compareTest("<=")
	}
	return nil
}

func isInteger(v Value) bool {
	switch v.(type) {
	case int64, *big.Int:
		return true
	}
	return false
}

func isSequence(v Value) bool {
	switch v.(type) {
	case string, markup, *List, *Tuple, *Dict, *rangeValue, *undefined:
		return true
	}
	return false
}

func isIterable(v Value) bool {
	switch v.(type) {
	case *dictView, *generator, *loopValue:
		return true
	}
	return isSequence(v)
}

func isCallable(v Value) bool {
	switch v.(type) {
	case *function, *macroValue, *loopValue, *undefined:
		return true
	}
	return false
}

func divisibleBy(rt *runtime, in Value, a args) (bool, error) {
	p, err := a.bind(1, "num")
	if err != nil {
		return false, err
	}
	rest, err := binary(rt, "%", in, p[0])
	return err == nil && rt.equal(rest, int64(0)), err
}

func inTest(rt *runtime, in Value, a args) (bool, error) {
	p, err := a.bind(1, "seq")
	if err != nil {
		return false, err
	}
	return rt.contains(p[0], in)
}

// textTest is a test of what a value prints as.
func textTest(is func(string) bool) testFunc {
	return func(rt *runtime, in Value, a args) (bool, error) {
		if _, err := a.bind(0); err != nil {
			return false, err
		}
		s, err := rt.str(in)
		if err == nil && !rt.spend(len(s)/8) {
			err = rt.spent(nil)
		}
		return err == nil && is(s), err
	}
}

// sameAs is Python's is, as far as a value has an identity here: constants and
// small integers are the same object, containers only if they are.
func sameAs(rt *runtime, in Value, a args) (bool, error) {
	p, err := a.bind(1, "other")
	if err != nil {
		return false, err
	}
	switch v := in.(type) {
	case *big.Int, float64:
		return false, nil
	case int64:
		other, ok := p[0].(int64)
		return ok && v == other && -5 <= v && v <= 256, nil
	}
	if s, ok := text(in); ok {
		rt.spend(len(s) / 64)
	}
	return in == p[0], nil
}
