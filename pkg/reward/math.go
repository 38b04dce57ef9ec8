package reward

import "strings"

// Math reports whether the last \boxed answer of a response is the label, both
// read as school mathematics. They are the same when, after each of two
// clean-ups, they are the same text, or tuples of the same length and brackets
// whose elements are equal as values. Two elements are compared as values only
// where that is fair:
//
//   - an integer matches only what is written as an integer, so 10^3 does not
//     answer 1000;
//   - two fractions must be written alike, so 2/4 does not answer 1/2;
//   - the two have at most two different letters between them, and exponents of
//     one digit.
//
// Values are exact rational numbers and their square roots; letters stand for
// any number. The label may itself be boxed.
func Math(response, label string) bool {
	truth := label
	if strings.Contains(label, `\boxed`) {
		var ok bool
		if truth, ok = lastBoxed(label); !ok {
			return false
		}
	}
	answer, ok := lastBoxed(response)
	if !ok || truth == "" {
		return false
	}
	if len(answer)+len(truth) > maxAnswer {
		return strings.TrimSpace(answer) == strings.TrimSpace(truth)
	}
	return plainForm(answer) == plainForm(truth) || equalForms(valueForm(answer), valueForm(truth))
}

// maxAnswer bounds, in bytes, the answers that are read as mathematics.
const maxAnswer = 8 << 10

// lastBoxed is the content of the last \boxed{…}, braces balanced.
func lastBoxed(text string) (string, bool) {
	const open = `\boxed{`
	i := strings.LastIndex(text, `\boxed`)
	if i < 0 || !strings.HasPrefix(text[i:], open) {
		return "", false
	}
	text = text[i+len(open):]
	end := closing(text)
	if end < 0 {
		return "", false
	}
	return text[:end], true
}

// closing is the index of the brace that closes a group whose opening brace
// stands before text, or -1.
func closing(text string) int {
	depth := 1
	for i := range len(text) {
		switch text[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// equalForms compares two value forms.
func equalForms(answer, truth string) bool {
	if answer == truth {
		return true
	}
	if answer == "" || truth == "" {
		return false
	}
	as, ts := elements(answer), elements(truth)
	if len(as) != len(ts) {
		return false
	}
	if len(ts) > 1 && (answer[0] != truth[0] || answer[len(answer)-1] != truth[len(truth)-1]) {
		return false
	}
	for i := range ts {
		if !equalElements(as[i], ts[i]) {
			return false
		}
	}
	return true
}

func equalElements(a, t string) bool {
	if fraction.MatchString(a) && fraction.MatchString(t) {
		return a == t
	}
	if isInteger(a) != isInteger(t) {
		return false
	}
	return a == t || identical(a, t)
}

// elements takes a bracketed tuple apart; anything else is one element.
func elements(form string) []string {
	const brackets = "()[]"
	form = joinThousands(form)
	n := len(form)
	if n <= 2 || !strings.ContainsRune(brackets, rune(form[0])) || !strings.ContainsRune(brackets, rune(form[n-1])) ||
		strings.ContainsAny(form[1:n-1], brackets) {
		return []string{form}
	}
	parts := strings.Split(form[1:n-1], ",")
	for i, part := range parts {
		parts[i] = strings.TrimSpace(part)
	}
	return parts
}
