package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

func upper(s string) string { return cases.Upper(language.Und).String(s) }
func lower(s string) string { return cases.Lower(language.Und).String(s) }

// capitalize is Python's str.capitalize.
func capitalize(s string) string {
	_, size := utf8.DecodeRuneInString(s)
	// The final-sigma rule of lower looks at the whole word.
	return cases.Title(language.Und, cases.NoLower).String(s[:size]) + lowerTail(s, size)
}

// lowerTail lowers s from a byte on, with what is before it as context.
func lowerTail(s string, from int) string {
	if tail := s[from:]; !strings.ContainsRune(tail, 'Σ') {
		return lower(tail)
	}
	whole := lower(s)
	return whole[len(lower(s[:from])):]
}

// title is Python's str.title: words are runs of cased characters.
func title(s string) string {
	var b strings.Builder
	inWord := false
	for _, r := range s {
		c := string(r)
		switch {
		case inWord:
			b.WriteString(lower(c))
		default:
			b.WriteString(cases.Title(language.Und, cases.NoLower).String(c))
		}
		inWord = isCased(r)
	}
	return b.String()
}

func isCased(r rune) bool { return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) }

// strip removes characters from one or both ends; chars nil means white space.
func strip(rt *runtime, s string, chars Value, left, right bool) (string, error) {
	cut := isSpace
	if set, ok := text(chars); ok {
		if !rt.spend(len(s) / 64 * (len(set) / 16)) { // every character is looked for in the set
			return "", rt.spent(nil)
		}
		cut = func(r rune) bool { return strings.ContainsRune(set, r) }
	} else if chars != nil {
		return "", typeError("strip arg must be None or str")
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s, nil
}

// stringFunc is a method of strings; p are its bound parameters.
type stringFunc struct {
	required int
	params   []string
	call     func(rt *runtime, s string, p []Value) (Value, error)
	// cost is the work for a byte where that is much more than to look at it.
	cost int
}

// run charges the string and the parameters before the method goes over them.
func (m *stringFunc) run(rt *runtime, s string, p []Value) (Value, error) {
	rt.spend(1 + m.cost*len(s) + len(s)/8)
	for _, v := range p {
		rt.charge(v)
	}
	if err := rt.spent(nil); err != nil {
		return nil, err
	}
	v, err := m.call(rt, s, p)
	return v, rt.spent(err)
}

// newStringMethods lists the methods of str that templates can call.
func newStringMethods() map[string]stringFunc {
	plain := func(f func(string) string) stringFunc {
		return stringFunc{call: func(rt *runtime, s string, _ []Value) (Value, error) { return f(s), nil }}
	}
	stripper := func(left, right bool) stringFunc {
		return stringFunc{params: []string{"chars"}, call: func(rt *runtime, s string, p []Value) (Value, error) {
			return strip(rt, s, or(p[0], nil), left, right)
		}}
	}
	all := func(ok func(r rune) bool) stringFunc {
		return stringFunc{call: func(rt *runtime, s string, _ []Value) (Value, error) {
			return s != "" && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0, nil
		}}
	}
	slow := func(f func(string) string, cost int) stringFunc {
		m := plain(f)
		m.cost = cost
		return m
	}
	return map[string]stringFunc{
		"upper":      slow(upper, 1),
		"lower":      slow(lower, 1),
		"casefold":   plain(func(s string) string { return cases.Fold().String(s) }),
		"capitalize": slow(capitalize, 1),
		"title":      slow(title, 8),
		"swapcase":   slow(swapCase, 1),
		"strip":      stripper(true, true),
		"lstrip":     stripper(true, false),
		"rstrip":     stripper(false, true),
		"isspace":    all(isSpace),
		"isalpha":    all(inCategories("L")),
		"isalnum":    all(inCategories("L", "N")),
		"isdigit":    all(isDigit),
		"isdecimal":  all(inCategories("Nd")),
		"isnumeric":  all(inCategories("N")),
		"isascii": {call: func(rt *runtime, s string, _ []Value) (Value, error) {
			return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0, nil
		}},
		"isupper":      {call: func(rt *runtime, s string, _ []Value) (Value, error) { return isUpper(s), nil }},
		"islower":      {call: func(rt *runtime, s string, _ []Value) (Value, error) { return isLower(s), nil }},
		"startswith":   {1, []string{"prefix", "start", "end"}, affix(strings.HasPrefix), 0},
		"endswith":     {1, []string{"suffix", "start", "end"}, affix(strings.HasSuffix), 0},
		"removeprefix": {1, []string{"prefix"}, cutAffix(strings.TrimPrefix), 0},
		"removesuffix": {1, []string{"suffix"}, cutAffix(strings.TrimSuffix), 0},
		"split":        {0, []string{"sep", "maxsplit"}, splitMethod(false), 0},
		"rsplit":       {0, []string{"sep", "maxsplit"}, splitMethod(true), 0},
		"splitlines":   {0, []string{"keepends"}, splitLinesMethod, 0},
		"partition":    {1, []string{"sep"}, partition(strings.Index, false), 0},
		"rpartition":   {1, []string{"sep"}, partition(strings.LastIndex, true), 0},
		"replace":      {2, []string{"old", "new", "count"}, replaceMethod, 0},
		"find":         {1, []string{"sub", "start", "end"}, find(strings.Index, false), 0},
		"rfind":        {1, []string{"sub", "start", "end"}, find(strings.LastIndex, false), 0},
		"index":        {1, []string{"sub", "start", "end"}, find(strings.Index, true), 0},
		"rindex":       {1, []string{"sub", "start", "end"}, find(strings.LastIndex, true), 0},
		"count":        {1, []string{"sub", "start", "end"}, countMethod, 0},
		"join":         {1, []string{"iterable"}, joinMethod, 0},
		"center":       {1, []string{"width", "fillchar"}, pad("center"), 0},
		"ljust":        {1, []string{"width", "fillchar"}, pad("ljust"), 0},
		"rjust":        {1, []string{"width", "fillchar"}, pad("rjust"), 0},
		"zfill":        {1, []string{"width"}, zfill, 0},
	}
}

var stringMethods = newStringMethods()

func stringMethod(s, name string) (Value, bool) {
	m, ok := stringMethods[name]
	if !ok {
		if name == "format" {
			return method(name, func(rt *runtime, a args) (Value, error) { return formatBraces(rt, s, a) }), true
		}
		if slices.Contains([]string{"encode", "expandtabs", "format_map", "isidentifier", "isprintable", "istitle",
			"maketrans", "translate"}, name) {
			return method(name, func(_ *runtime, _ args) (Value, error) {
				return nil, typeError("str.%s is not supported", name)
			}), true
		}
		return nil, false
	}
	return method(name, func(rt *runtime, a args) (Value, error) {
		p, err := a.bind(m.required, m.params...)
		if err != nil {
			return nil, err
		}
		return m.run(rt, s, p)
	}), true
}

// markupMethod is a method of escaped text: its result is escaped text too.
func markupMethod(s markup, name string) (Value, bool) {
	m, ok := stringMethod(string(s), name)
	fn, isMethod := m.(*function)
	if !ok || !isMethod {
		return m, ok
	}
	return method(name, func(rt *runtime, a args) (Value, error) {
		if name == "join" || name == "replace" || name == "format" {
			return nil, typeError("Markup.%s is not supported", name)
		}
		v, err := fn.call(rt, a)
		return mark(v), err
	}), true
}

func mark(v Value) Value {
	switch v := v.(type) {
	case string:
		return markup(v)
	case *List:
		out := make([]Value, len(v.Items))
		for i, item := range v.Items {
			out[i] = mark(item)
		}
		return &List{out}
	case *Tuple:
		return &Tuple{mark(&List{v.Items}).(*List).Items}
	}
	return v
}

func inCategories(names ...string) func(rune) bool {
	var set unidata.Set
	for _, name := range names {
		s, _ := unidata.ByName(name)
		set |= s
	}
	return func(r rune) bool { return set.Has(unidata.Load().Of(r)) }
}

// isDigit is Python's str.isdigit: decimal digits and digits like superscripts.
func isDigit(r rune) bool {
	if unidata.Load().Of(r) == unidata.Nd {
		return true
	}
	for _, span := range [...][2]rune{{0xB2, 0xB3}, {0xB9, 0xB9}, {0x1369, 0x1371}, {0x19DA, 0x19DA}, {0x2070, 0x2070},
		{0x2074, 0x2079}, {0x2080, 0x2089}, {0x2460, 0x2468}, {0x2474, 0x247C}, {0x2488, 0x2490}, {0x24EA, 0x24EA},
		{0x24F5, 0x24FD}, {0x24FF, 0x24FF}, {0x2776, 0x277E}, {0x2780, 0x2788}, {0x278A, 0x2792}, {0x10A40, 0x10A43},
		{0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}} {
		if span[0] <= r && r <= span[1] {
			return true
		}
	}
	return false
}

func isUpper(s string) bool {
	return strings.IndexFunc(s, isCased) >= 0 &&
		strings.IndexFunc(s, func(r rune) bool { return unicode.IsLower(r) || unicode.IsTitle(r) }) < 0
}

func isLower(s string) bool {
	return strings.IndexFunc(s, isCased) >= 0 &&
		strings.IndexFunc(s, func(r rune) bool { return unicode.IsUpper(r) || unicode.IsTitle(r) }) < 0
}

func swapCase(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) || unicode.IsTitle(r) {
			b.WriteString(lower(string(r)))
		} else {
			b.WriteString(upper(string(r)))
		}
	}
	return b.String()
}

// window cuts s to the optional bounds of a search and returns where it starts,
// in characters; it is not ok if it starts behind the end.
func window(s string, p []Value) (part string, offset int, ok bool, err error) {
	var bounds [3]Value
	for i := range p {
		if bounds[i] = or(p[i], nil); bounds[i] != nil {
			if _, isInt := asInt(bounds[i]); !isInt {
				return "", 0, false, typeError("slice indices must be integers or None or have an __index__ method")
			}
		}
	}
	if bounds[0] == nil && bounds[1] == nil {
		return s, 0, true, nil
	}
	runes := []rune(s)
	if start, isInt := asInt(bounds[0]); isInt {
		if start < 0 {
			start = max(0, start+int64(len(runes)))
		}
		if start > int64(len(runes)) {
			return "", 0, false, nil
		}
		offset = int(start)
	}
	if stop, isInt := asInt(bounds[1]); isInt {
		if stop < 0 {
			stop += int64(len(runes))
		}
		if stop < int64(offset) {
			return "", 0, false, nil
		}
	}
	cut, err := slice(runes, bounds)
	return string(cut), offset, true, err
}

func affix(has func(s, affix string) bool) func(*runtime, string, []Value) (Value, error) {
	return func(rt *runtime, s string, p []Value) (Value, error) {
		s, _, ok, err := window(s, p[1:])
		if err != nil {
			return nil, err
		}
		if t, isTuple := p[0].(*Tuple); isTuple {
			for _, item := range t.Items {
				a, isText := text(item)
				if !isText {
					return nil, typeError("tuple for startswith must only contain str, not %s", typeName(item))
				}
				if ok && has(s, a) {
					return true, nil
				}
			}
			return false, nil
		}
		a, isText := text(p[0])
		if !isText {
			return nil, typeError("first arg must be str or a tuple of str, not %s", typeName(p[0]))
		}
		return ok && has(s, a), nil
	}
}

func cutAffix(cut func(s, affix string) string) func(*runtime, string, []Value) (Value, error) {
	return func(rt *runtime, s string, p []Value) (Value, error) {
		a, ok := text(p[0])
		if !ok {
			return nil, typeError("argument must be str, not %s", typeName(p[0]))
		}
		return cut(s, a), nil
	}
}

func splitMethod(fromRight bool) func(*runtime, string, []Value) (Value, error) {
	return func(rt *runtime, s string, p []Value) (Value, error) {
		limit, ok := asInt(or(p[1], int64(-1)))
		if !ok {
			return nil, typeError("'%s' object cannot be interpreted as an integer", typeName(p[1]))
		}
		if limit < 0 {
			limit = int64(len(s)) + 1
		}
		n := int(min(limit, int64(len(s))+1))
		if !rt.spend(len(s) / 8) { // for the parts
			return nil, rt.spent(nil)
		}
		if err := rt.room(len(s)); err != nil {
			return nil, err
		}
		sep := or(p[0], nil)
		if sep == nil {
			return stringList(splitSpace(s, n, fromRight)), nil
		}
		by, ok := text(sep)
		if !ok {
			return nil, typeError("must be str or None, not %s", typeName(sep))
		}
		if by == "" {
			return nil, valueError("empty separator")
		}
		if !fromRight {
			return stringList(strings.SplitN(s, by, n+1)), nil
		}
		var parts []string
		for ; n > 0; n-- {
			i := strings.LastIndex(s, by)
			if i < 0 {
				break
			}
			parts = append(parts, s[i+len(by):])
			s = s[:i]
		}
		parts = append(parts, s)
		slices.Reverse(parts)
		return stringList(parts), nil
	}
}

// splitSpace splits at runs of white space, at most n times.
func splitSpace(s string, n int, fromRight bool) []string {
	var parts []string
	if fromRight {
		for s = strings.TrimRightFunc(s, isSpace); s != "" && n > 0; n-- {
			i := strings.LastIndexFunc(s, isSpace)
			if i < 0 {
				break
			}
			_, size := utf8.DecodeRuneInString(s[i:])
			parts = append(parts, s[i+size:])
			s = strings.TrimRightFunc(s[:i], isSpace)
		}
		if s != "" {
			parts = append(parts, s)
		}
		slices.Reverse(parts)
		return parts
	}
	for s = strings.TrimLeftFunc(s, isSpace); s != "" && n > 0; n-- {
		i := strings.IndexFunc(s, isSpace)
		if i < 0 {
			break
		}
		parts = append(parts, s[:i])
		s = strings.TrimLeftFunc(s[i:], isSpace)
	}
	if s != "" {
		parts = append(parts, s)
	}
	return parts
}

func stringList(parts []string) *List {
	out := make([]Value, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return &List{out}
}

// splitLines splits at what Python takes for line ends.
func splitLines(s string, keep bool) []string {
	var lines []string
	start := 0
	for i, r := range s {
		if i < start || !isLineEnd(r) {
			continue
		}
		end := i + utf8.RuneLen(r)
		if r == '\r' && strings.HasPrefix(s[end:], "\n") {
			end++
		}
		if keep {
			lines = append(lines, s[start:end])
		} else {
			lines = append(lines, s[start:i])
		}
		start = end
	}
	if start < len(s) {
		lines = append(lines, s[start:])
	}
	return lines
}

func isLineEnd(r rune) bool {
	return '\n' <= r && r <= '\r' || 0x1C <= r && r <= 0x1E || r == 0x85 || r == 0x2028 || r == 0x2029
}

func splitLinesMethod(rt *runtime, s string, p []Value) (Value, error) {
	return stringList(splitLines(s, truth(or(p[0], false)))), nil
}

func partition(find func(s, sep string) int, right bool) func(*runtime, string, []Value) (Value, error) {
	return func(rt *runtime, s string, p []Value) (Value, error) {
		sep, ok := text(p[0])
		if !ok {
			return nil, typeError("must be str, not %s", typeName(p[0]))
		}
		if sep == "" {
			return nil, valueError("empty separator")
		}
		parts := []Value{s, "", ""}
		if i := find(s, sep); i >= 0 {
			parts = []Value{s[:i], sep, s[i+len(sep):]}
		} else if right {
			parts = []Value{"", "", s}
		}
		return &Tuple{parts}, nil
	}
}

// replace is str.replace, bounded.
func replace(rt *runtime, s, before, after string, n int) (string, error) {
	count := strings.Count(s, before)
	if n >= 0 {
		count = min(count, n)
	}
	if err := rt.roomTimes(len(after), int64(count)); err != nil {
		return "", err
	}
	return strings.Replace(s, before, after, n), nil
}

func replaceMethod(rt *runtime, s string, p []Value) (Value, error) {
	before, ok1 := text(p[0])
	after, ok2 := text(p[1])
	n, ok3 := asInt(or(p[2], int64(-1)))
	if !ok1 || !ok2 || !ok3 {
		return nil, typeError("replace() argument must be str")
	}
	return replace(rt, s, before, after, int(max(-1, min(n, int64(len(s))+1))))
}

func find(search func(s, sub string) int, must bool) func(*runtime, string, []Value) (Value, error) {
	return func(rt *runtime, s string, p []Value) (Value, error) {
		sub, ok := text(p[0])
		if !ok {
			return nil, typeError("must be str, not %s", typeName(p[0]))
		}
		s, offset, ok, err := window(s, p[1:])
		if err != nil {
			return nil, err
		}
		if ok {
			if i := search(s, sub); i >= 0 {
				return int64(offset + utf8.RuneCountInString(s[:i])), nil
			}
		}
		if must {
			return nil, valueError("substring not found")
		}
		return int64(-1), nil
	}
}

func countMethod(rt *runtime, s string, p []Value) (Value, error) {
	sub, ok := text(p[0])
	if !ok {
		return nil, typeError("must be str, not %s", typeName(p[0]))
	}
	s, _, ok, err := window(s, p[1:])
	if !ok || err != nil {
		return int64(0), err
	}
	return int64(strings.Count(s, sub)), nil
}

func joinMethod(rt *runtime, s string, p []Value) (Value, error) {
	list, err := rt.items(p[0])
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(list))
	size := 0
	for i, item := range list {
		t, ok := text(item)
		if !ok {
			return nil, typeError("sequence item %d: expected str instance, %s found", i, typeName(item))
		}
		parts[i] = t
		rt.spend((len(t) + len(s)) / 64)
		if size += len(t) + len(s); size > rt.maxOutput {
			return nil, rt.room(size)
		}
	}
	return strings.Join(parts, s), nil
}

func pad(kind string) func(*runtime, string, []Value) (Value, error) {
	return func(rt *runtime, s string, p []Value) (Value, error) {
		width, ok := asInt(p[0])
		fill, isText := text(or(p[1], " "))
		if !ok || !isText || utf8.RuneCountInString(fill) != 1 {
			return nil, typeError("the width must be an integer and the fill character exactly one character")
		}
		return padded(rt, s, kind, width, fill)
	}
}

func padded(rt *runtime, s, kind string, width int64, fill string) (Value, error) {
	missing := width - int64(utf8.RuneCountInString(s))
	if missing <= 0 {
		return s, nil
	}
	if err := rt.roomTimes(len(fill), missing); err != nil {
		return nil, err
	}
	left := int64(0)
	switch kind {
	case "rjust":
		left = missing
	case "center":
		left = missing/2 + missing&width&1
	}
	return strings.Repeat(fill, int(left)) + s + strings.Repeat(fill, int(missing-left)), nil
}

func zfill(rt *runtime, s string, p []Value) (Value, error) {
	width, ok := asInt(p[0])
	if !ok {
		return nil, typeError("'%s' object cannot be interpreted as an integer", typeName(p[0]))
	}
	sign := ""
	if strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-") {
		sign, s = s[:1], s[1:]
		width--
	}
	v, err := padded(rt, s, "rjust", width, "0")
	if err != nil {
		return nil, err
	}
	return sign + v.(string), nil
}
