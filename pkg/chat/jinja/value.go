package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
)

// Value is a value of a template: nil (None), bool, int64, *big.Int (beyond
// int64), float64, string, *List, *Tuple, *Dict, and the engine's own kinds.
type Value any

type (
	// List is a Python list.
	List struct{ Items []Value }
	// Tuple is a Python tuple.
	Tuple struct{ Items []Value }
	// markup is a string that counts as escaped already.
	markup string
	// undefined is a value that was asked for and is not there. Using it for
	// anything but printing, testing and looping is the error it carries.
	undefined struct{ why, name, end string } // the reason, in parts that are joined when it is needed
	// missing is the state of a variable that has no value.
	missing struct{}
	// generator is what lazy filters give: it can be read once.
	generator struct{ items []Value }
	// dictView is what rt.items(), keys() and values() give.
	dictView struct {
		dict *Dict
		kind string
	}
	rangeValue struct{ start, stop, step int64 }
	// namespace is the one object whose attributes a template can set.
	namespace struct{ attrs *Dict }
	// function is something to call.
	function struct {
		name string
		call func(rt *runtime, args args) (Value, error)
	}
)

// Dict is a Python dict: it keeps the order in which keys came.
type Dict struct {
	entries []entry
	index   map[string]int // of string keys, once there are many
	// few is where the first entries lie: most dicts are small.
	few [4]entry
}

type entry struct{ key, value Value }

const indexFrom = 9

// NewDict returns an empty dict with room for n entries.
func NewDict(n int) *Dict {
	d := new(Dict)
	if d.entries = d.few[:0]; n > len(d.few) {
		d.entries = make([]entry, 0, n)
	}
	return d
}

// Clone returns a dict with the same entries.
func (d *Dict) Clone() *Dict {
	out := NewDict(len(d.entries) + 2)
	for _, e := range d.entries {
		out.set(nil, e.key, e.value)
	}
	return out
}

// Len returns the number of entries.
func (d *Dict) Len() int { return len(d.entries) }

// Get returns the value of a string key.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.entries[i].value, true
	}
	return nil, false
}

// Set sets the value of a string key; a key that is there keeps its place.
func (d *Dict) Set(key string, v Value) { d.set(nil, key, v) }

// Rewrite replaces each value of a string key by what f returns, or removes the
// entry if that is not to be kept.
func (d *Dict) Rewrite(f func(key string, v Value) (_ Value, keep bool)) {
	n := 0
	for _, e := range d.entries {
		keep := true
		if s, ok := e.key.(string); ok {
			e.value, keep = f(s, e.value)
		}
		if keep {
			d.entries[n] = e
			n++
		}
	}
	if n < len(d.entries) {
		d.entries, d.index = d.entries[:n], nil
	}
}

// keys lists the keys.
func (d *Dict) keys() []Value {
	out := make([]Value, len(d.entries))
	for i, e := range d.entries {
		out[i] = e.key
	}
	return out
}

func (d *Dict) set(rt *runtime, key, v Value) {
	if m, ok := key.(markup); ok {
		key = string(m)
	}
	var i int
	if s, ok := key.(string); ok {
		rt.spend(len(s) / 16)
		i = d.find(s)
	} else {
		i = d.findAny(rt, key)
	}
	if i >= 0 {
		d.entries[i].value = v
		return
	}
	d.entries = append(d.entries, entry{key, v})
	if s, ok := key.(string); ok && d.index != nil {
		d.index[s] = len(d.entries) - 1
	} else if d.index == nil && len(d.entries) >= indexFrom {
		d.index = make(map[string]int, 2*len(d.entries))
		for i := range d.entries {
			if s, ok := d.entries[i].key.(string); ok {
				d.index[s] = i
			}
		}
	}
}

func (d *Dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i := range d.entries {
		if s, ok := d.entries[i].key.(string); ok && s == key {
			return i
		}
	}
	return -1
}

func (d *Dict) findAny(rt *runtime, key Value) int {
	for i := range d.entries {
		if !rt.spend(1) {
			break
		}
		if rt.equal(d.entries[i].key, key) {
			return i
		}
	}
	return -1
}

// lookup finds any hashable key.
func (d *Dict) lookup(rt *runtime, key Value) (Value, bool, error) {
	i := -1
	if s, ok := text(key); ok {
		rt.spend(len(s) / 16)
	}
	switch k := key.(type) {
	case string:
		i = d.find(k)
	case markup:
		i = d.find(string(k))
	default:
		if !rt.hashable(key) {
			return nil, false, typeError("unhashable type: '%s'", typeName(key))
		}
		i = d.findAny(rt, key)
	}
	if i < 0 {
		return nil, false, nil
	}
	return d.entries[i].value, true, nil
}

func (rt *runtime) hashable(v Value) bool {
	if !rt.spend(1) {
		return true
	}
	switch v := v.(type) {
	case *List, *Dict:
		return false
	case *Tuple:
		defer rt.ascend()
		if !rt.descend() {
			return true
		}
		return !slices.ContainsFunc(v.Items, func(x Value) bool { return !rt.hashable(x) })
	}
	return true
}

func isUndefined(v Value) bool {
	_, ok := v.(*undefined)
	return ok
}

// normInt is the smallest form of an integer.
func normInt(b *big.Int) Value {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

// typeName is what Python calls the type of a value.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "Markup"
	case *List:
		return "list"
	case *Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *undefined:
		return "Undefined"
	case *generator:
		return "generator"
	case *dictView:
		return "dict_" + v.kind
	case *rangeValue:
		return "range"
	case *namespace:
		return "Namespace"
	case *macroValue:
		return "Macro"
	case *loopValue:
		return "LoopContext"
	case *cyclerValue:
		return "Cycler"
	}
	return "function"
}

// truth is Python's bool().
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, *undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Tuple:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	case *dictView:
		return v.dict.Len() > 0
	case *rangeValue:
		return v.len() > 0
	}
	return true // a big integer is never zero
}

func (r *rangeValue) len() int64 {
	switch {
	case r.step > 0 && r.start < r.stop:
		return (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.start > r.stop:
		return (r.start-r.stop-1)/-r.step + 1
	}
	return 0
}

// items returns what Python iterates over. The slice must not be changed.
func (rt *runtime) items(v Value) ([]Value, error) {
	switch v := v.(type) {
	case string:
		rt.spend(len(v))
	case markup:
		rt.spend(len(v))
	case *rangeValue:
		rt.spend(int(v.len()))
	case *generator:
		rt.spend(len(v.items))
	case *List:
		rt.spend(len(v.Items))
	case *Tuple:
		rt.spend(len(v.Items))
	default:
		rt.charge(v)
	}
	if err := rt.spent(nil); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Tuple:
		return v.Items, nil
	case *Dict:
		return v.keys(), nil
	case *undefined:
		return nil, nil
	case string:
		return chars(v), nil
	case markup:
		return chars(string(v)), nil
	case *dictView:
		return v.items(), nil
	case *generator:
		all := v.items
		v.items = nil
		return all, nil
	case *rangeValue:
		out := make([]Value, 0, v.len())
		for i, n := v.start, v.len(); n > 0; n-- {
			out = append(out, i)
			i += v.step
		}
		return out, nil
	case *loopValue:
		return nil, typeError("iterating over loop is not supported")
	}
	return nil, typeError("'%s' object is not iterable", typeName(v))
}

func chars(s string) []Value {
	out := make([]Value, 0, len(s))
	for _, r := range s {
		out = append(out, string(r))
	}
	return out
}

func (v *dictView) items() []Value {
	switch v.kind {
	case "keys":
		return v.dict.keys()
	case "values":
		out := make([]Value, v.dict.Len())
		for i, e := range v.dict.entries {
			out[i] = e.value
		}
		return out
	}
	out := make([]Value, v.dict.Len())
	for i, e := range v.dict.entries {
		out[i] = &Tuple{[]Value{e.key, e.value}}
	}
	return out
}

// text returns the string that a value is, if it is one.
func text(v Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

func typeError(format string, args ...any) error {
	return fmt.Errorf("TypeError: "+format, args...)
}

func valueError(format string, args ...any) error {
	return fmt.Errorf("ValueError: "+format, args...)
}

func (u *undefined) err() error { return fmt.Errorf("UndefinedError: %s%s%s", u.why, u.name, u.end) }

// asInt returns an integer that fits in an int64, as an index must.
func asInt(v Value) (int64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return v, true
	case *big.Int:
		if v.Sign() < 0 {
			return math.MinInt64, true
		}
		return math.MaxInt64, true
	}
	return 0, false
}
