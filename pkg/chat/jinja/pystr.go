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
func str(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case markup:
		return string(v), nil
	case *undefined:
		return "", nil
	}
	return repr(v, 0)
}

// repr is Python's repr(). What Python prints with an address has none.
func repr(v Value, depth int) (string, error) {
	if depth > maxNesting {
		return "", fmt.Errorf("%w: a value is nested too deeply", ErrLimit)
	}
	switch v := v.(type) {
	case nil:
		return "None", nil
	case bool:
		if v {
			return "True", nil
		}
		return "False", nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case *big.Int:
		if v.BitLen() > 14000 { // Python refuses more than 4300 digits
			return "", valueError("Exceeds the limit (4300 digits) for integer string conversion")
		}
		return v.String(), nil
	case float64:
		return floatText(v), nil
	case string:
		return quote(v), nil
	case markup:
		return "Markup(" + quote(string(v)) + ")", nil
	case *undefined:
		return "Undefined", nil
	case *List:
		return reprItems("[", v.Items, "]", depth)
	case *Tuple:
		if len(v.Items) == 1 {
			return reprItems("(", v.Items, ",)", depth)
		}
		return reprItems("(", v.Items, ")", depth)
	case *Dict:
		return reprDict(v, depth)
	case *dictView:
		list, err := reprItems("[", v.items(), "]", depth)
		return "dict_" + v.kind + "(" + list + ")", err
	case *rangeValue:
		if v.step == 1 {
			return fmt.Sprintf("range(%d, %d)", v.start, v.stop), nil
		}
		return fmt.Sprintf("range(%d, %d, %d)", v.start, v.stop, v.step), nil
	case *namespace:
		d, err := reprDict(v.attrs, depth)
		return "<Namespace " + d + ">", err
	case *macroValue:
		return "<Macro " + quote(v.def.name) + ">", nil
	case *loopValue:
		return fmt.Sprintf("<LoopContext %d/%d>", v.at+1, len(v.list)), nil
	}
	return "", typeError("a %s has no text that could be printed", typeName(v))
}

func reprItems(open string, list []Value, closing string, depth int) (string, error) {
	var b strings.Builder
	b.WriteString(open)
	for i, item := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		s, err := repr(item, depth+1)
		if err != nil {
			return "", err
		}
		b.WriteString(s)
	}
	b.WriteString(closing)
	return b.String(), nil
}

func reprDict(d *Dict, depth int) (string, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range d.entries {
		if i > 0 {
			b.WriteString(", ")
		}
		key, err := repr(e.key, depth+1)
		if err != nil {
			return "", err
		}
		value, err := repr(e.value, depth+1)
		if err != nil {
			return "", err
		}
		b.WriteString(key + ": " + value)
	}
	b.WriteByte('}')
	return b.String(), nil
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
