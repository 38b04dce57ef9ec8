package jinja

import "math/big"

// compareTest is a test that compares with its one argument.
func compareTest(op string) testFunc {
	return func(_ *runtime, in Value, a args) (bool, error) {
		p, err := a.bind(1, "other")
		if err != nil {
			return false, err
		}
		return compareOp(op, in, p[0])
	}
}

// kindTest is a test without arguments.
func kindTest(is func(Value) bool) testFunc {
	return func(_ *runtime, in Value, a args) (bool, error) {
		_, err := a.bind(0)
		return is(in), err
	}
}

// modTest tests the rest of a division.
func modTest(want int64) testFunc {
	return func(rt *runtime, in Value, a args) (bool, error) {
		rest, err := binary(rt, "%", in, int64(2))
		return err == nil && equal(rest, want), err
	}
}

// tests are all tests; filter and test ask the tables themselves.
var tests map[string]testFunc

func init() {
	tests = map[string]testFunc{
		"odd":  modTest(1),
		"even": modTest(0),
		"divisibleby": func(rt *runtime, in Value, a args) (bool, error) {
			p, err := a.bind(1, "num")
			if err != nil {
				return false, err
			}
			rest, err := binary(rt, "%", in, p[0])
			return err == nil && equal(rest, int64(0)), err
		},
		"defined":   kindTest(func(v Value) bool { return !isUndefined(v) }),
		"undefined": kindTest(isUndefined),
		"none":      kindTest(func(v Value) bool { return v == nil }),
		"boolean":   kindTest(func(v Value) bool { _, ok := v.(bool); return ok }),
		"true":      kindTest(func(v Value) bool { return v == true }),
		"false":     kindTest(func(v Value) bool { return v == false }),
		"integer": kindTest(func(v Value) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		}),
		"float":  kindTest(func(v Value) bool { _, ok := v.(float64); return ok }),
		"number": kindTest(isNumber),
		"string": kindTest(isString),
		"mapping": kindTest(func(v Value) bool {
			_, ok := v.(*Dict)
			return ok
		}),
		"sequence": kindTest(func(v Value) bool {
			switch v.(type) {
			case string, markup, *List, *Tuple, *Dict, *rangeValue, *undefined:
				return true
			}
			return false
		}),
		"iterable": kindTest(func(v Value) bool {
			switch v.(type) {
			case string, markup, *List, *Tuple, *Dict, *rangeValue, *dictView, *generator, *undefined, *loopValue:
				return true
			}
			return false
		}),
		"callable": kindTest(func(v Value) bool {
			switch v.(type) {
			case *function, *macroValue, *loopValue, *undefined:
				return true
			}
			return false
		}),
		"escaped": kindTest(func(v Value) bool { _, ok := v.(markup); return ok }),
		"lower":   func(_ *runtime, in Value, _ args) (bool, error) { s, err := str(in); return isLower(s), err },
		"upper":   func(_ *runtime, in Value, _ args) (bool, error) { s, err := str(in); return isUpper(s), err },
		"sameas":  sameAs,
		"in": func(_ *runtime, in Value, a args) (bool, error) {
			p, err := a.bind(1, "seq")
			if err != nil {
				return false, err
			}
			return contains(p[0], in)
		},
		"filter": func(_ *runtime, in Value, _ args) (bool, error) {
			s, ok := text(in)
			return ok && filters[s] != nil, nil
		},
		"test": func(_ *runtime, in Value, _ args) (bool, error) {
			s, ok := text(in)
			return ok && tests[s] != nil, nil
		},
	}
	for op, names := range map[string][]string{
		"==": {"==", "eq", "equalto"}, "!=": {"!=", "ne"}, ">": {">", "gt", "greaterthan"}, ">=": {">=", "ge"},
		"<": {"<", "lt", "lessthan"}, "<=": {"<=", "le"},
	} {
		for _, name := range names {
			tests[name] = compareTest(op)
		}
	}
}

// sameAs is Python's is, as far as a value has an identity here: constants and
// small integers are the same object, containers only if they are.
func sameAs(_ *runtime, in Value, a args) (bool, error) {
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
	return in == p[0], nil
}
