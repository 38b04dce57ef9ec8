package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// decoder fills a Config from YAML nodes. Unlike a decoder that stops at the
// first error, it goes on and reports each.
type decoder struct {
	*report
	file       string
	lookup     func(string) (string, bool)
	isOverride bool
	root       string // the key of the text's root: an override's; "" for a file's
}

var (
	rawMessage    = reflect.TypeFor[json.RawMessage]()
	unmarshalText = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

func (d *decoder) problemHere(line int, key, format string, args ...any) {
	if d.isOverride {
		line = 0
	}
	d.problems = append(d.problems, &Problem{File: d.file, Line: line, Key: key, Text: fmt.Sprintf(format, args...)})
}

// value decodes n into the value at key, which stands on the line. A null leaves
// the default.
func (d *decoder) value(key string, line int, n ast.Node, into reflect.Value) {
	if d.isOverride {
		line = 0
	}
	if key != "" {
		d.places[key] = place{file: d.file, line: line, text: reveal(scalarText(n))}
	}
	switch n.(type) {
	case *ast.NullNode:
		return
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.problemHere(line, key, "YAML anchors, aliases and tags are not supported; write the value out")
		return
	}
	switch {
	case into.Type() == rawMessage:
		if raw, ok := d.rawJSON(key, n); ok {
			into.SetBytes(raw)
		}
	case into.Addr().Type().Implements(unmarshalText):
		d.text(key, n, into)
	case into.Kind() == reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		defaults(into.Interface())
		d.value(key, line, n, into.Elem())
	case into.Kind() == reflect.Struct:
		d.mapping(key, n, func(name string, v *ast.MappingValueNode) {
			at := join(key, name)
			if field, ok := fieldByName(into, name); ok {
				d.value(at, lineOf(v.Key), v.Value, field)
				return
			}
			d.places[at] = place{file: d.file, line: lineOf(v.Key)}
			d.unknown(at, name, into)
		})
	case into.Kind() == reflect.Map:
		into.Set(reflect.MakeMap(into.Type()))
		d.mapping(key, n, func(name string, v *ast.MappingValueNode) {
			elem := reflect.New(into.Type().Elem()).Elem()
			d.value(join(key, name), lineOf(v.Key), v.Value, elem)
			into.SetMapIndex(reflect.ValueOf(name), elem)
		})
	case into.Kind() == reflect.Slice:
		d.sequence(key, n, into)
	default:
		d.scalar(key, n, into)
	}
}

// mapping calls each for the entries of a mapping, once per name.
func (d *decoder) mapping(key string, n ast.Node, each func(name string, v *ast.MappingValueNode)) {
	var entries []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		d.problemHere(lineOf(n), key, "must be a section of keys, not %s", kindOf(n))
		return
	}
	first := map[string]int{}
	for _, v := range entries {
		line := lineOf(v.Key)
		switch v.Key.(type) {
		case *ast.MergeKeyNode, *ast.MappingKeyNode:
			d.problemHere(line, key, "merge keys (<<) and complex keys (?) are not supported; write the keys out")
			continue
		}
		name := v.Key.GetToken().Value
		if strings.Contains(name, varOpen) {
			d.problemHere(line, join(key, reveal(name)), "a key cannot hold a variable; write it out")
			continue
		}
		if before, ok := first[name]; ok {
			d.problemHere(line, join(key, name), "is given twice, first on line %d; remove one", before)
			continue
		}
		first[name] = line
		each(name, v)
	}
}

func (d *decoder) sequence(key string, n ast.Node, into reflect.Value) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problemHere(lineOf(n), key, "must be a list, such as [a, b], not %s", kindOf(n))
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(list.Values), len(list.Values)))
	for i, v := range list.Values {
		elem := into.Index(i)
		if elem.Kind() == reflect.Struct {
			defaults(elem.Addr().Interface())
		}
		at := join(key, strconv.Itoa(i))
		if _, null := v.(*ast.NullNode); null {
			d.problemHere(lineOf(v), at, "is empty; give a value or remove the entry")
			continue
		}
		d.value(at, lineOf(v), v, elem)
	}
}

// text decodes a scalar through the type's own UnmarshalText.
func (d *decoder) text(key string, n ast.Node, into reflect.Value) {
	text, ok := d.expanded(key, n)
	if !ok {
		return
	}
	if err := into.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
		d.problemHere(lineOf(n), key, "%v", err)
	}
}

func (d *decoder) scalar(key string, n ast.Node, into reflect.Value) {
	text, ok := d.expanded(key, n)
	if !ok {
		return
	}
	shown := reveal(scalarText(n))
	// A quoted "8" is text. What came from a variable is always text and counts
	// as what it looks like.
	quoted := isQuoted(n) && !strings.Contains(scalarText(n), varOpen)
	var err error
	switch into.Kind() {
	case reflect.String:
		into.SetString(text)
		return
	case reflect.Bool:
		if quoted || text != "true" && text != "false" {
			d.problemHere(lineOf(n), key, "must be true or false, not %q", shown)
			return
		}
		into.SetBool(text == "true")
		return
	case reflect.Int, reflect.Int32, reflect.Int64:
		var v int64
		if v, err = strconv.ParseInt(text, 10, into.Type().Bits()); err == nil && !quoted {
			into.SetInt(v)
			return
		}
		d.problemHere(lineOf(n), key, "must be a whole number that fits %d bits, not %q", into.Type().Bits(), shown)
	case reflect.Float64:
		var v float64
		if v, err = strconv.ParseFloat(text, 64); err == nil && !quoted && !math.IsNaN(v) && !math.IsInf(v, 0) {
			into.SetFloat(v)
			return
		}
		d.problemHere(lineOf(n), key, "must be a number, not %q", shown)
	}
}

// expanded is the text of a scalar with its variables expanded.
func (d *decoder) expanded(key string, n ast.Node) (string, bool) {
	if !isScalar(n) {
		d.problemHere(lineOf(n), key, "must be a single value, not %s", kindOf(n))
		return "", false
	}
	text, missing := expand(scalarText(n), d.lookup)
	for _, name := range missing {
		d.problemHere(lineOf(n), key, "the environment variable %s is not set; set it or replace ${%s}", name, name)
	}
	return text, len(missing) == 0
}

// rawJSON is a node as JSON, keys in the order of the file.
func (d *decoder) rawJSON(key string, n ast.Node) (json.RawMessage, bool) {
	switch x := n.(type) {
	case *ast.NullNode:
		return json.RawMessage("null"), true
	case *ast.BoolNode:
		return strconv.AppendBool(nil, x.Value), true
	case *ast.MappingNode, *ast.MappingValueNode:
		out, ok := []byte{'{'}, true
		d.mapping(key, n, func(name string, v *ast.MappingValueNode) {
			if len(out) > 1 {
				out = append(out, ',')
			}
			raw, fine := d.rawJSON(join(key, name), v.Value)
			ok = ok && fine
			out = append(append(append(out, quoteJSON(name)...), ':'), raw...)
		})
		return append(out, '}'), ok
	case *ast.SequenceNode:
		out, ok := []byte{'['}, true
		for i, v := range x.Values {
			if i > 0 {
				out = append(out, ',')
			}
			raw, fine := d.rawJSON(join(key, strconv.Itoa(i)), v)
			ok = ok && fine
			out = append(out, raw...)
		}
		return append(out, ']'), ok
	case *ast.IntegerNode, *ast.FloatNode:
		if text := scalarText(n); json.Valid([]byte(text)) {
			return json.RawMessage(text), true
		}
		d.problemHere(lineOf(n), key, "%q is no JSON number; write it in plain decimal", scalarText(n))
		return nil, false
	default:
		text, ok := d.expanded(key, n)
		return quoteJSON(text), ok
	}
}

func quoteJSON(s string) []byte {
	var buf strings.Builder
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil { // a string always encodes
		return []byte(`""`)
	}
	return []byte(strings.TrimSuffix(buf.String(), "\n"))
}

func (d *decoder) unknown(at, name string, section reflect.Value) {
	known := fieldNames(section)
	line := d.at(at).line
	if near, ok := nearest(name, known); ok {
		d.problemHere(line, at, "unknown key; did you mean %s?", near)
		return
	}
	d.problemHere(line, at, "unknown key; known here: %s", strings.Join(known, ", "))
}

func fieldNames(v reflect.Value) []string {
	var names []string
	for f := range v.Type().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func fieldByName(v reflect.Value, name string) (reflect.Value, bool) {
	for f, field := range v.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name && tag != "" {
			return field, true
		}
	}
	return reflect.Value{}, false
}

// nearest returns the name with the smallest edit distance, if that is small
// against the length of what was written.
func nearest(name string, known []string) (string, bool) {
	best, at := max(2, len(name)/2)+1, ""
	for _, k := range known {
		if dist := editDistance(name, k); dist < best {
			best, at = dist, k
		}
	}
	return at, at != ""
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

func lineOf(n ast.Node) int {
	switch x := n.(type) {
	case *ast.MappingNode:
		// The token of a block mapping is its first colon.
		if len(x.Values) > 0 {
			return lineOf(x.Values[0])
		}
	case *ast.MappingValueNode:
		return lineOf(x.Key)
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 1
}

func isScalar(n ast.Node) bool {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return true
	default:
		return false
	}
}

// scalarText is the text as it was written, "" for what is no scalar.
func scalarText(n ast.Node) string {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	}
	if isScalar(n) {
		return n.GetToken().Value
	}
	return ""
}

func isQuoted(n ast.Node) bool {
	t := n.GetToken()
	return t != nil && slices.Contains([]token.Type{token.SingleQuoteType, token.DoubleQuoteType, token.LiteralType, token.FoldedType}, t.Type)
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a section"
	case *ast.SequenceNode:
		return "a list"
	default:
		return "a single value"
	}
}
