package jinja

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// filterFunc is a filter; testFunc is a test.
type (
	filterFunc func(rt *runtime, in Value, a args) (Value, error)
	testFunc   func(rt *runtime, in Value, a args) (bool, error)
)

var filters map[string]filterFunc

// The filters call each other by name, so the table is filled when it exists.
func init() {
	filters = map[string]filterFunc{
		"abs":         absFilter,
		"attr":        attrFilter,
		"batch":       batchFilter,
		"capitalize":  textFilter(capitalize),
		"center":      centerFilter,
		"count":       lengthFilter,
		"d":           defaultFilter,
		"default":     defaultFilter,
		"dictsort":    dictSortFilter,
		"e":           escapeFilter,
		"escape":      escapeFilter,
		"first":       firstFilter,
		"float":       floatFilter,
		"forceescape": forceEscapeFilter,
		"format":      formatFilter,
		"groupby":     groupByFilter,
		"indent":      indentFilter,
		"int":         intFilter,
		"items":       itemsFilter,
		"join":        joinFilter,
		"last":        lastFilter,
		"length":      lengthFilter,
		"list":        listFilter,
		"lower":       textFilter(lower),
		"map":         mapFilter,
		"max":         extremeFilter(">"),
		"min":         extremeFilter("<"),
		"reject":      selectFilter(false, false),
		"rejectattr":  selectFilter(true, false),
		"replace":     replaceFilter,
		"reverse":     reverseFilter,
		"round":       roundFilter,
		"safe":        safeFilter,
		"select":      selectFilter(false, true),
		"selectattr":  selectFilter(true, true),
		"slice":       sliceFilter,
		"sort":        sortFilter,
		"string":      stringFilter,
		"sum":         sumFilter,
		"title":       textFilter(titleFilter),
		"tojson":      toJSON,
		"trim":        trimFilter,
		"truncate":    truncateFilter,
		"unique":      uniqueFilter,
		"upper":       textFilter(upper),
		"urlencode":   urlEncodeFilter,
		"wordcount":   wordCountFilter,
		"xmlattr":     xmlAttrFilter,
	}
}

// textFilter is a filter of one string to another. Escaped text stays escaped.
func textFilter(f func(string) string) filterFunc {
	return func(_ *runtime, in Value, a args) (Value, error) {
		if _, err := a.bind(0); err != nil {
			return nil, err
		}
		s, err := str(in)
		if err != nil {
			return nil, err
		}
		if _, ok := in.(markup); ok {
			return markup(f(s)), nil
		}
		return f(s), nil
	}
}

func absFilter(_ *runtime, in Value, a args) (Value, error) {
	if u, ok := in.(*undefined); ok {
		return nil, u.err()
	}
	switch n := in.(type) {
	case float64:
		return math.Abs(n), nil
	default:
		b, ok := bigOf(n)
		if !ok {
			return nil, typeError("bad operand type for abs(): '%s'", typeName(in))
		}
		return normInt(new(big.Int).Abs(b)), nil
	}
}

func attrFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(1, "name")
	if err != nil {
		return nil, err
	}
	name, err := str(p[0])
	if err != nil {
		return nil, err
	}
	if v, ok := attribute(in, name); ok {
		return v, nil
	}
	return noAttribute(in, name), nil
}

func listFilter(_ *runtime, in Value, a args) (Value, error) {
	list, err := items(in)
	return &List{slices.Clone(list)}, err
}

func batchFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(1, "linecount", "fill_with")
	if err != nil {
		return nil, err
	}
	list, err := items(in)
	if err != nil {
		return nil, err
	}
	size, ok := asInt(p[0])
	if !ok {
		return nil, typeError("the line count must be an integer")
	}
	var out []Value
	var row []Value
	for _, item := range list {
		if int64(len(row)) == size {
			out = append(out, &List{row})
			row = nil
		}
		row = append(row, item)
	}
	if len(row) > 0 {
		if fill := or(p[1], nil); fill != nil {
			if size > maxRange {
				return nil, ErrLimit
			}
			for int64(len(row)) < size {
				row = append(row, fill)
			}
		}
		out = append(out, &List{row})
	}
	return &generator{out}, nil
}

func sliceFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(1, "slices", "fill_with")
	if err != nil {
		return nil, err
	}
	list, err := items(in)
	if err != nil {
		return nil, err
	}
	n, ok := asInt(p[0])
	switch {
	case !ok:
		return nil, typeError("the number of slices must be an integer")
	case n == 0:
		return nil, errDivision()
	case n > maxRange:
		return nil, ErrLimit
	}
	fill := or(p[1], nil)
	per, extra := int64(len(list))/max(n, 1), int64(len(list))%max(n, 1)
	var out []Value
	at := int64(0)
	for i := range n {
		size := per
		if i < extra {
			size++
		}
		part := slices.Clone(list[at : at+size])
		at += size
		if fill != nil && i >= extra {
			part = append(part, fill)
		}
		out = append(out, &List{part})
	}
	return &generator{out}, nil
}

func centerFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "width")
	if err != nil {
		return nil, err
	}
	s, err := str(in)
	if err != nil {
		return nil, err
	}
	width, ok := asInt(or(p[0], int64(80)))
	if !ok {
		return nil, typeError("the width must be an integer")
	}
	return padded(rt, s, "center", width, " ")
}

func lengthFilter(_ *runtime, in Value, a args) (Value, error) {
	if _, err := a.bind(0); err != nil {
		return nil, err
	}
	return length(in)
}

// length is Python's len().
func length(v Value) (Value, error) {
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v)), nil
	case markup:
		return int64(utf8.RuneCountInString(string(v))), nil
	case *List:
		return int64(len(v.Items)), nil
	case *Tuple:
		return int64(len(v.Items)), nil
	case *Dict:
		return int64(v.Len()), nil
	case *dictView:
		return int64(v.dict.Len()), nil
	case *rangeValue:
		return v.len(), nil
	case *undefined:
		return int64(0), nil
	case *loopValue:
		return int64(len(v.list)), nil
	}
	return nil, typeError("object of type '%s' has no len()", typeName(v))
}

func defaultFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	if isUndefined(in) || truth(or(p[1], false)) && !truth(in) {
		return or(p[0], ""), nil
	}
	return in, nil
}

// foldCase is how sorting sees strings unless it is told to mind case.
func foldCase(v Value) Value {
	if s, ok := text(v); ok {
		return lower(s)
	}
	return v
}

// sortStable sorts by key as Python's sorted does.
func sortStable(list []Value, key func(Value) (Value, error), reverse bool) ([]Value, error) {
	type pair struct{ key, value Value }
	pairs := make([]pair, len(list))
	for i, v := range list {
		k, err := key(v)
		if err != nil {
			return nil, err
		}
		pairs[i] = pair{k, v}
	}
	var failed error
	slices.SortStableFunc(pairs, func(a, b pair) int {
		c, err := compare(a.key, b.key, "<")
		if err != nil && failed == nil {
			failed = err
		}
		if c == unordered {
			c = 0
		}
		if reverse {
			return -c
		}
		return c
	})
	out := make([]Value, len(pairs))
	for i, p := range pairs {
		out[i] = p.value
	}
	return out, failed
}

func dictSortFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	by, _ := text(or(p[1], "key"))
	if by != "key" && by != "value" {
		return nil, valueError("you can only sort by either \"key\" or \"value\"")
	}
	d, ok := in.(*Dict)
	if !ok {
		return nil, typeError("'%s' object has no attribute 'items'", typeName(in))
	}
	at := 0
	if by == "value" {
		at = 1
	}
	list, err := sortStable((&dictView{d, "items"}).items(), func(v Value) (Value, error) {
		k := v.(*Tuple).Items[at]
		if truth(or(p[0], false)) {
			return k, nil
		}
		return foldCase(k), nil
	}, truth(or(p[2], false)))
	return &List{list}, err
}

func escapeFilter(_ *runtime, in Value, a args) (Value, error) {
	if m, ok := in.(markup); ok {
		return m, nil
	}
	s, err := str(in)
	return markup(escapeHTML(s)), err
}

func forceEscapeFilter(_ *runtime, in Value, a args) (Value, error) {
	s, err := str(in)
	return markup(escapeHTML(s)), err
}

func safeFilter(_ *runtime, in Value, a args) (Value, error) {
	s, err := str(in)
	return markup(s), err
}

func stringFilter(_ *runtime, in Value, a args) (Value, error) {
	if m, ok := in.(markup); ok {
		return m, nil
	}
	return str(in)
}

func firstFilter(_ *runtime, in Value, a args) (Value, error) {
	list, err := items(in)
	if err != nil {
		return nil, err
	}
	if g, ok := in.(*generator); ok && len(list) > 0 {
		g.items = list[1:]
	}
	if len(list) == 0 {
		return &undefined{"No first item, sequence was empty."}, nil
	}
	return list[0], nil
}

func lastFilter(_ *runtime, in Value, a args) (Value, error) {
	if g, ok := in.(*generator); ok {
		return nil, typeError("'%s' object is not reversible", typeName(g))
	}
	list, err := items(in)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return &undefined{"No last item, sequence was empty."}, nil
	}
	return list[len(list)-1], nil
}

func reverseFilter(_ *runtime, in Value, a args) (Value, error) {
	if s, ok := text(in); ok {
		r := []rune(s)
		slices.Reverse(r)
		return string(r), nil
	}
	list, err := items(in)
	if err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	slices.Reverse(list)
	return &generator{list}, nil
}

func intFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "default", "base")
	if err != nil {
		return nil, err
	}
	fallback := or(p[0], int64(0))
	base, ok := asInt(or(p[1], int64(10)))
	if !ok || base != 0 && (base < 2 || base > 36) {
		return fallback, nil
	}
	toInt := func(f float64) (Value, bool) {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, false
		}
		b, _ := big.NewFloat(math.Trunc(f)).Int(nil)
		return normInt(b), true
	}
	switch v := in.(type) {
	case *undefined:
		return nil, v.err()
	case float64:
		if math.IsInf(v, 0) {
			return nil, errInfinite()
		}
		if n, ok := toInt(v); ok {
			return n, nil
		}
		return fallback, nil
	case string, markup:
		s, _ := text(v)
		if n, ok := parseInt(s, int(base)); ok {
			return n, nil
		}
		if f, ok := parseFloat(s); ok {
			if n, ok := toInt(f); ok {
				return n, nil
			}
		}
		return fallback, nil
	}
	if b, ok := bigOf(in); ok {
		return normInt(b), nil
	}
	return fallback, nil
}

func floatFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "default")
	if err != nil {
		return nil, err
	}
	fallback := or(p[0], 0.0)
	if u, ok := in.(*undefined); ok {
		return nil, u.err()
	}
	if s, ok := text(in); ok {
		if f, ok := parseFloat(s); ok {
			return f, nil
		}
		return fallback, nil
	}
	if f, ok := floatOf(in); ok {
		return f, nil
	}
	return fallback, nil
}

// roundHalfEven rounds to a number of digits as Python's round does.
func roundHalfEven(f float64, digits int64) float64 {
	if digits > 300 || math.IsInf(f, 0) || math.IsNaN(f) {
		return f
	}
	if digits < -310 {
		return math.Copysign(0, f)
	}
	exact := new(big.Rat).SetFloat64(f)
	scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(abs64(digits)), nil))
	if digits < 0 {
		scale.Inv(scale)
	}
	scaled := new(big.Rat).Mul(exact, scale)
	quotient, rest := new(big.Int).QuoRem(scaled.Num(), scaled.Denom(), new(big.Int))
	rest.Abs(rest).Lsh(rest, 1)
	if c := rest.Cmp(scaled.Denom()); c > 0 || c == 0 && quotient.Bit(0) == 1 {
		quotient.Add(quotient, big.NewInt(int64(scaled.Sign())))
	}
	out, _ := new(big.Rat).Quo(new(big.Rat).SetInt(quotient), scale).Float64()
	if out == 0 {
		return math.Copysign(0, f)
	}
	return out
}

func abs64(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

func roundFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "precision", "method")
	if err != nil {
		return nil, err
	}
	digits, ok := asInt(or(p[0], int64(0)))
	if !ok {
		return nil, typeError("'%s' object cannot be interpreted as an integer", typeName(p[0]))
	}
	how, _ := text(or(p[1], "common"))
	if u, ok := in.(*undefined); ok {
		return nil, u.err()
	}
	if !isNumber(in) {
		return nil, typeError("type %s doesn't define __round__ method", typeName(in))
	}
	f, isFloat := in.(float64)
	switch how {
	case "common":
		if isFloat {
			return roundHalfEven(f, digits), nil
		}
		return roundInt(in, digits)
	case "ceil", "floor":
		power, err := arith("**", int64(10), digits)
		if err != nil {
			return nil, err
		}
		scaled, err := arith("*", in, power)
		if err != nil {
			return nil, err
		}
		n, isFloat := scaled.(float64)
		if isFloat {
			if math.IsInf(n, 0) || math.IsNaN(n) {
				return nil, errInfinite()
			}
			if how == "ceil" {
				n = math.Ceil(n)
			} else {
				n = math.Floor(n)
			}
			b, _ := big.NewFloat(n).Int(nil)
			scaled = normInt(b)
		}
		return arith("/", scaled, power)
	}
	return nil, valueError("method must be common, ceil or floor")
}

// roundInt rounds an integer to tens, hundreds and so on.
func roundInt(in Value, digits int64) (Value, error) {
	b, _ := bigOf(in)
	if digits >= 0 {
		return normInt(b), nil
	}
	if digits < -5000 {
		return int64(0), nil
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(-digits), nil)
	quotient, rest := new(big.Int).DivMod(b, unit, new(big.Int))
	rest.Lsh(rest, 1)
	if c := rest.Cmp(unit); c > 0 || c == 0 && quotient.Bit(0) == 1 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return normInt(quotient.Mul(quotient, unit)), nil
}

func itemsFilter(_ *runtime, in Value, a args) (Value, error) {
	switch v := in.(type) {
	case *undefined:
		return &generator{}, nil
	case *Dict:
		return &generator{(&dictView{v, "items"}).items()}, nil
	}
	return nil, typeError("Can only get item pairs from a mapping.")
}

func joinFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "d", "attribute")
	if err != nil {
		return nil, err
	}
	list, err := items(in)
	if err != nil {
		return nil, err
	}
	sep, err := str(or(p[0], ""))
	if err != nil {
		return nil, err
	}
	get := attrGetter(or(p[1], nil))
	var b strings.Builder
	for i, item := range list {
		if item, err = get(item); err != nil {
			return nil, err
		}
		s, err := str(item)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(s)
		if err := rt.room(b.Len()); err != nil {
			return nil, err
		}
	}
	return b.String(), nil
}

func replaceFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	s, err := str(in)
	if err != nil {
		return nil, err
	}
	before, err := str(p[0])
	if err != nil {
		return nil, err
	}
	after, err := str(p[1])
	if err != nil {
		return nil, err
	}
	n := int64(-1)
	if v := or(p[2], nil); v != nil {
		var ok bool
		if n, ok = asInt(v); !ok {
			return nil, typeError("'%s' object cannot be interpreted as an integer", typeName(v))
		}
	}
	out, err := replace(rt, s, before, after, int(max(-1, min(n, int64(len(s))+1))))
	if _, ok := in.(markup); ok {
		return markup(out), err
	}
	return out, err
}

func trimFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "chars")
	if err != nil {
		return nil, err
	}
	s, err := str(in)
	if err != nil {
		return nil, err
	}
	s, err = strip(s, or(p[0], nil), true, true)
	if _, ok := in.(markup); ok {
		return markup(s), err
	}
	return s, err
}

// titleFilter upper-cases what begins a word and lowers the rest.
func titleFilter(s string) string {
	isSep := func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }
	var b strings.Builder
	for s != "" {
		n := strings.IndexFunc(s, isSep)
		if n < 0 {
			n = len(s)
		}
		if n > 0 {
			_, size := utf8.DecodeRuneInString(s)
			b.WriteString(upper(s[:size]))
			b.WriteString(lower(s[size:n]))
			s = s[n:]
		}
		n = len(s) - len(strings.TrimLeftFunc(s, isSep))
		b.WriteString(s[:n])
		s = s[n:]
	}
	return b.String()
}

func indentFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	s, ok := text(in)
	if !ok {
		return nil, typeError("unsupported operand type(s) for +=: '%s' and 'str'", typeName(in))
	}
	indent, isText := text(or(p[0], ""))
	if !isText || p[0] == Value(missing{}) {
		n, ok := asInt(or(p[0], int64(4)))
		if !ok {
			return nil, typeError("can't multiply sequence by non-int of type '%s'", typeName(p[0]))
		}
		if err := rt.roomTimes(1, n); err != nil {
			return nil, err
		}
		indent = strings.Repeat(" ", int(max(n, 0)))
	}
	lines := splitLines(s+"\n", false)
	if err := rt.roomTimes(len(indent)+1, int64(len(lines))); err != nil {
		return nil, err
	}
	blank := truth(or(p[2], false))
	for i := range lines {
		if i > 0 && (blank || lines[i] != "") {
			lines[i] = indent + lines[i]
		}
	}
	out := strings.Join(lines, "\n")
	if truth(or(p[1], false)) {
		out = indent + out
	}
	if _, ok := in.(markup); ok {
		return markup(out), nil
	}
	return out, nil
}

func truncateFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "length", "killwords", "end", "leeway")
	if err != nil {
		return nil, err
	}
	n, ok1 := asInt(or(p[0], int64(255)))
	end, ok2 := text(or(p[2], "..."))
	leeway, ok3 := int64(5), true
	if v := or(p[3], nil); v != nil {
		leeway, ok3 = asInt(v)
	}
	if !ok1 || !ok2 || !ok3 {
		return nil, typeError("truncate takes a length, an end and a leeway")
	}
	size := int64(utf8.RuneCountInString(end))
	if n < size {
		return nil, typeError("AssertionError: expected length >= %d, got %d", size, n)
	}
	if leeway < 0 {
		return nil, typeError("AssertionError: expected leeway >= 0, got %d", leeway)
	}
	long, err := length(in)
	if err != nil {
		return nil, err
	}
	if long.(int64) <= n+leeway {
		return in, nil
	}
	s, ok := text(in)
	if !ok {
		return nil, typeError("cannot truncate a %s", typeName(in))
	}
	runes := []rune(s)
	cut := string(runes[:n-size])
	if !truth(or(p[1], false)) {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return cut + end, nil
}

// urlEncodeFilter quotes a string or a mapping for a URL.
func urlEncodeFilter(_ *runtime, in Value, a args) (Value, error) {
	quoteURL := func(v Value, safe string) (string, error) {
		s, err := str(v)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		for i := range len(s) {
			c := s[i]
			if 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("_.-~"+safe, c) >= 0 {
				b.WriteByte(c)
				continue
			}
			const hex = "0123456789ABCDEF"
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
		return b.String(), nil
	}
	d, isDict := in.(*Dict)
	if _, isText := text(in); isText || !isDict {
		return quoteURL(in, "/")
	}
	var parts []string
	for _, e := range d.entries {
		key, err := quoteURL(e.key, "")
		if err != nil {
			return nil, err
		}
		value, err := quoteURL(e.value, "")
		if err != nil {
			return nil, err
		}
		parts = append(parts, strings.ReplaceAll(key, "%20", "+")+"="+strings.ReplaceAll(value, "%20", "+"))
	}
	return strings.Join(parts, "&"), nil
}

func wordCountFilter(_ *runtime, in Value, a args) (Value, error) {
	s, err := str(in)
	if err != nil {
		return nil, err
	}
	return int64(len(strings.FieldsFunc(s, func(r rune) bool { return !isWord(r) }))), nil
}

func xmlAttrFilter(_ *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "autospace")
	if err != nil {
		return nil, err
	}
	d, ok := in.(*Dict)
	if !ok {
		return nil, typeError("'%s' object has no attribute 'items'", typeName(in))
	}
	var parts []string
	for _, e := range d.entries {
		if e.value == nil || isUndefined(e.value) {
			continue
		}
		key, isText := text(e.key)
		if !isText {
			return nil, typeError("expected string or bytes-like object, got '%s'", typeName(e.key))
		}
		if strings.ContainsFunc(key, func(r rune) bool { return isSpace(r) || strings.ContainsRune("/>=", r) }) {
			return nil, valueError("Invalid character in attribute name: %s", quote(key))
		}
		value, err := str(e.value)
		if err != nil {
			return nil, err
		}
		if _, marked := e.value.(markup); !marked {
			value = escapeHTML(value)
		}
		parts = append(parts, escapeHTML(key)+`="`+value+`"`)
	}
	out := strings.Join(parts, " ")
	if out != "" && truth(or(p[0], true)) {
		out = " " + out
	}
	return out, nil
}
