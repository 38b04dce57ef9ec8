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

func TestLimitsCountTheWorkInsideAStep(t *testing.T) {
	const (
		dag   = "{% set n=namespace(x=[1],y=[1]) %}{% for i in range(60) %}{% set n.x=[n.x,n.x] %}{% set n.y=[n.y,n.y] %}{% endfor %}"
		tuple = "{% set n=namespace(x=(1,),y=(1,)) %}{% for i in range(60) %}{% set n.x=(n.x,n.x) %}{% set n.y=(n.y,n.y) %}{% endfor %}"
		dict  = "{% set n=namespace(x={},y={}) %}{% for i in range(60) %}{% set n.x={'a':n.x,'b':n.x} %}{% set n.y={'a':n.y,'b':n.y} %}{% endfor %}"
		deep  = "{% set n=namespace(x=[1],y=[1]) %}{% for i in range(99999) %}{% set n.x=[n.x] %}{% set n.y=[n.y] %}{% endfor %}"
		text  = "{% set x='é'*5000000 %}{% set z='é'*5000000 %}{% for i in range(20000) %}{% set y="
		list  = "{% set l=range(100000)|list %}{% for i in range(20000) %}{% set y="
		big   = "{% set b=7**20000 %}{% set c=3**9000 %}{% for i in range(100000) %}{% set y="
		end   = " %}{% endfor %}"
	)
	for name, source := range map[string]string{
		"print":            dag + "{{ n.x }}",
		"print a tuple":    tuple + "{{ n.x }}",
		"print a dict":     dict + "{{ n.x }}",
		"string":           dag + "{{ n.x|string|length }}",
		"concat":           dag + "{{ n.x ~ '' }}",
		"format":           dag + "{{ '%s' % n.x }}",
		"format method":    dag + "{{ '{}'.format(n.x) }}",
		"join":             dag + "{{ [n.x]|join }}",
		"upper a list":     dag + "{{ n.x|upper }}",
		"tojson":           dag + "{{ n.x|tojson }}",
		"equal":            dag + "{{ n.x == n.y }}",
		"equal by a test":  dag + "{{ n.x is eq(n.y) }}",
		"unequal":          dag + "{{ n.x != n.y }}",
		"less":             dag + "{{ n.x < n.y }}",
		"in":               dag + "{{ n.x in [n.y] }}",
		"count":            dag + "{{ [n.x].count(n.y) }}",
		"index":            dag + "{{ [n.x].index(n.y) }}",
		"sort":             dag + "{{ [n.x,n.y]|sort|length }}",
		"max":              dag + "{{ [n.x,n.y]|max|length }}",
		"group by":         dag + "{{ [{'a':n.x},{'a':n.y}]|groupby('a')|length }}",
		"changed":          dag + "{% for i in [n.x,n.y] %}{{ loop.changed(i) }}{% endfor %}",
		"tuple key":        tuple + "{{ {n.x: 1}|length }}",
		"tuple lookup":     tuple + "{{ {1: 1}[n.x] }}",
		"tuple get":        tuple + "{{ {1: 1}.get(n.x) }}",
		"unique tuples":    tuple + "{{ [n.x,n.y]|unique|list|length }}",
		"equal dicts":      dict + "{{ n.x == n.y }}",
		"deep equal":       deep + "{{ n.x == n.y }}",
		"deep less":        deep + "{{ n.x < n.y }}",
		"deep print":       deep + "{{ n.x }}",
		"last character":   text + "x[-1]" + end,
		"a late character": text + "x[4999999]" + end,
		"length":           text + "x|length" + end,
		"reversed":         text + "x[::-1]" + end,
		"reverse":          text + "x|reverse" + end,
		"upper":            text + "x|upper" + end,
		"title":            text + "x|title" + end,
		"title method":     text + "x.title()" + end,
		"is upper":         text + "x is upper" + end,
		"json of text":     text + "x|tojson" + end,
		"split":            text + "x.split()" + end,
		"split at":         text + "x.split('é')" + end,
		"strip":            text + "x.strip('é')" + end,
		"find":             text + "x.find('a')" + end,
		"through a value":  text + "x['find']('a')" + end,
		"text equal":       text + "x == z" + end,
		"text less":        text + "x < z" + end,
		"text in text":     text + "'a' in x" + end,
		"text key":         text + "{x: 1}[z]" + end,
		"text sum":         text + "x + z" + end,
		"list of text":     text + "x|list" + end,
		"replace":          text + "x|replace('é', 'e')" + end,
		"map":              text + "[x]|map('upper')|list" + end,
		"select":           text + "[x]|select('eq', z)|list" + end,
		"escape":           text + "x|e" + end,
		"print in a block": "{% set x='é'*5000000 %}{% for i in range(20000) %}{% set y %}{{ x }}{% endset %}{% endfor %}",
		"range list":       "{% for i in range(100000) %}{% set y = -1 in range(100000)|list %}{% endfor %}",
		"list slice":       list + "l[::-1]" + end,
		"list in":          list + "-1 in l" + end,
		"sort a list":      list + "l|sort" + end,
		"list sum":         list + "l + l" + end,
		"sum of lists":     "{% set l=range(100000)|batch(1)|list %}{{ l|sum(start=[])|length }}",
		"reverse a list":   list + "l|reverse" + end,
		"copy":             list + "l.copy()" + end,
		"tuple keys":       "{% set d=dict(range(100000)|map('string')|list|batch(2)) %}{% for i in range(100000) %}{% set y=i in d %}{% endfor %}",
		"modulo":           big + "b % c" + end,
		"product":          big + "b * 3" + end,
		"quotient":         big + "b // c" + end,
		"big hex":          big + "'%x' % b" + end,
		"wide format":      "{% for i in range(100000) %}{% set y='%1000000d' % i %}{% endfor %}",
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			_, err = tmpl.Render(NewDict(0), Options{MaxSteps: 3e6})
			var located *Error
			if !errors.Is(err, ErrLimit) || !errors.As(err, &located) || located.Line != 1 {
				t.Errorf("error %v, want ErrLimit at line 1", err)
			}
		})
	}
}

func TestLimitsLeaveRoomForLongConversations(t *testing.T) {
	tmpl, err := Parse("{% for m in messages %}{% set c = m.content.split('</think>')[-1]|trim %}" +
		"{{ '<|im_start|>' + m['role'] + '\n' + c + '<|im_end|>' + '\n' }}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
	if err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("é x ", 400)
	messages := &List{}
	for range 200 {
		m := NewDict(2)
		m.Set("role", "user")
		m.Set("content", content)
		messages.Items = append(messages.Items, m)
	}
	vars := NewDict(2)
	vars.Set("messages", messages)
	vars.Set("add_generation_prompt", true)
	text, err := tmpl.Render(vars, Options{MaxSteps: 1e6}) // a twentieth of the default
	if err != nil || len(text) < 200*len(content)-200 {
		t.Errorf("%d bytes, error %v", len(text), err)
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
