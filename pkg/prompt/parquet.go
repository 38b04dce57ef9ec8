package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// parquetMagic begins every Parquet file.
const parquetMagic = "PAR1"

// ErrParquet reports a file that begins as Parquet and cannot be read.
var ErrParquet = errors.New("cannot read the Parquet file")

// parquetRows reads the columns that cfg names, and lists the names of all. A
// value that has no JSON makes its row a bad one.
func parquetRows(text []byte, cfg Config) (out []record, names []string, err error) {
	// The library panics on some damaged files.
	defer func() {
		if p := recover(); p != nil {
			out, names, err = nil, nil, fmt.Errorf("%w: it is damaged: %v", ErrParquet, p)
		}
	}()
	file, err := parquet.OpenFile(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrParquet, err)
	}
	if file.NumRows() == 0 {
		return nil, nil, ErrNoRows
	}
	var wanted []*parquet.Column
	for _, c := range file.Root().Columns() {
		names = append(names, c.Name())
		if slices.Contains([]string{cfg.InputKey, cfg.LabelKey, cfg.MetadataKey, cfg.ToolsKey}, c.Name()) {
			wanted = append(wanted, c)
		}
	}
	for _, group := range file.RowGroups() {
		if out, err = appendGroup(out, group, wanted); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrParquet, err)
		}
	}
	return out, names, nil
}

// appendGroup appends the rows of one row group.
func appendGroup(out []record, group parquet.RowGroup, wanted []*parquet.Column) ([]record, error) {
	rows := group.Rows()
	defer rows.Close()
	batch := make([]parquet.Row, 64)
	for {
		n, err := rows.ReadRows(batch)
		for _, r := range batch[:n] {
			columns, bad := assemble(r, wanted)
			out = append(out, record{line: int64(len(out)) + 1, columns: func() (row, error) { return columns, bad }})
		}
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, err
		case n == 0:
			return out, io.ErrNoProgress
		}
	}
}

// assemble makes JSON of a row's columns.
func assemble(values parquet.Row, wanted []*parquet.Column) (row, error) {
	a := assembler{}
	for _, v := range values {
		for len(a.leaves) <= v.Column() {
			a.leaves = append(a.leaves, nil)
		}
		a.leaves[v.Column()] = append(a.leaves[v.Column()], v)
	}
	columns := row{}
	for _, c := range wanted {
		if err := a.value(c); err != nil {
			return nil, fmt.Errorf("%q: %w", c.Name(), err)
		}
		if err := strict(a.json); err != nil {
			return nil, fmt.Errorf("%q: it %w", c.Name(), err)
		}
		columns[c.Name()] = a.json
		a.json = nil
	}
	return columns, nil
}

// assembler puts a row together from its leaves. Parquet stores each leaf of a
// nested value apart, with a definition level (how deep the value is there) and
// a repetition level (which list it continues).
type assembler struct {
	leaves [][]parquet.Value
	json   []byte
}

var errShape = errors.New("the values of the row do not fit its schema")

// firstLeaf is the column whose levels tell of the whole of c.
func firstLeaf(c *parquet.Column) *parquet.Column {
	for !c.Leaf() {
		if len(c.Columns()) == 0 {
			return nil
		}
		c = c.Columns()[0]
	}
	return c
}

// peek is the next value of c's first leaf.
func (a *assembler) peek(c *parquet.Column) (parquet.Value, bool) {
	leaf := firstLeaf(c)
	if leaf == nil || leaf.Index() >= len(a.leaves) || len(a.leaves[leaf.Index()]) == 0 {
		return parquet.Value{}, false
	}
	return a.leaves[leaf.Index()][0], true
}

// drop takes one value from every leaf of c.
func (a *assembler) drop(c *parquet.Column) error {
	if !c.Leaf() {
		for _, sub := range c.Columns() {
			if err := a.drop(sub); err != nil {
				return err
			}
		}
		return nil
	}
	if _, ok := a.peek(c); !ok {
		return errShape
	}
	a.leaves[c.Index()] = a.leaves[c.Index()][1:]
	return nil
}

// value appends c, of any kind.
func (a *assembler) value(c *parquet.Column) error {
	next, ok := a.peek(c)
	switch {
	case !ok:
		return errShape
	case c.Repeated():
		return a.list(c, c)
	case next.DefinitionLevel() < c.MaxDefinitionLevel():
		a.json = append(a.json, "null"...)
		return a.drop(c)
	default:
		return a.present(c)
	}
}

// present appends c, which is there and is one.
func (a *assembler) present(c *parquet.Column) error {
	if c.Leaf() {
		v, _ := a.peek(c)
		if err := a.leaf(c, v); err != nil {
			return err
		}
		return a.drop(c)
	}
	subs := c.Columns()
	if logical := c.Type().LogicalType(); logical != nil && len(subs) == 1 && subs[0].Repeated() {
		switch logical.Value.(type) {
		case *format.ListType:
			element := subs[0]
			if len(element.Columns()) == 1 {
				element = element.Columns()[0]
			}
			return a.list(subs[0], element)
		case *format.MapType:
			if len(subs[0].Columns()) == 2 {
				return a.dictionary(subs[0])
			}
		}
	}
	a.json = append(a.json, '{')
	for i, sub := range subs {
		if i > 0 {
			a.json = append(a.json, ',')
		}
		a.json = append(appendQuoted(a.json, sub.Name()), ':')
		if err := a.value(sub); err != nil {
			return err
		}
	}
	a.json = append(a.json, '}')
	return nil
}

// each calls one for every entry of the repeated column.
func (a *assembler) each(repeated *parquet.Column, one func() error) error {
	next, ok := a.peek(repeated)
	if !ok {
		return errShape
	}
	if next.DefinitionLevel() < repeated.MaxDefinitionLevel() {
		return a.drop(repeated)
	}
	for i := 0; ; i++ {
		if i > 0 {
			a.json = append(a.json, ',')
		}
		if err := one(); err != nil {
			return err
		}
		if next, ok = a.peek(repeated); !ok || next.RepetitionLevel() != repeated.MaxRepetitionLevel() {
			return nil
		}
	}
}

func (a *assembler) list(repeated, element *parquet.Column) error {
	a.json = append(a.json, '[')
	err := a.each(repeated, func() error {
		if element == repeated {
			return a.present(element)
		}
		return a.value(element)
	})
	a.json = append(a.json, ']')
	return err
}

// dictionary appends a map as an object.
func (a *assembler) dictionary(entries *parquet.Column) error {
	a.json = append(a.json, '{')
	err := a.each(entries, func() error {
		start := len(a.json)
		if err := a.value(entries.Columns()[0]); err != nil {
			return err
		}
		if start == len(a.json) || a.json[start] != '"' {
			return errors.New("a map must have texts for keys")
		}
		a.json = append(a.json, ':')
		return a.value(entries.Columns()[1])
	})
	a.json = append(a.json, '}')
	return err
}

// leaf appends one value. Dates and times are the numbers that are stored.
func (a *assembler) leaf(c *parquet.Column, v parquet.Value) error {
	var logical format.LogicalTypeValue
	if l := c.Type().LogicalType(); l != nil {
		logical = l.Value
	}
	if _, ok := logical.(*format.DecimalType); ok {
		return errors.New("a decimal cannot be read; store it as a double or as text")
	}
	integer, isInteger := logical.(*format.IntType)
	unsigned := isInteger && !integer.IsSigned
	switch v.Kind() {
	case parquet.Boolean:
		a.json = strconv.AppendBool(a.json, v.Boolean())
	case parquet.Int32:
		if unsigned {
			a.json = strconv.AppendUint(a.json, uint64(v.Uint32()), 10)
		} else {
			a.json = strconv.AppendInt(a.json, int64(v.Int32()), 10)
		}
	case parquet.Int64:
		if unsigned {
			a.json = strconv.AppendUint(a.json, v.Uint64(), 10)
		} else {
			a.json = strconv.AppendInt(a.json, v.Int64(), 10)
		}
	case parquet.Float:
		return a.number(float64(v.Float()), 32)
	case parquet.Double:
		return a.number(v.Double(), 64)
	case parquet.ByteArray, parquet.FixedLenByteArray:
		return a.text(v.ByteArray(), logical)
	default:
		return fmt.Errorf("a value of type %v cannot be read", v.Kind())
	}
	return nil
}

func (a *assembler) number(v float64, bits int) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return errors.New("it is not a finite number")
	}
	a.json = strconv.AppendFloat(a.json, v, 'g', -1, bits)
	return nil
}

func (a *assembler) text(text []byte, logical format.LogicalTypeValue) error {
	if _, ok := logical.(*format.JsonType); ok {
		if !json.Valid(text) {
			return errors.New("it is marked as JSON and is none")
		}
		a.json = append(a.json, text...)
		return nil
	}
	if !utf8.Valid(text) {
		return errors.New("it is bytes, and not text")
	}
	a.json = appendQuoted(a.json, string(text))
	return nil
}

// appendQuoted appends text as a JSON string, without the escapes for HTML.
func appendQuoted(dst []byte, text string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil { // a string always encodes
		return append(dst, `""`...)
	}
	return append(dst, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
