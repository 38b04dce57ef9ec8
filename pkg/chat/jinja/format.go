package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxWidth bounds the widths a format can ask for.
const maxWidth = 1 << 20

// format is the % operator of strings.
func format(rt *runtime, l, r Value) (Value, error) {
	layout, _ := text(l)
	rt.charge(l)
	values := []Value{r}
	named, isDict := r.(*Dict)
	if t, ok := r.(*Tuple); ok {
		values = t.Items
	}
	used, mapped := 0, false
	next := func() (Value, error) {
		if used >= len(values) {
			return nil, typeError("not enough arguments for format string")
		}
		used++
		return values[used-1], nil
	}
	var b strings.Builder
	for i := 0; i < len(layout); i++ {
		if layout[i] != '%' {
			b.WriteByte(layout[i])
			continue
		}
		i++
		spec, n, err := percentSpec(layout[i:], next)
		if err != nil {
			return nil, err
		}
		i += n
		if spec.verb == '%' {
			b.WriteByte('%')
			continue
		}
		var v Value
		if spec.hasKey {
			if !isDict {
				return nil, typeError("format requires a mapping")
			}
			mapped = true
			var found bool
			if v, found = named.Get(spec.key); !found {
				return nil, fmt.Errorf("KeyError: %s", quote(spec.key))
			}
		} else if v, err = next(); err != nil {
			return nil, err
		}
		s, err := spec.print(rt, v)
		if err != nil {
			return nil, err
		}
		rt.spend(len(s) / 8) // padding and precision make much of little
		b.WriteString(s)
		if err := rt.room(b.Len()); err != nil {
			return nil, err
		}
	}
	if used < len(values) && !mapped && !subscriptable(r) {
		return nil, typeError("not all arguments converted during string formatting")
	}
	if _, ok := l.(markup); ok {
		return nil, typeError("Markup formatting is not supported")
	}
	return b.String(), nil
}

// subscriptable tells whether a single argument passes for a mapping, of which not
// everything needs to be used.
func subscriptable(v Value) bool {
	switch v.(type) {
	case *Dict, *List, *undefined, *rangeValue:
		return true
	}
	return false
}

type percent struct {
	key                            string
	hasKey                         bool
	left, zero, plus, space, sharp bool
	width, prec                    int
	verb                           byte
}

// percentSpec parses what follows a percent sign; n is the offset of the verb.
func percentSpec(s string, next func() (Value, error)) (spec percent, n int, err error) {
	spec.prec = -1
	if strings.HasPrefix(s, "(") {
		end := strings.IndexByte(s, ')')
		if end < 0 {
			return spec, 0, valueError("incomplete format key")
		}
		spec.key, spec.hasKey, n = s[1:end], true, end+1
	}
	for ; n < len(s) && strings.IndexByte("-+ #0", s[n]) >= 0; n++ {
		switch s[n] {
		case '-':
			spec.left = true
		case '+':
			spec.plus = true
		case ' ':
			spec.space = true
		case '#':
			spec.sharp = true
		case '0':
			spec.zero = true
		}
	}
	number := func() (int, error) {
		if n < len(s) && s[n] == '*' {
			n++
			v, err := next()
			if err != nil {
				return 0, err
			}
			w, ok := asInt(v)
			if !ok || w > maxWidth || w < -maxWidth {
				return 0, typeError("* wants int")
			}
			return int(w), nil
		}
		start := n
		for n < len(s) && decimal(s[n]) {
			n++
		}
		if start == n {
			return 0, nil
		}
		w, err := strconv.Atoi(s[start:n])
		if err != nil || w > maxWidth {
			return 0, fmt.Errorf("%w: a width of %s", ErrLimit, s[start:n])
		}
		return w, nil
	}
	if spec.width, err = number(); err != nil {
		return spec, n, err
	}
	if spec.width < 0 {
		spec.left, spec.width = true, -spec.width
	}
	if n < len(s) && s[n] == '.' {
		n++
		if spec.prec, err = number(); err != nil {
			return spec, n, err
		}
		spec.prec = max(spec.prec, 0)
	}
	for n < len(s) && strings.IndexByte("hlL", s[n]) >= 0 {
		n++
	}
	if n >= len(s) {
		return spec, n, valueError("incomplete format")
	}
	spec.verb = s[n]
	return spec, n, nil
}

func (p *percent) print(rt *runtime, v Value) (string, error) {
	var s string
	var err error
	switch p.verb {
	case 's':
		s, err = rt.str(v)
	case 'r', 'a':
		s, err = rt.repr(v)
	case 'c':
		var isText bool
		if s, isText = text(v); !isText || utf8.RuneCountInString(s) != 1 {
			n, ok := asInt(v)
			if !ok || n < 0 || n > utf8.MaxRune {
				return "", typeError("%%c requires int or char")
			}
			s = string(rune(n))
		}
	case 'd', 'i', 'u', 'x', 'X', 'o':
		return p.printInt(rt, v)
	case 'f', 'F', 'e', 'E', 'g', 'G':
		return p.printFloat(v)
	default:
		return "", valueError("unsupported format character '%c'", p.verb)
	}
	if err != nil {
		return "", err
	}
	if p.prec >= 0 && p.prec < utf8.RuneCountInString(s) {
		s = string([]rune(s)[:p.prec])
	}
	return p.pad("", s, false), nil
}

func (p *percent) printInt(rt *runtime, v Value) (string, error) {
	if f, ok := v.(float64); ok && strings.IndexByte("diu", p.verb) >= 0 {
		n, err := intFilter(rt, f, args{})
		if err != nil {
			return "", err
		}
		v = n
	}
	b, ok := bigOf(v)
	if !ok {
		return "", typeError("%%%c format: a real number is required, not %s", p.verb, typeName(v))
	}
	base, prefix := 10, ""
	switch p.verb {
	case 'x', 'X':
		base, prefix = 16, "0"+string(p.verb)
	case 'o':
		base, prefix = 8, "0o"
	}
	s := strings.TrimPrefix(b.Text(base), "-")
	if p.verb == 'X' {
		s = strings.ToUpper(s)
	}
	if len(s) < p.prec {
		s = strings.Repeat("0", p.prec-len(s)) + s
	}
	if !p.sharp {
		prefix = ""
	}
	return p.pad(p.sign(b.Sign() < 0)+prefix, s, true), nil
}

func (p *percent) printFloat(v Value) (string, error) {
	f, ok := floatOf(v)
	if !ok {
		return "", typeError("must be real number, not %s", typeName(v))
	}
	prec := p.prec
	if prec < 0 {
		prec = 6
	}
	return p.pad(p.sign(math.Signbit(f) && !math.IsNaN(f)), formatFloat(math.Abs(f), p.verb, prec, p.sharp), true), nil
}

// formatFloat prints a float that is not negative with a C verb.
func formatFloat(f float64, verb byte, prec int, sharp bool) string {
	var s string
	switch {
	case math.IsNaN(f):
		s = "nan"
	case math.IsInf(f, 0):
		s = "inf"
	case verb|0x20 == 'g':
		prec = max(prec, 1)
		_, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'e', prec-1, 64), "e")
		exp, _ := strconv.Atoi(exponent)
		if exp < -4 || exp >= prec {
			mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'e', prec-1, 64), "e")
			if strings.Contains(mantissa, ".") && !sharp {
				mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
			}
			s = mantissa + "e" + exponent
		} else if s = strconv.FormatFloat(f, 'f', prec-1-exp, 64); strings.Contains(s, ".") && !sharp {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
	default:
		s = strconv.FormatFloat(f, verb|0x20, prec, 64)
		if prec == 0 && sharp {
			s += "."
		}
	}
	if verb < 'a' {
		s = strings.ToUpper(s)
	}
	return s
}

func (p *percent) sign(negative bool) string {
	switch {
	case negative:
		return "-"
	case p.plus:
		return "+"
	case p.space:
		return " "
	}
	return ""
}

func (p *percent) pad(sign, s string, numeric bool) string {
	missing := p.width - utf8.RuneCountInString(sign) - utf8.RuneCountInString(s)
	switch {
	case missing <= 0:
		return sign + s
	case p.left:
		return sign + s + strings.Repeat(" ", missing)
	case p.zero && numeric:
		return sign + strings.Repeat("0", missing) + s
	}
	return strings.Repeat(" ", missing) + sign + s
}

// formatFilter is the % operator as a filter.
func formatFilter(rt *runtime, in Value, a args) (Value, error) {
	if len(a.pos) > 0 && len(a.named) > 0 {
		return nil, fmt.Errorf("FilterArgumentError: can't handle positional and keyword arguments at the same time")
	}
	s, err := rt.str(in)
	if err != nil {
		return nil, err
	}
	if len(a.named) == 0 {
		return format(rt, s, &Tuple{a.pos})
	}
	d := NewDict(len(a.named))
	for _, n := range a.named {
		d.Set(n.name, n.value)
	}
	return format(rt, s, d)
}

// formatBraces is str.format with plain fields: {}, {0} and {name}, without
// attributes, conversions or format specifications.
func formatBraces(rt *runtime, s string, a args) (Value, error) {
	var b strings.Builder
	auto := int64(0)
	rt.charge(s)
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '{' && c != '}' {
			b.WriteByte(c)
			continue
		}
		if i+1 < len(s) && s[i+1] == c {
			b.WriteByte(c)
			i++
			continue
		}
		end := strings.IndexByte(s[i:], '}')
		if c == '}' || end < 0 {
			return nil, valueError("Single '%c' encountered in format string", c)
		}
		field := s[i+1 : i+end]
		rt.spend(1 + len(a.named))
		i += end
		v, found := Value(nil), false
		if field == "" {
			field = strconv.FormatInt(auto, 10)
			auto++
		}
		if n, err := strconv.ParseInt(field, 10, 64); err == nil {
			if v, found = itemAt(a.pos, n); !found {
				return nil, fmt.Errorf("IndexError: Replacement index %d out of range for positional args tuple", n)
			}
		} else if strings.ContainsAny(field, ".[!:{") {
			return nil, valueError("the format field {%s} is not supported", field)
		}
		for _, n := range a.named {
			if n.name == field {
				v, found = n.value, true
			}
		}
		if !found {
			return nil, fmt.Errorf("KeyError: %s", quote(field))
		}
		t, err := rt.str(v)
		if err != nil {
			return nil, err
		}
		rt.spend(len(t) / 64)
		b.WriteString(t)
		if err := rt.room(b.Len()); err != nil {
			return nil, err
		}
	}
	return b.String(), nil
}
