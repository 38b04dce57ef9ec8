package jinja

import (
	"errors"
	"strings"
	"testing"
)

func TestLimits(t *testing.T) {
	for name, source := range map[string]string{
		"steps":           "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
		"output":          "{% for a in range(90000) %}{% for b in range(900) %}xxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
		"doubling text":   "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"doubling list":   "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"repeated text":   "{{ 'abc' * 100000000000 }}",
		"padding":         "{{ 'a'.center(100000000000) }}",
		"a power":         "{{ 10 ** 10000000 }}",
		"a format":        "{{ '%99999999999d' % 1 }}",
		"an indent":       "{{ 'a'|indent(100000000000, true) }}",
		"replacement":     "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
		"recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"recursive loop":  "{% set l = [1] %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
		"tojson indent":   "{{ [1]|tojson(indent=100000000000) }}",
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tmpl.Render(NewDict(0), Options{MaxSteps: 1 << 20, MaxOutput: 1 << 24}); !errors.Is(err, ErrLimit) {
				t.Errorf("error %v, want ErrLimit", err)
			}
		})
	}
}

func TestNestingOfTheSourceIsLimited(t *testing.T) {
	for _, source := range []string{
		"{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}",
		"{{ " + strings.Repeat("-", 5000) + "1 }}",
		"{{ " + strings.Repeat("not ", 5000) + "1 }}",
		"{{ " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + " }}",
		strings.Repeat("{% if 1 %}", 5000) + strings.Repeat("{% endif %}", 5000),
		"{% for " + strings.Repeat("(", 5000) + "a in b %}{% endfor %}",
	} {
		if _, err := Parse(source); err == nil {
			t.Errorf("%.40s… is parsed", source)
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		want   string
	}{
		"syntax":      {"a\nb {{ 1 + }}", "line 2"},
		"unknown tag": {"a\n\n{% nope %}", "line 3: encountered unknown tag 'nope'"},
		"undefined":   {"a\n{% if true %}\n{{ x.y }}{% endif %}", "line 3: UndefinedError: 'x' is undefined"},
		"raised":      {"{% macro m() %}\n{{ raise_exception('no') }}{% endmacro %}\n\n{{ m() }}", "line 2: the template refused its input: no"},
		"unsupported": {"{% include 'x' %}", "line 1: the tag 'include' is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(c.source)
			if err == nil {
				_, err = tmpl.Render(NewDict(0), Options{})
			}
			var at *Error
			if !errors.As(err, &at) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestRaisedErrorsAreTyped(t *testing.T) {
	tmpl, err := Parse("{{ raise_exception('no') }}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tmpl.Render(NewDict(0), Options{}); !errors.Is(err, ErrRaised) {
		t.Errorf("error %v, want ErrRaised", err)
	}
}

func TestLoopsOver(t *testing.T) {
	for source, want := range map[string]bool{
		"{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}":                     true,
		"{% for c in m['content'] %}{% endfor %}":                                                     true,
		"{% macro x(content) %}{% if 1 %}{% for c in content %}{% endfor %}{% endif %}{% endmacro %}": true,
		"{% for m in messages %}{{ m.content }}{% endfor %}":                                          false,
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := tmpl.LoopsOver("content"); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
}
