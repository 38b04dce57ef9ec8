package reward

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

var (
	wholeText  = regexp.MustCompile(`^\\text\{(.+?)\}$`)
	ratio      = regexp.MustCompile(`^(0|-?[1-9]\d*)/(0|-?[1-9]\d*)$`)
	fraction   = regexp.MustCompile(`^-?[0-9]+.?/0*[1-9][0-9]*.?$`)
	thousands  = regexp.MustCompile(`(\d),(\d\d\d)($|\D)`)
	decimal    = regexp.MustCompile(`^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$`)
	units      = regexp.MustCompile(`(degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard)(es)?s? *(\^[0-9]+)?`)
	degrees    = regexp.MustCompile(`\^ *\\circ`)
	thinComma  = regexp.MustCompile(`,\\! *`)
	looseMinus = regexp.MustCompile(`- *`)
	mixed      = regexp.MustCompile(`([0-9]) +([0-9])`)
)

// plainForm is the first clean-up: it takes away what does not change an answer
// (spaces, sizes of brackets and fractions, units on the right, "x =") and
// writes fractions and roots in one way. What it cannot read it leaves alone.
func plainForm(answer string) string {
	answer = strings.TrimSpace(answer)
	if m := wholeText.FindStringSubmatch(answer); m != nil {
		answer = strings.TrimSpace(m[1])
	}
	s := strings.NewReplacer("\n", "", `\!`, "", `\\`, `\`).Replace(answer)
	s = strings.NewReplacer("tfrac", "frac", "dfrac", "frac").Replace(s)
	s = strings.NewReplacer(`\left`, "", `\right`, "", `^{\circ}`, "", `^\circ`, "", `\$`, "").Replace(s)
	if before, after, ok := strings.Cut(s, `\text{ `); ok {
		if strings.Contains(after, `\text{ `) {
			return answer // more than a unit on the right
		}
		s = before
	}
	s = strings.ReplaceAll(s, `\%`, "")
	s = strings.NewReplacer(" .", " 0.", "{.", "{0.").Replace(s)
	if strings.HasPrefix(s, ".") {
		s = "0" + s
	}
	if name, value, ok := strings.Cut(s, "="); ok && len(name) <= 2 && !strings.Contains(value, "=") {
		s = value
	}
	s, ok := braceArguments(s, `\sqrt`, 1)
	if !ok {
		return answer
	}
	s = strings.ReplaceAll(s, " ", "")
	if s, ok = braceArguments(s, `\frac`, 2); !ok {
		return answer
	}
	switch {
	case s == "0.5":
		return `\frac{1}{2}`
	case ratio.MatchString(s):
		a, b, _ := strings.Cut(s, "/")
		return `\frac{` + a + `}{` + b + `}`
	}
	return s
}

// braceArguments writes the arguments of a command, where they are single
// characters, in braces: \frac12 becomes \frac{1}{2}. ok is false when one is
// missing.
func braceArguments(s, command string, arguments int) (out string, ok bool) {
	parts := strings.Split(s, command)
	var b strings.Builder
	b.WriteString(parts[0])
	for _, rest := range parts[1:] {
		b.WriteString(command)
		for n := 0; n < arguments && !strings.HasPrefix(rest, "{"); n++ {
			if rest == "" {
				return "", false
			}
			r := []rune(rest)
			b.WriteString("{" + string(r[0]) + "}")
			rest = string(r[1:])
		}
		b.WriteString(rest)
	}
	return b.String(), true
}

// valueForm is the second clean-up: it takes LaTeX down to arithmetic as one
// types it.
func valueForm(s string) string {
	if m := wholeText.FindStringSubmatch(s); m != nil {
		s = m[1]
	}
	s = strings.NewReplacer(`\%`, "", `\$`, "", "$", "", "%", "").Replace(s)
	s = strings.NewReplacer(" or ", " , ", " and ", " , ").Replace(s)
	s = strings.NewReplacer("million", "*10^6", "billion", "*10^9", "trillion", "*10^12").Replace(s)
	s = units.ReplaceAllString(s, "")
	s = degrees.ReplaceAllString(s, "")
	if len(s) > 1 && s[0] == '{' && s[len(s)-1] == '}' {
		s = s[1 : len(s)-1]
	}
	s = thinComma.ReplaceAllString(s, "")
	s = asInteger(s)
	if strings.Contains(s, `\`) {
		s = strings.TrimSpace(latexText(s))
	}
	s = looseMinus.ReplaceAllString(s, "-")
	s = mixed.ReplaceAllString(s, "$1+$2") // 7 3/4 is 7+3/4
	s = strings.NewReplacer(" ", "", "\n", "", "{", "", "}", "").Replace(s)
	s = strings.ToLower(s)
	if isInteger(s) {
		s = asInteger(joinThousands(s))
	}
	return s
}

func joinThousands(s string) string {
	for {
		joined := thousands.ReplaceAllString(s, "$1$2$3")
		if joined == s {
			return s
		}
		s = joined
	}
}

// isInteger tells text that writes a whole number: 5, 5.0, 1e3, 1,234.
func isInteger(s string) bool { return asIntegerOK(joinThousands(s)) != "" }

// asInteger writes a whole number in plain digits, and leaves all else alone.
func asInteger(s string) string {
	if digits := asIntegerOK(s); digits != "" {
		return digits
	}
	return s
}

// asIntegerOK is "" for what is no whole number, to seven digits behind the
// point.
func asIntegerOK(s string) string {
	if !decimal.MatchString(s) {
		return ""
	}
	s = strings.TrimSpace(s)
	if whole, ok := new(big.Int).SetString(s, 10); ok {
		return whole.String()
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.Abs(v-math.RoundToEven(v)) > 1e-7 {
		return ""
	}
	whole, _ := big.NewFloat(math.RoundToEven(v)).Int(nil)
	return whole.String()
}
