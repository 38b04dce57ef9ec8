package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/jsonscan"
)

// FromJSON reads a JSON text as Python's json.loads does: keys keep their order,
// integers are exact, and of two equal keys the later value counts.
func FromJSON(data []byte) (Value, error) {
	r := jsonscan.NewSharingReader(data)
	v, err := readJSON(r)
	if err != nil {
		return nil, err
	}
	return v, r.End()
}

// commonKey is a key as a value. The keys of messages and tools are constants,
// which cost nothing to make.
func commonKey(key []byte) Value {
	switch string(key) {
	case "role":
		return "role"
	case "content":
		return "content"
	case "reasoning_content":
		return "reasoning_content"
	case "tool_calls":
		return "tool_calls"
	case "tool_call_id":
		return "tool_call_id"
	case "id":
		return "id"
	case "type":
		return "type"
	case "function":
		return "function"
	case "name":
		return "name"
	case "arguments":
		return "arguments"
	case "text":
		return "text"
	case "description":
		return "description"
	case "parameters":
		return "parameters"
	case "properties":
		return "properties"
	case "required":
		return "required"
	case "enum":
		return "enum"
	case "items":
		return "items"
	case "default":
		return "default"
	}
	return string(key)
}

func readJSON(r *jsonscan.Reader) (Value, error) {
	switch r.Kind() {
	case jsonscan.Null:
		return nil, r.Null()
	case jsonscan.Bool:
		return r.Bool()
	case jsonscan.String:
		return r.String()
	case jsonscan.Number:
		text, err := r.Number()
		if err != nil {
			return nil, err
		}
		return jsonNumber(text)
	case jsonscan.Array:
		list := new(List)
		err := r.Array(func() error {
			v, err := readJSON(r)
			list.Items = append(list.Items, v)
			return err
		})
		return list, err
	case jsonscan.Object:
		d := NewDict(4)
		err := r.ObjectBytes(func(key []byte) error {
			k := commonKey(key)
			v, err := readJSON(r)
			d.set(nil, k, v)
			return err
		})
		return d, err
	}
	return nil, r.Skip()
}

func jsonNumber(text string) (Value, error) {
	switch text {
	case "NaN":
		return math.NaN(), nil
	case "Infinity":
		return math.Inf(1), nil
	case "-Infinity":
		return math.Inf(-1), nil
	}
	if strings.ContainsAny(text, ".eE") {
		f, _ := strconv.ParseFloat(text, 64) // out of range gives an infinity, as in Python
		return f, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if len(text) > 4301 {
		return nil, valueError("Exceeds the limit (4300 digits) for integer string conversion")
	}
	b, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return nil, valueError("bad number %s", text)
	}
	return b, nil
}

// jsonWriter is json.dumps.
type jsonWriter struct {
	rt            *runtime
	out           []byte
	ascii         bool
	indent        string
	hasIndent     bool
	sortKeys      bool
	itemSep, kSep string
}

func (w *jsonWriter) write(v Value, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("%w: a value is nested too deeply", ErrLimit)
	}
	w.rt.charge(v)
	if err := w.rt.spent(w.rt.room(len(w.out))); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		w.out = append(w.out, "null"...)
	case bool:
		w.out = strconv.AppendBool(w.out, v)
	case int64:
		w.out = strconv.AppendInt(w.out, v, 10)
	case *big.Int:
		s, err := w.rt.repr(v)
		if err != nil {
			return err
		}
		w.out = append(w.out, s...)
	case float64:
		w.out = append(w.out, jsonFloat(v)...)
	case string:
		w.str(v)
	case markup:
		w.str(string(v))
	case *List:
		return w.list(v.Items, depth)
	case *Tuple:
		return w.list(v.Items, depth)
	case *Dict:
		return w.dict(v, depth)
	default:
		return typeError("Object of type %s is not JSON serializable", typeName(v))
	}
	return nil
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatText(f)
}

func (w *jsonWriter) newline(depth int) {
	if w.hasIndent {
		if size := depth * len(w.indent); w.rt.room(len(w.out)+size) != nil || !w.rt.spend(size/64) {
			w.rt.exhaust() // the next value to be written says so
			return
		}
		w.out = append(w.out, '\n')
		for range depth {
			w.out = append(w.out, w.indent...)
		}
	}
}

func (w *jsonWriter) list(items []Value, depth int) error {
	w.out = append(w.out, '[')
	for i, item := range items {
		if i > 0 {
			w.out = append(w.out, w.itemSep...)
		}
		w.newline(depth + 1)
		if err := w.write(item, depth+1); err != nil {
			return err
		}
	}
	if len(items) > 0 {
		w.newline(depth)
	}
	w.out = append(w.out, ']')
	return nil
}

func (w *jsonWriter) dict(d *Dict, depth int) error {
	entries := d.entries
	if w.sortKeys {
		entries = slices.Clone(entries)
		var failed error
		slices.SortStableFunc(entries, func(a, b entry) int {
			c, err := w.rt.compare(a.key, b.key, "<")
			if err != nil {
				failed = err
			}
			return c
		})
		if failed != nil {
			return failed
		}
	}
	w.out = append(w.out, '{')
	for i, e := range entries {
		if i > 0 {
			w.out = append(w.out, w.itemSep...)
		}
		w.newline(depth + 1)
		key, err := jsonKey(w.rt, e.key)
		if err != nil {
			return err
		}
		w.rt.charge(key)
		w.str(key)
		w.out = append(w.out, w.kSep...)
		if err := w.write(e.value, depth+1); err != nil {
			return err
		}
	}
	if len(entries) > 0 {
		w.newline(depth)
	}
	w.out = append(w.out, '}')
	return nil
}

// jsonKey is how json.dumps spells a key that is no string.
func jsonKey(rt *runtime, k Value) (string, error) {
	switch k := k.(type) {
	case nil:
		return "null", nil
	case bool:
		return strconv.FormatBool(k), nil
	case float64:
		return jsonFloat(k), nil
	case int64, *big.Int, string, markup:
		return rt.str(k)
	}
	return "", typeError("keys must be str, int, float, bool or None, not %s", typeName(k))
}

func (w *jsonWriter) str(s string) {
	const hex = "0123456789abcdef"
	w.out = append(w.out, '"')
	from := 0
	for i, r := range s {
		if r >= ' ' && r != '"' && r != '\\' && !(w.ascii && r >= 0x7F) {
			continue
		}
		w.out = append(w.out, s[from:i]...)
		from = i + len(string(r))
		switch {
		case r == '"' || r == '\\':
			w.out = append(w.out, '\\', byte(r))
		case r == '\n':
			w.out = append(w.out, '\\', 'n')
		case r == '\r':
			w.out = append(w.out, '\\', 'r')
		case r == '\t':
			w.out = append(w.out, '\\', 't')
		case r == '\b':
			w.out = append(w.out, '\\', 'b')
		case r == '\f':
			w.out = append(w.out, '\\', 'f')
		default:
			units := []uint16{uint16(r)}
			if r >= 0x10000 {
				units = utf16.Encode([]rune{r})
			}
			for _, u := range units {
				w.out = append(w.out, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
			}
		}
	}
	w.out = append(append(w.out, s[from:]...), '"')
}

// toJSON is the tojson filter of transformers.
func toJSON(rt *runtime, in Value, a args) (Value, error) {
	p, err := a.bind(0, "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{rt: rt, ascii: truth(or(p[0], false)), sortKeys: truth(or(p[3], false)), itemSep: ", ", kSep: ": "}
	if indent := or(p[1], nil); indent != nil {
		w.hasIndent, w.itemSep = true, ","
		if n, ok := asInt(indent); ok {
			if err := rt.room(int(max(n, 0))); err != nil {
				return nil, err
			}
			w.indent = strings.Repeat(" ", int(max(n, 0)))
		} else if s, ok := text(indent); ok {
			w.indent = s
		} else {
			return nil, typeError("bad indent of type %s", typeName(indent))
		}
	}
	if sep := or(p[2], nil); sep != nil {
		pair, err := rt.items(sep)
		if err != nil {
			return nil, err
		}
		if len(pair) != 2 || !isString(pair[0]) || !isString(pair[1]) {
			return nil, typeError("separators must be two strings")
		}
		w.itemSep, _ = text(pair[0])
		w.kSep, _ = text(pair[1])
	}
	if err := w.write(in, 0); err != nil {
		return nil, err
	}
	return string(w.out), nil
}
