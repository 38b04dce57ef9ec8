package reward

import (
	"errors"
	"math/big"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// identical reports whether two expressions have one value, whatever their
// letters stand for. It computes both at a row of points: exactly as long as
// only rational numbers occur, and otherwise to more digits than the expressions
// can tell apart. Where it cannot compute, they are not identical.
func identical(a, b string) bool {
	if len(a)+len(b) > maxExpression || !fair(a+"-"+b) {
		return false
	}
	points := 0
	for _, p := range samples {
		e := evaluator{precision: uint(128 + 8*(len(a)+len(b))), x: p.x, y: p.y, pi: p.pi, letters: letters(a + b)}
		va, errA := e.eval(a)
		vb, errB := e.eval(b)
		if errors.Is(errA, errUndefined) || errors.Is(errB, errUndefined) {
			continue
		}
		if errA != nil || errB != nil || !e.equal(va, vb) {
			return false
		}
		points++
	}
	return points >= 3
}

// maxExpression bounds what is computed, in bytes.
const maxExpression = 500

var longExponent = regexp.MustCompile(`\^[0-9]+\^|\^[0-9][0-9]+|\^\(`)

// fair tells what is fair and quick to compute: few letters, and small
// exponents.
func fair(expr string) bool {
	return len(letters(expr)) <= 2 && !longExponent.MatchString(expr)
}

// letters lists the letters of an expression, without the name sqrt.
func letters(expr string) []rune {
	var out []rune
	for _, r := range strings.ReplaceAll(expr, "sqrt", "") {
		if unicode.IsLetter(r) && !strings.ContainsRune(string(out), r) {
			out = append(out, r)
		}
	}
	return out
}

// samples are the points at which expressions are compared: what the first and
// the second letter stand for, and what pi does. Pi satisfies no equation with
// rational coefficients, so an identity holds for it only if it holds for any
// positive number.
var samples = []struct{ x, y, pi int64 }{
	{2, 3, 5}, {3, 2, 7}, {5, -3, 11}, {-7, 4, 3}, {101, 53, 13}, {-1009, 97, 17}, {12345, -6789, 101}, {-3, -11, 97}, {104729, 7919, 15485863},
}

var (
	// errUndefined reports a point where an expression has no value.
	errUndefined = errors.New("no value at this point")
	errNoNumber  = errors.New("not an expression that can be computed")
)

// maxBits bounds the numbers on the way.
const maxBits = 1 << 15

// value is a number: exact while rat is set, and else root.
type value struct {
	rat  *big.Rat
	root *big.Float
}

// evaluator computes one expression at one point.
type evaluator struct {
	precision uint
	x, y, pi  int64
	letters   []rune

	rest  string
	depth int
}

func (e *evaluator) eval(expr string) (value, error) {
	e.rest, e.depth = expr, 0
	v, err := e.sum()
	if err == nil && e.rest != "" {
		return v, errNoNumber
	}
	return v, err
}

func (e *evaluator) float(v value) *big.Float {
	if v.rat != nil {
		return e.newFloat().SetRat(v.rat)
	}
	return v.root
}

func (e *evaluator) newFloat() *big.Float { return new(big.Float).SetPrec(e.precision) }

// equal compares exactly, or to half of the digits.
func (e *evaluator) equal(a, b value) bool {
	if a.rat != nil && b.rat != nil {
		return a.rat.Cmp(b.rat) == 0
	}
	fa, fb := e.float(a), e.float(b)
	diff := e.newFloat().Sub(fa, fb)
	if diff.Sign() == 0 {
		return true
	}
	scale := max(fa.MantExp(nil), fb.MantExp(nil), 0)
	return diff.MantExp(nil) < scale-int(e.precision)/2
}

// take takes one of the prefixes off what is left.
func (e *evaluator) take(prefixes ...string) string {
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(e.rest, p); ok {
			e.rest = rest
			return p
		}
	}
	return ""
}

// sum is product { ("+" | "-") product }.
func (e *evaluator) sum() (value, error) {
	if e.depth++; e.depth > maxDepth {
		return value{}, errNoNumber
	}
	defer func() { e.depth-- }()
	v, err := e.product()
	for err == nil {
		op := e.take("+", "-")
		if op == "" {
			break
		}
		var w value
		if w, err = e.product(); err == nil {
			v, err = e.combine(op, v, w)
		}
	}
	return v, err
}

// product is signed { [ "*" | "/" ] signed }: factors may stand side by side.
func (e *evaluator) product() (value, error) {
	v, err := e.signed()
	for err == nil && e.rest != "" {
		op := "*"
		if strings.HasPrefix(e.rest, "**") {
			return v, errNoNumber
		}
		if explicit := e.take("*", "/"); explicit != "" {
			op = explicit
		} else if r, _ := utf8.DecodeRuneInString(e.rest); r != '(' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			break
		}
		var w value
		if w, err = e.signed(); err == nil {
			v, err = e.combine(op, v, w)
		}
	}
	return v, err
}

// signed is a power with signs before it: -2^2 is -4.
func (e *evaluator) signed() (value, error) {
	negative := false
	for {
		switch e.take("-", "+") {
		case "-":
			negative = !negative
			continue
		case "+":
			continue
		}
		break
	}
	v, err := e.power()
	if err == nil && negative {
		return e.combine("-", value{rat: new(big.Rat)}, v)
	}
	return v, err
}

// power is atom [ "^" exponent ], where the exponent is a small integer or stands
// for one.
func (e *evaluator) power() (value, error) {
	v, err := e.atom()
	if err != nil || e.take("^") == "" {
		return v, err
	}
	negative := e.take("-") != ""
	w, err := e.power()
	if err != nil {
		return w, err
	}
	if w.rat == nil || !w.rat.IsInt() || !w.rat.Num().IsInt64() {
		return value{}, errNoNumber
	}
	n := w.rat.Num().Int64()
	if n > 64 || n < -64 {
		return value{}, errUndefined
	}
	if negative {
		n = -n
	}
	out := value{rat: big.NewRat(1, 1)}
	for range max(n, -n) {
		if out, err = e.combine("*", out, v); err != nil {
			return out, err
		}
	}
	if n < 0 {
		return e.combine("/", value{rat: big.NewRat(1, 1)}, out)
	}
	return out, nil
}

var numeral = regexp.MustCompile(`^(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?`)

func (e *evaluator) atom() (value, error) {
	switch {
	case e.take("(") != "":
		v, err := e.sum()
		if err == nil && e.take(")") == "" {
			err = errNoNumber
		}
		return v, err
	case e.take("sqrt") != "":
		v, err := e.atom()
		if err != nil {
			return v, err
		}
		return e.sqrt(v)
	case e.take("pi") != "":
		return value{rat: big.NewRat(e.pi, 1)}, nil
	}
	if digits := numeral.FindString(e.rest); digits != "" {
		e.rest = e.rest[len(digits):]
		v, ok := new(big.Rat).SetString(digits)
		if !ok {
			return value{}, errNoNumber
		}
		return value{rat: v}, nil
	}
	r, n := utf8.DecodeRuneInString(e.rest)
	if n == 0 || !unicode.IsLetter(r) {
		return value{}, errNoNumber
	}
	e.rest = e.rest[n:]
	for i, letter := range e.letters {
		if letter == r {
			return value{rat: big.NewRat([2]int64{e.x, e.y}[i], 1)}, nil
		}
	}
	return value{}, errNoNumber
}

func (e *evaluator) combine(op string, a, b value) (value, error) {
	if op == "/" && (b.rat != nil && b.rat.Sign() == 0 || b.rat == nil && b.root.Sign() == 0) {
		return value{}, errUndefined
	}
	if a.rat != nil && b.rat != nil {
		v := new(big.Rat)
		switch op {
		case "+":
			v.Add(a.rat, b.rat)
		case "-":
			v.Sub(a.rat, b.rat)
		case "*":
			v.Mul(a.rat, b.rat)
		default:
			v.Quo(a.rat, b.rat)
		}
		if v.Num().BitLen() > maxBits || v.Denom().BitLen() > maxBits {
			return value{}, errUndefined
		}
		return value{rat: v}, nil
	}
	v, fa, fb := e.newFloat(), e.float(a), e.float(b)
	switch op {
	case "+":
		v.Add(fa, fb)
	case "-":
		v.Sub(fa, fb)
	case "*":
		v.Mul(fa, fb)
	default:
		v.Quo(fa, fb)
	}
	// Numbers of this size are no answer, and infinite ones have no difference.
	if v.IsInf() || v.MantExp(nil) > maxBits {
		return value{}, errUndefined
	}
	return value{root: v}, nil
}

// sqrt is exact where the root is rational.
func (e *evaluator) sqrt(v value) (value, error) {
	if e.float(v).Sign() < 0 {
		return value{}, errUndefined
	}
	if v.rat != nil {
		num, den := new(big.Int).Sqrt(v.rat.Num()), new(big.Int).Sqrt(v.rat.Denom())
		root := new(big.Rat).SetFrac(num, den)
		if new(big.Rat).Mul(root, root).Cmp(v.rat) == 0 {
			return value{rat: root}, nil
		}
	}
	return value{root: e.newFloat().Sqrt(e.float(v))}, nil
}
