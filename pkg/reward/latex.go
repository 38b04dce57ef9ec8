package reward

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// symbols are the commands with a text of their own. A command that is not here
// stays as it is: it can only equal itself.
var symbols = map[string]string{
	`\pi`: "pi", `\cdot`: "*", `\times`: "*", `\ast`: "*", `\infty`: "inf", `\cup`: "U",
	`\left`: "", `\right`: "", `\big`: "", `\Big`: "", `\bigl`: "", `\bigr`: "", `\displaystyle`: "", `\!`: "",
	`\,`: " ", `\;`: " ", `\:`: " ", `\ `: " ", `\quad`: " ", `\qquad`: " ", `\\`: "\n",
	`\{`: "{", `\}`: "}", `\_`: "_", `\&`: "&", `\#`: "#",
	`\alpha`: "α", `\beta`: "β", `\gamma`: "γ", `\delta`: "δ", `\epsilon`: "ε", `\theta`: "θ", `\lambda`: "λ", `\mu`: "μ",
	`\rho`: "ρ", `\sigma`: "σ", `\tau`: "τ", `\phi`: "φ", `\omega`: "ω",
}

// wrappers are commands that only style their argument.
var wrappers = map[string]bool{
	`\text`: true, `\textbf`: true, `\textit`: true, `\textrm`: true, `\mathrm`: true, `\mathbf`: true, `\mathit`: true,
	`\mathsf`: true, `\mathbb`: true, `\mbox`: true, `\operatorname`: true, `\boxed`: true,
}

// maxDepth bounds how deep arguments may nest; deeper text is left alone.
const maxDepth = 100

// latexText writes LaTeX as plain arithmetic: \frac{1}{2} as 1/2, \sqrt{2} as
// sqrt(2), x^{2} as x^2. A mixed number keeps a space before its fraction.
func latexText(s string) string { return latexTextAt(s, 0) }

func latexTextAt(s string, depth int) string {
	if depth > maxDepth {
		return s
	}
	var b strings.Builder
	for s != "" {
		token, rest := nextToken(s)
		s = rest
		switch {
		case token == `\frac` || token == `\dfrac` || token == `\tfrac` || token == `\cfrac`:
			var over, under string
			over, s = argument(s, depth)
			under, s = argument(s, depth)
			b.WriteString(" " + numerator(over) + "/" + factor(under))
		case token == `\sqrt`:
			if strings.HasPrefix(s, "[") {
				b.WriteString(token) // a root of another degree
				continue
			}
			var of string
			of, s = argument(s, depth)
			b.WriteString("sqrt(" + of + ")")
		case wrappers[token]:
			var of string
			of, s = argument(s, depth)
			b.WriteString(of)
		case token == "^":
			var of string
			of, s = argument(s, depth)
			b.WriteString("^" + factor(of))
		case token == "{":
			end := closing(s)
			if end < 0 {
				continue
			}
			b.WriteString(latexTextAt(s[:end], depth+1))
			s = s[end+1:]
		case token == "}":
		case token == "~":
			b.WriteByte(' ')
		default:
			if text, ok := symbols[token]; ok {
				token = text
			}
			b.WriteString(token)
		}
	}
	return b.String()
}

// nextToken cuts the first command or character off s.
func nextToken(s string) (token, rest string) {
	_, n := utf8.DecodeRuneInString(s)
	if s[0] != '\\' || len(s) == 1 {
		return s[:n], s[n:]
	}
	for n < len(s) && isASCIILetter(s[n]) {
		n++
	}
	if n == 1 {
		_, size := utf8.DecodeRuneInString(s[1:])
		n += size
	}
	return s[:n], s[n:]
}

// argument takes a command's argument off s: a group in braces or one token.
func argument(s string, depth int) (text, rest string) {
	s = strings.TrimLeft(s, " ")
	if s == "" {
		return "", ""
	}
	token, rest := nextToken(s)
	if token != "{" {
		return latexTextAt(token, depth+1), rest
	}
	end := closing(rest)
	if end < 0 {
		return "", rest
	}
	return strings.TrimSpace(latexTextAt(rest[:end], depth+1)), rest[end+1:]
}

// single is what needs no parentheses to be a denominator or an exponent: a
// number, a letter, a word, a root, or what has parentheses already.
var single = regexp.MustCompile(`^(-?\d+\.?\d*|\pL|pi|\pL{3,}|(sqrt)?\([^()]*\))$`)

// factor writes an expression so that it stays one beside a / or ^.
func factor(s string) string {
	if single.MatchString(s) {
		return s
	}
	return "(" + s + ")"
}

// numerator writes an expression so that a / after it divides all of it.
func numerator(s string) string {
	depth := 0
	for i, r := range s {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case depth == 0 && i > 0 && (r == '+' || r == '-'):
			return "(" + s + ")"
		}
	}
	return s
}

func isASCIILetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
