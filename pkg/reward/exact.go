package reward

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Exact reports whether the answer in a response is the label. The answer is
// what stands after the last "</think>", without spaces around it: all of it, or
// the number at its very end. So "3+4=7" and "7" answer 7, and "about 7." does
// not. Numbers are compared as they are written, but for "," between groups of
// three digits.
func Exact(response, label string) bool {
	answer, label := strings.TrimSpace(afterThinking(response)), strings.TrimSpace(label)
	if answer == label {
		return true
	}
	number := endNumber(answer)
	return number != "" && (number == label || strings.ReplaceAll(number, ",", "") == strings.ReplaceAll(label, ",", ""))
}

// afterThinking is the text after the last "</think>", all of it where none is.
func afterThinking(text string) string {
	if i := strings.LastIndex(text, "</think>"); i >= 0 {
		return text[i+len("</think>"):]
	}
	return text
}

var plainNumber = regexp.MustCompile(`^(\d{1,3}(,\d{3})+|\d+)(\.\d+)?$`)

// endNumber is the number at the very end of a text, "" where there is none.
func endNumber(text string) string {
	start := len(text)
	for start > 0 && strings.IndexByte("0123456789.,", text[start-1]) >= 0 {
		start--
	}
	for !plainNumber.MatchString(text[start:]) {
		// "3,4" is two numbers; "1.2.3" is none.
		comma := strings.IndexAny(text[start:], ",.")
		if comma < 0 || text[start+comma] == '.' {
			return ""
		}
		start += comma + 1
	}
	before := text[:start]
	if r, _ := utf8.DecodeLastRuneInString(before); unicode.IsLetter(r) || r == '_' {
		return "" // the end of a word, such as v2
	}
	if sign, isSigned := strings.CutSuffix(before, "-"); isSigned && !endsOperand(sign) {
		return "-" + text[start:]
	}
	return text[start:]
}

// endsOperand tells a minus after the text to be an operation, and not a sign.
func endsOperand(text string) bool {
	r, _ := utf8.DecodeLastRuneInString(strings.TrimRight(text, " "))
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == ')' || r == ']' || r == '}'
}
