package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/unidata"
)

// str is Python's str().
func (rt *runtime) str(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case markup:
		return string(v), nil
	case *undefined:
		return "", nil
	}
	return rt.repr(v)
}

// repr is Python's repr(). What Python prints with an address has none.
func (rt *runtime) repr(v Value) (string, error) {
	out, err := rt.appendRepr(nil, v, 0)
	return string(out), err
}

func (rt *runtime) appendRepr(out []byte, v Value, depth int) ([]byte, error) {
	if depth > maxNesting {
		return out, fmt.Errorf("%w: a value is nested too deeply", ErrLimit)
	}
	rt.charge(v)
	if err := rt.spent(rt.room(len(out))); err != nil {
		return out, err
	}
	switch v := v.(type) {
	case nil:
		return append(out, "None"...), nil
	case bool:
		if v {
			return append(out, "True"...), nil
		}
		return append(out, "False"...), nil
	case int64:
		return strconv.AppendInt(out, v, 10), nil
	case *big.Int:
		if v.BitLen() > 14000 { // Python refuses more than 4300 digits
			return out, valueError("Exceeds the limit (4300 digits) for integer string conversion")
		}
		return v.Append(out, 10), nil
	case float64:
		return append(out, floatText(v)...), nil
	case string:
		return append(out, quote(v)...), nil
	case markup:
		return append(append(append(out, "Markup("...), quote(string(v))...), ')'), nil
	case *undefined:
		return append(out, "Undefined"...), nil
	case *List:
		return rt.appendItems(out, "[", v.Items, "]", depth)
	case *Tuple:
		if len(v.Items) == 1 {
			return rt.appendItems(out, "(", v.Items, ",)", depth)
		}
		return rt.appendItems(out, "(", v.Items, ")", depth)
	case *Dict:
		return rt.appendDict(out, v, depth)
	case *dictView:
		return rt.appendItems(out, "dict_"+v.kind+"([", v.items(), "])", depth)
	case *rangeValue:
		if v.step == 1 {
			return fmt.Appendf(out, "range(%d, %d)", v.start, v.stop), nil
		}
		return fmt.Appendf(out, "range(%d, %d, %d)", v.start, v.stop, v.step), nil
	case *namespace:
		out, err := rt.appendDict(append(out, "<Namespace "...), v.attrs, depth)
		return append(out, '>'), err
	case *macroValue:
		return append(out, "<Macro "+quote(v.def.name)+">"...), nil
	case *loopValue:
		return fmt.Appendf(out, "<LoopContext %d/%d>", v.at+1, len(v.list)), nil
	}
	return out, typeError("a %s has no text that could be printed", typeName(v))
}

func (rt *runtime) appendItems(out []byte, open string, list []Value, closing string, depth int) ([]byte, error) {
	out = append(out, open...)
	for i, item := range list {
		if i > 0 {
			out = append(out, ", "...)
		}
		var err error
		if out, err = rt.appendRepr(out, item, depth+1); err != nil {
			return out, err
		}
	}
	return append(out, closing...), nil
}

func (rt *runtime) appendDict(out []byte, d *Dict, depth int) ([]byte, error) {
	out = append(out, '{')
	for i, e := range d.entries {
		if i > 0 {
			out = append(out, ", "...)
		}
		var err error
		if out, err = rt.appendRepr(out, e.key, depth+1); err != nil {
			return out, err
		}
		if out, err = rt.appendRepr(append(out, ": "...), e.value, depth+1); err != nil {
			return out, err
		}
	}
	return append(out, '}'), nil
}

// quote writes a string literal as Python does.
func quote(s string) string {
	q := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		q = '"'
	}
	out := make([]byte, 0, len(s)+2)
	out = append(out, q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			out = append(out, '\\', byte(r))
		case r == '\n':
			out = append(out, `\n`...)
		case r == '\r':
			out = append(out, `\r`...)
		case r == '\t':
			out = append(out, `\t`...)
		case printable(r):
			out = utf8.AppendRune(out, r)
		case r < 0x100:
			out = fmt.Appendf(out, `\x%02x`, r)
		case r < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = fmt.Appendf(out, `\U%08x`, r)
		}
	}
	return string(append(out, q))
}

// printable is Python's str.isprintable for one character.
func printable(r rune) bool {
	if r < 0x80 {
		return ' ' <= r && r < 0x7F
	}
	switch unidata.Load().Of(r) {
	case unidata.Cn, unidata.Cc, unidata.Cf, unidata.Co, unidata.Zs, unidata.Zl, unidata.Zp:
		return false
	}
	return true
}

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool {
	return unidata.IsSpace(r) || 0x1C <= r && r <= 0x1F
}

// escapeHTML is markupsafe's escape.
func escapeHTML(s string) string {
	if !strings.ContainsAny(s, `&<>'"`) {
		return s
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(s)
}
