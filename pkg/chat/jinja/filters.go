package jinja

import (
	"slices"
	"unicode/utf8"
)

// filterFunc is a filter; testFunc is a test.
type (
	filterFunc func(rt *runtime, in Value, a args) (Value, error)
	testFunc   func(rt *runtime, in Value, a args) (bool, error)
)

// filterNamed returns the filter of a name, or nil.
func filterNamed(name string) filterFunc {
	switch name {
	case "abs":
		return absFilter
	case "attr":
		return attrFilter
	case "batch":
		return batchFilter
	case "capitalize":
		return textFilter(capitalize)
	case "center":
		return centerFilter
	case "count", "length":
		return lengthFilter
	case "d", "default":
		return defaultFilter
	case "dictsort":
		return dictSortFilter
	case "e", "escape":
		return escapeFilter
	case "first":
		return firstFilter
	case "float":
		return floatFilter
	case "forceescape":
		return forceEscapeFilter
	case "format":
		return formatFilter
	case "groupby":
		return groupByFilter
	case "indent":
		return indentFilter
	case "int":
		return intFilter
	case "items":
		return itemsFilter
	case "join":
		return joinFilter
	case "last":
		return lastFilter
	case "list":
		return listFilter
	case "lower":
		return textFilter(lower)
	case "map":
		return mapFilter
	case "max":
		return extremeFilter(">")
	case "min":
		return extremeFilter("<")
	case "reject":
		return selectFilter(false, false)
	case "rejectattr":
		return selectFilter(true, false)
	case "replace":
		return replaceFilter
	case "reverse":
		return reverseFilter
	case "round":
		return roundFilter
	case "safe":
		return safeFilter
	case "select":
		return selectFilter(false, true)
	case "selectattr":
		return selectFilter(true, true)
	case "slice":
		return sliceFilter
	case "sort":
		return sortFilter
	case "string":
		return stringFilter
	case "sum":
		return sumFilter
	case "title":
		return textFilter(titleFilter)
	case "tojson":
		return toJSON
	case "trim":
		return trimFilter
	case "truncate":
		return truncateFilter
	case "unique":
		return uniqueFilter
	case "upper":
		return textFilter(upper)
	case "urlencode":
		return urlEncodeFilter
	case "wordcount":
		return wordCountFilter
	case "xmlattr":
		return xmlAttrFilter
	}
	return nil
}

func attrFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(1, "name")
	if err != nil {
		return nil, err
	}
	name, err := rt.str(p[0])
	if err != nil {
		return nil, err
	}
	if v, ok := attribute(in, name); ok {
		return v, nil
	}
	return noAttribute(in, name), nil
}

func listFilter(rt *runtime, in Value, a args) (Value, error) {
	list, err := rt.items(in)
	return &List{slices.Clone(list)}, err
}

func batchFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(1, "linecount", "fill_with")
	if err != nil {
		return nil, err
	}
	list, err := rt.items(in)
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
			rt.spend(int(max(size, 0)))
			for int64(len(row)) < size {
				row = append(row, fill)
			}
		}
		out = append(out, &List{row})
	}
	return &generator{out}, nil
}

func sliceFilter(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(1, "slices", "fill_with")
	if err != nil {
		return nil, err
	}
	list, err := rt.items(in)
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
	rt.spend(int(max(n, 0)))
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

func lengthFilter(rt *runtime, in Value, a args) (Value, error) {
	if _, err := a.bind(0); err != nil {
		return nil, err
	}
	return rt.length(in)
}

// length is Python's len().
func (rt *runtime) length(v Value) (Value, error) {
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

func defaultFilter(rt *runtime, in Value, a args) (Value, error) {
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
func (rt *runtime) foldCase(v Value) Value {
	if s, ok := text(v); ok {
		if !rt.spend(len(s)) {
			return v
		}
		return lower(s)
	}
	return v
}

// sortStable sorts by key as Python's sorted does.
func (rt *runtime) sortStable(list []Value, key func(Value) (Value, error), reverse bool) ([]Value, error) {
	type pair struct{ key, value Value }
	if !rt.spend(8 * len(list)) { // the keys are values of their own
		return nil, rt.spent(nil)
	}
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
		c, err := rt.compare(a.key, b.key, "<")
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

func dictSortFilter(rt *runtime, in Value, a args) (Value, error) {
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
	list, err := rt.sortStable((&dictView{d, "items"}).items(), func(v Value) (Value, error) {
		k := v.(*Tuple).Items[at]
		if truth(or(p[0], false)) {
			return k, nil
		}
		return rt.foldCase(k), nil
	}, truth(or(p[2], false)))
	return &List{list}, err
}

func firstFilter(rt *runtime, in Value, a args) (Value, error) {
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	if g, ok := in.(*generator); ok && len(list) > 0 {
		g.items = list[1:]
	}
	if len(list) == 0 {
		return &undefined{why: "No first item, sequence was empty."}, nil
	}
	return list[0], nil
}

func lastFilter(rt *runtime, in Value, a args) (Value, error) {
	if g, ok := in.(*generator); ok {
		return nil, typeError("'%s' object is not reversible", typeName(g))
	}
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return &undefined{why: "No last item, sequence was empty."}, nil
	}
	return list[len(list)-1], nil
}

func reverseFilter(rt *runtime, in Value, a args) (Value, error) {
	if s, ok := text(in); ok {
		r := []rune(s)
		slices.Reverse(r)
		return string(r), nil
	}
	list, err := rt.items(in)
	if err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	slices.Reverse(list)
	return &generator{list}, nil
}

func itemsFilter(rt *runtime, in Value, a args) (Value, error) {
	switch v := in.(type) {
	case *undefined:
		return &generator{}, nil
	case *Dict:
		return &generator{(&dictView{v, "items"}).items()}, nil
	}
	return nil, typeError("Can only get item pairs from a mapping.")
}
