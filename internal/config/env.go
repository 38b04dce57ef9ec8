package config

import (
	"regexp"
	"strings"
)

// A variable reference is hidden from the YAML parser, which would take its
// braces for a mapping, and is expanded in the scalar it stands in. So an
// expanded value can never become YAML, and a reference in a comment is nothing.
const (
	varOpen  = "\uE000"
	varClose = "\uE001"
)

var (
	reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)
	concealed = regexp.MustCompile(varOpen + `([^` + varClose + `]*)` + varClose)
)

func conceal(text string) string {
	return reference.ReplaceAllString(text, varOpen+"$1"+varClose)
}

// reveal undoes conceal, for messages.
func reveal(text string) string {
	return concealed.ReplaceAllString(text, "$${$1}")
}

// expand replaces references by what lookup finds, and lists those it does not.
func expand(text string, lookup func(string) (string, bool)) (expanded string, missing []string) {
	if !strings.Contains(text, varOpen) {
		return text, nil
	}
	expanded = concealed.ReplaceAllStringFunc(text, func(ref string) string {
		name := strings.TrimSuffix(strings.TrimPrefix(ref, varOpen), varClose)
		value, ok := lookup(name)
		if !ok {
			missing = append(missing, name)
		}
		return value
	})
	return expanded, missing
}
