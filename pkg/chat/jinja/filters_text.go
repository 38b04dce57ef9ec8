package jinja

import (
	"strings"
	"unicode/utf8"
)

// textFilter is a filter of one string to another. Escaped text stays escaped.
func textFilter(f func(string) string) filterFunc {
	return func(rt *runtime, in Value, a args) (Value, error) {
		if _, err := a.bind(0); err != nil {
			return nil, err
		}
		s, err := rt.str(in)
		if err != nil {
			return nil, err
		}
		if !rt.spend(len(s)) { // changing case takes long
			return nil, rt.spent(nil)
		}
		if _, ok := in.(markup); ok {
			return markup(f(s)), nil
		}
		return f(s), nil
	}
}

func centerFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "width")
	if err != nil {
		return nil, err
	}
	s, err := rt.str(in)
	if err != nil {
		return nil, err
	}
	width, ok := asInt(or(p[0], int64(80)))
	if !ok {
		return nil, typeError("the width must be an integer")
	}
	return padded(rt, s, "center", width, " ")
}

func escapeFilter(rt *runtime, in Value, a args) (Value, error) {
	if m, ok := in.(markup); ok {
		return m, nil
	}
	s, err := rt.str(in)
	return markup(escapeHTML(s)), err
}

func forceEscapeFilter(rt *runtime, in Value, a args) (Value, error) {
	s, err := rt.str(in)
	return markup(escapeHTML(s)), err
}

func safeFilter(rt *runtime, in Value, a args) (Value, error) {
	s, err := rt.str(in)
	return markup(s), err
}

func stringFilter(rt *runtime, in Value, a args) (Value, error) {
	if m, ok := in.(markup); ok {
		return m, nil
	}
	return rt.str(in)
}

func joinFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "d", "attribute")
	if err != nil {
		return nil, err
	}
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	sep, err := rt.str(or(p[0], ""))
	if err != nil {
		return nil, err
	}
	get := rt.attrGetter(or(p[1], nil))
	var b strings.Builder
	for i, item := range list {
		if item, err = get(item); err != nil {
			return nil, err
		}
		s, err := rt.str(item)
		if err != nil {
			return nil, err
		}
		rt.spend((len(s) + len(sep)) / 64)
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
	s, err := rt.str(in)
	if err != nil {
		return nil, err
	}
	before, err := rt.str(p[0])
	if err != nil {
		return nil, err
	}
	after, err := rt.str(p[1])
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

func trimFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "chars")
	if err != nil {
		return nil, err
	}
	s, err := rt.str(in)
	if err != nil {
		return nil, err
	}
	s, err = strip(rt, s, or(p[0], nil), true, true)
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

func truncateFilter(rt *runtime, in Value, a args) (Value, error) {
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
	long, err := rt.length(in)
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
func urlEncodeFilter(rt *runtime, in Value, a args) (Value, error) {
	quoteURL := func(v Value, safe string) (string, error) {
		s, err := rt.str(v)
		if err != nil {
			return "", err
		}
		if rt.charge(s); rt.steps < 0 {
			return "", rt.spent(nil)
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

func wordCountFilter(rt *runtime, in Value, a args) (Value, error) {
	s, err := rt.str(in)
	if err != nil {
		return nil, err
	}
	return int64(len(strings.FieldsFunc(s, func(r rune) bool { return !isWord(r) }))), nil
}

func xmlAttrFilter(rt *runtime, in Value, a args) (Value, error) {
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
		value, err := rt.str(e.value)
		if err != nil {
			return nil, err
		}
		rt.charge(key)
		if rt.charge(value); rt.steps < 0 {
			return nil, rt.spent(nil)
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
