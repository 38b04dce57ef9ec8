"""Writes pkg/chat/jinja/testdata/golden.json: small templates and what Python's jinja2 makes of them.

    .venv/bin/python scripts/chatmodels/golden_jinja.py
"""

import json
import pathlib

from jinja_env import environment, render

ROOT = pathlib.Path(__file__).parents[2]
OUT = ROOT / "pkg/chat/jinja/testdata/golden.json"

VARS = {
    "s": "Hello, wörld ſtraße", "empty": "", "n": 3, "f": 2.5, "neg": -7, "big": 123456789012345678901, "none": None,
    "yes": True, "no": False, "list": [3, 1, 2], "words": ["b", "A", "c", "a"], "mixed": [1, "a", None, 2.0, True],
    "d": {"z": 1, "a": [1, {"k": None}], "items": "shadow", "m": {"x": {"y": 5}}},
    "users": [{"name": "Bo", "age": 3, "ok": True}, {"name": "al", "age": 1}, {"name": "Cy", "age": 3, "ok": False}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}],
    "floats": [1.0, -0.0, 1e16, 1e15, 1.5e-5, 0.0001, 1e22, 123456.789, 1e-7, 5e-324, 1.7976931348623157e308],
    "html": "<a href=\"x\">'&'</a>", "quote": "it's \"q\" \\ \n\t\x00\x7f\u0085\u200b\ud7ff\U0001f600", "lines": "a\n\n b\r\nc\x0bd",
    "shadow_loop": "outer",
}

TEMPLATES = r'''
{{ s }}|{{ empty }}|{{ n }}|{{ f }}|{{ neg }}|{{ big }}|{{ none }}|{{ yes }}|{{ no }}
{{ list }} {{ words }} {{ mixed }} {{ d }} {{ floats }}
{{ quote }}|{{ [quote] }}|{{ {'k': html} }}
{{ missing }}|{{ missing is defined }}|{{ missing or 'x' }}|{{ missing|default('y') }}|{{ none|default('y') }}|{{ none|default('y', true) }}
{{ missing.attr }}
{{ missing['attr'] }}
{{ none.attr }}|{{ none['x'] }}|{{ none.attr is defined }}
{{ none.attr.more }}
{{ missing + 1 }}
{{ missing < 1 }}
{{ missing == missing }}|{{ missing == none }}|{{ 'x' in missing }}|{{ missing|length }}|{{ missing|list }}|{{ missing|join(',') }}
{% for x in missing %}{{ x }}{% else %}none{% endfor %}
{% for x in none %}{{ x }}{% endfor %}
{% for x in n %}{{ x }}{% endfor %}
{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ 1e308 * 10 }} {{ -1e308 * 10 }}
{{ big + 1 }} {{ big * big }} {{ big // 7 }} {{ big % 7 }} {{ -big // 7 }} {{ -big % 7 }} {{ big - big }} {{ 9223372036854775807 + 1 }} {{ -9223372036854775807 - 2 }}
{{ big / 3 }} {{ big * 1.0 }} {{ big|float }} {{ big == big * 1.0 }} {{ 2**64 > 1.5 }} {{ 2**70 < 1e30 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1.0 % 0 }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'a' + none }}
{{ [1] + 'a' }}
{{ none + none }}
{{ 'a' * 3 }} {{ 3 * 'ab' }} {{ [1, 2] * 2 }} {{ 'a' * -1 }} {{ (1, 2) + (3,) }} {{ [1] + [2] }}
{{ true + 1 }} {{ true * 5 }} {{ -true }} {{ +false }} {{ true / 2 }}
{{ -'a' }}
{{ 'a' ~ 1 ~ none ~ 2.0 ~ true ~ missing ~ [1, 'x'] }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == none }} {{ (1, 2) == [1, 2] }} {{ 'é' > 'z' }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ [1] < (2,) }}
{{ 1 in list }} {{ 9 in list }} {{ 'ell' in s }} {{ 'z' in d }} {{ 'items' in d }} {{ none in mixed }} {{ 2 not in list }}
{{ 1 in 'a' }}
{{ 'a' in none }}
{{ 'a' in 1 }}
{{ none in 'x' }}
{{ not 1 }} {{ not '' }} {{ not none and true }} {{ 1 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ 1 if yes }} {{ 1 if no }}|{{ 'a' if no else 'b' if yes else 'c' }}
{{ (1 if no).x }}
{{ d.z }} {{ d['a'][1].k }} {{ d.m.x.y }} {{ d.nope }} {{ d['items'] }} {{ d.items()|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get('z') }} {{ d.get('q') }} {{ d.get('q', 7) }}
{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ d.items()|length }}
{{ d.items()[0] }}
{{ list[0] }} {{ list[-1] }} {{ list[9] }}|{{ list['0'] }}|{{ list.0 }} {{ d.a.1.k }} {{ s[0] }} {{ s[-1] }} {{ s[99] }}|
{{ list[1:] }} {{ list[:-1] }} {{ list[::-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[::2] }} {{ s[-3:] }} {{ list[5:] }} {{ list[2:0:-1] }} {{ list[-99:99] }} {{ (1,2,3)[1:] }}
{{ list[::0] }}
{{ n[1:] }}|{{ none[1:] }}|{{ d[1:] }}|
{{ list['a':] }}|
{{ range(3) }} {{ range(3)|list }} {{ range(1, 10, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(10)[3] }} {{ range(3)|length }}
{{ range(100001)|length }}
{{ range('a') }}
{{ range(0, 5, 0) }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s|upper }} {{ s|lower }} {{ s|title }} {{ s|capitalize }} {{ 'ß'|upper }} {{ 'ΑΣ'|lower }} {{ "they're bill's"|title }} {{ "they're bill's".title() }} {{ 'foo-bar (baz'|title }}
{{ '  x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xa '.lstrip('x') }}|{{ ' ax'.rstrip('x') }}|{{ '\u00a0\u3000x\x1c'|trim }}|{{ 'abca'|trim('a') }}|{{ '  '|trim }}|
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'a b  c'.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a b c'.rsplit() }} {{ ' a b '.rsplit(none, 1) }} {{ 'aXbXc'.split('X', maxsplit=1) }}
{{ 'abc'.split('') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a\n'.splitlines() }}
{{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'aßc'.find('c') }} {{ 'abcabc'.rfind('b') }} {{ 'abab'.count('ab') }} {{ 'abc'.index('b') }}
{{ 'abc'.index('z') }}
{{ 'abc'.startswith(1) }}
{{ 'abcabc'.replace('b', 'X') }} {{ 'abcabc'.replace('b', 'X', 1) }} {{ 'abcabc'|replace('b', 'X') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ 12321|replace(2, 'x') }}
{{ ','.join(['a', 'b']) }} {{ ['a', 1, none]|join('-') }} {{ list|join }} {{ users|join(', ', attribute='name') }} {{ s|join('.') }}
{{ ','.join([1]) }}
{{ 'abc'.nope }}|{{ 'abc'.nope is defined }}
{{ 'abc'.nope() }}
{{ 'a'.isdigit() }} {{ '12'.isdigit() }} {{ '²'.isdigit() }} {{ '½'.isnumeric() }} {{ 'a1'.isalnum() }} {{ 'aé'.isalpha() }} {{ ' \t'.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ ''.isalpha() }} {{ 'é'.isascii() }}
{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'ab'.zfill(5) }} {{ '-5'.zfill(4) }} {{ 'ab'.center(7, '*') }}| {{ 'ab'.center(5) }}| {{ 'abc'.center(6) }}| {{ 'ab'.ljust(4) }}| {{ 'ab'.rjust(4) }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'Ab'.swapcase() }}
{{ '%s is %d and %.2f %5s|%-5s|%05d %x %%' % ('a', 3, 2.5, 'r', 'l', 42, 255) }} {{ '%s' % none }} {{ '%s' % [1, 'a'] }} {{ '%r' % 'a' }} {{ '%(k)s' % {'k': 1} }} {{ '%g %g %e' % (1e10, 0.0001, 12345.678) }} {{ '%+d % d' % (3, 4) }}
{{ '%s %s' % ('a',) }}
{{ '%d' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ '{} {} {x}'.format(1, 'b', x=none) }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{{}}'.format() }}
{{ '%s-%s'|format(1, 'x') }} {{ '%(a)s'|format(a=2) }}
{{ list|length }} {{ s|length }} {{ d|length }} {{ list|count }}
{{ n|length }}
{{ none|length }}
{{ list|first }} {{ list|last }} {{ []|first }}|{{ []|last }}|{{ s|first }} {{ d|first }} {{ list|max }} {{ list|min }} {{ words|max }} {{ words|min }} {{ []|max }}| {{ users|max(attribute='age') }}
{{ list|sum }} {{ floats[:2]|sum }} {{ users|sum(attribute='age') }} {{ users|sum('age', 10) }} {{ []|sum }} {{ list|sum(start=1.5) }}
{{ words|sum }}
{{ list|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ list|sort(reverse=true) }} {{ users|sort(attribute='age')|map(attribute='name')|list }} {{ users|sort(attribute='age,name')|map(attribute='name')|list }} {{ users|sort(true, attribute='name')|map(attribute='name')|list }}
{{ mixed|sort }}
{{ words|unique|list }} {{ [1, 1.0, true, 2]|unique|list }} {{ users|unique(attribute='age')|map(attribute='name')|list }} {{ words|unique(true)|list }}
{{ words|reverse|list }} {{ s|reverse }} {{ list|reverse|first }}
{{ n|reverse }}
{{ users|map(attribute='name')|list }} {{ users|map(attribute='ok')|list }} {{ users|map(attribute='ok', default='?')|list }} {{ words|map('upper')|list }} {{ ['1', '2']|map('int')|sum }} {{ words|map('replace', 'a', 'x')|join }} {{ [[1, 2], [3]]|map('first')|list }} {{ users|map(attribute='name.0')|list }}
{{ words|map('nope')|list }}
{{ list|select('odd')|list }} {{ list|reject('odd')|list }} {{ list|select('>', 1)|list }} {{ mixed|select|list }} {{ users|selectattr('ok')|map(attribute='name')|list }} {{ users|rejectattr('ok')|map(attribute='name')|list }} {{ users|selectattr('age', 'equalto', 3)|list|length }} {{ users|selectattr('name', 'in', ['Bo', 'Cy'])|map(attribute='name')|join(',') }} {{ users|selectattr('ok', 'defined')|list|length }}
{{ list|select('nope')|list }}
{{ list|batch(2)|list }} {{ list|batch(2, 'x')|list }} {{ list|slice(2)|list }} {{ range(7)|slice(3, '-')|list }}
{% for g, items in users|groupby('age') %}{{ g }}:{{ items|map(attribute='name')|join('+') }};{% endfor %}{{ users|groupby('age')|first }}
{{ d|dictsort }} {{ {'b': 1, 'A': 3, 'c': 2}|dictsort }} {{ {'b': 1, 'A': 3}|dictsort(true) }} {{ {'b': 1, 'a': 3}|dictsort(by='value', reverse=true) }} {{ d|items|list }} {{ missing|items|list }}
{{ '3'|int }} {{ '3.7'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ '0x1f'|int(base=16) }} {{ 3.99|int }} {{ -3.99|int }} {{ none|int }} {{ true|int }} {{ ' 12 '|int }} {{ '1_000'|int }} {{ '٣'|int }} {{ '1e3'|int }} {{ [1]|int }}
{{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ none|float }} {{ 'inf'|float }} {{ 'nan'|float }} {{ '1e5'|float }}
{{ missing|int }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 1234|round(-2) }} {{ 2.1|round(method='ceil') }} {{ 2.9|round(0, 'floor') }} {{ 42.55|round(1, 'floor') }} {{ 3|round }} {{ -2.5|round }} {{ 0.5|round }} {{ 1250|round(-2) }} {{ 1e300|round(5) }}
{{ 'a'|round }}
{{ 2.5|round(1, 'up') }}
{{ -5|abs }} {{ -2.5|abs }} {{ true|abs }} {{ big|abs }}
{{ 'a'|abs }}
{{ html|e }} {{ html|escape }} {{ html|safe }} {{ html|e|e }} {{ html|forceescape }} {{ (html|safe)|forceescape }} {{ html|safe + '<' }} {{ '<' + (html|safe) }} {{ html|safe ~ '<' }} {{ [html|safe] }} {{ (html|e)|upper }} {{ (html|safe)|length }} {{ html|safe|tojson }} {{ (html|safe) == html }} {{ html|safe|replace('a', '<') }}
{{ 1|e }} {{ none|e }} {{ [1, '<']|string }} {{ 5|string + 'x' }} {{ none|string }}
{{ 'a b c d e f g'|truncate(9) }} {{ 'a b c d e f g'|truncate(9, true) }} {{ 'abcdefghijkl'|truncate(5, true, '~', 0) }} {{ 'short'|truncate(9) }} {{ 'a b c'|wordcount }} {{ 'a bc d'|indent }} {{ 'a\nb\n\nc'|indent(2) }} {{ 'a\nb\n\nc'|indent(2, true, true) }} {{ 'a\nb'|indent('> ', first=true) }} {{ 'ab'|center(6) }}|
{{ 'a b&c/ü'|urlencode }} {{ {'a': 'b c', 'd': 1}|urlencode }} {{ {'class': 'a', 'id': none, 'x': '<'}|xmlattr }}
{{ d|tojson }} {{ floats|tojson }} {{ mixed|tojson }} {{ quote|tojson }} {{ quote|tojson(ensure_ascii=true) }} {{ d|tojson(indent=2) }} {{ d|tojson(indent='\t') }} {{ d|tojson(sort_keys=true) }} {{ d|tojson(separators=(',', ':')) }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ {1: 2, none: 3, true: 4, 1.5: 6}|tojson }} {{ (1, 'a')|tojson }} {{ big|tojson }} {{ '</script>&'|tojson }} {{ '\u2028\u2029'|tojson }} {{ d|tojson(indent=0) }} {{ 'é'|tojson(true) }}
{{ missing|tojson }}
{{ d.items()|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ list|map('string')|tojson }}
{{ 1 is number }} {{ 1.0 is number }} {{ true is number }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }} {{ big is integer }} {{ 's' is string }} {{ (html|safe) is string }} {{ d is mapping }} {{ list is mapping }} {{ list is sequence }} {{ d is sequence }} {{ 's' is sequence }} {{ n is sequence }} {{ 's' is iterable }} {{ n is iterable }} {{ none is iterable }} {{ missing is iterable }} {{ missing is sequence }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ range(2) is sequence }} {{ list|map('string') is iterable }}
{{ none is none }} {{ missing is none }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ true is boolean }} {{ 0 is boolean }} {{ 3 is odd }} {{ 4 is even }} {{ -3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 1 is sameas 1 }} {{ none is sameas none }} {{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 3 is gt 2 }} {{ 3 is lessthan 4 }} {{ 1 is in [1, 2] }} {{ 5 is not in [1] }} {{ s is defined }} {{ missing is undefined }} {{ d.nope is defined }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ range is callable }} {{ s is callable }} {{ html|e is escaped }}
{{ none is odd }}
{{ 'a' is divisibleby 2 }}
{{ 1 is nope }}
{{ 1|nope }}
{% if no %}{{ 1|nope }}{% endif %}ok
{% if yes %}{{ 1|nope }}{% endif %}
{{ 1 if 2 is even else 3 }} {{ not 1 is odd }} {{ 1 is odd and 2 is even }} {{ 'x' is string and 'y' }}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}{% for i in [1] %}{% set x = 3 %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(a=1, b='x') %}{% for i in list %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}|{{ ns.c is defined }} {{ ns }}
{% set ns = namespace({'k': 1}, z=2) %}{{ ns.k }}{{ ns.z }}{{ ns['k'] }}
{% set d.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}{% set (c, (e, g)) = (1, (2, 3)) %}{{ c }}{{ e }}{{ g }}
{% set a, b = [1] %}
{% set a, b = 5 %}
{% set x %}  block {{ n }} {% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]
{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('o', 'e') }}{{ loop.depth }};{% endfor %}
{% for i in list if i > 1 %}{{ i }}{{ loop.index }}{{ loop.length }}{% else %}no{% endfor %}{% for i in list if i > 9 %}{{ i }}{% else %}no{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'añ😀' %}{{ c }}.{% endfor %}{% for a, b in ['xy', [1, 2]] %}{{ a }}{{ b }}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in list %}{% for j in list %}{{ loop.index }}{{ i * j }}{% if j == 1 %}{% break %}{% endif %}{% endfor %}|{{ loop.index }}{% endfor %}
{% for n in tree recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{{ loop.depth }}{% endfor %}
{% for i in list %}{{ loop.changed(i > 1) }}{% endfor %}{% for x in list %}{% if loop.nextitem is defined %}{{ loop.nextitem }}{% endif %}{% endfor %}
{% for i in [1] %}{{ loop }}{% endfor %}
{% for i in list %}{% set seen = i if seen is not defined else seen %}{{ seen }}{% endfor %}{{ seen is defined }}
{% for shadow_loop in list %}{{ shadow_loop }}{% endfor %}{{ shadow_loop }}
{% for i in list %}{% if i == 1 %}{% set s = 'changed' %}{% endif %}{{ s }};{% endfor %}{{ s }}
{% for i in list %}{{ u }}{% set u = i %}{{ u }};{% endfor %}
{{ s }}{% set s = 'new' %}{{ s }}{% macro m() %}{{ s }}{% endmacro %}{{ m() }}{% set s = 'newer' %}{{ m() }}
{% macro m() %}[{{ s }}]{% endmacro %}{{ m() }}{% set s = 'x' %}{{ m() }}
{% if no %}{% set n = 9 %}{% endif %}{{ n }}{% for i in [1] %}{% if no %}{% set n = 9 %}{% endif %}{{ n }}{% endfor %}
{% macro m(a, b='d', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=5) }}{{ m() }}{{ m }}{{ m.name }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m(*[1, 2], **{'y': 3}) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}
{% macro m(a, a) %}{% endmacro %}
{% macro outer() %}<{{ caller('x') }}>{% endmacro %}{% call(v) outer() %}in {{ v }} {{ n }}{% endcall %}
{% macro outer() %}<{{ caller() if caller else 'no' }}>{% endmacro %}{{ outer() }}{% call outer() %}yes{% endcall %}
{% macro fact(k) %}{{ 1 if k < 2 else k * fact(k - 1)|int }}{% endmacro %}{{ fact(6) }}
{% macro loop_macro() %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ loop_macro() }}{% endfor %}
{% for i in list %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% generation %}gen {{ n }}{% set x = 5 %}{% endgeneration %}{{ x is defined }}
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aaa {% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 2 %}{{ a }}{% endwith %}{{ a is defined }}{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}
{% with n = n + 1 %}{{ n }}{% with n = n + 1 %}{{ n }}{% endwith %}{% endwith %}{{ n }}
{% print 1, 'a', none %}{% print n %}
{% raw %}{{ x }} {% if %}{% endraw %}|{%- raw -%}  a  {%- endraw -%}  b
{# comment #}a{#- strip -#}  b {#+ keep +#} c
a  {%- if yes %}  b  {%- endif %}  c
a  {%- if yes -%}  b  {%- endif -%}  c
a  {{- n -}}  b  {{+ n }} c
{%+ if yes %}x{% endif +%}  y
  {% if yes %}  x{% endif %}  y
{{ 'a' 'b' "c" }} {{ "esc: \n \t \\ \' \" \x41 \u00e9 \U0001f600 \101 \q" }} {{ 'multi
line' }}
{{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 1.5e-3 }} {{ 1_0.2_5 }} {{ 00 }} {{ 1E5 }}
{{ [1, 2,] }} {{ (1,) }} {{ () }} {{ {} }} {{ {'a': 1,} }} {{ {'a': {'b': [1, (2,)]}} }} {{ (1) }} {{ [] }} {{ {1: 'a', 2.5: 'b', none: 'c', (1, 2): 'd'} }}
{{ {[1]: 2} }}
{{ {'a': 1, 'a': 2} }} {{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'q': 1}, r=2) }}
{{ {'a': 1} == {'a': 1.0} }} {{ [1, [2]] == [1, [2.0]] }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}
{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}
{% for i in list %}{% break %}{% else %}e{% endfor %}{% for i in list %}{% continue %}{% else %}e{% endfor %}{% for i in list %}{% if i == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}
{{ 0|map('nope')|list }} {{ false|select('nope')|list }}
{{ [1, 'a'] > [] }} {{ [1, 2, 3] > [1] }} {{ () < (1, 2) }} {{ 'x' % [1] }} {{ 'x' % missing }}
{{ 'x' % 1 }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %j %a %A %b %B %y %d %e %I %p %-d %-m %% %U %w') }}
{{ raise_exception('stop ' ~ n) }}
{{ list.append(4) }}
{{ d.update({'x': 1}) }}
{{ list.index(1) }} {{ list.count(3) }} {{ (1, 2, 1).count(1) }} {{ list.copy() }} {{ d.copy() == d }}
{{ ''.__class__ }}|{{ ''.__class__.__mro__ }}
{{ n.real }} {{ f.is_integer() }} {{ n.nope is defined }}
{{ n() }}
{{ list[missing:] }}
{{ range(9)[2:7:2] }} {{ range(9)[::-1]|list }}
{{ s() }}
{{ missing() }}
{{ d.z() }}
{{ range(3)(1) }}
{{ foo(1, a=2, *[3], **{'b': 4}) if no else 'ok' }}
{{ 1 if }}
{{ }}
{% if %}{% endif %}
{% if yes %}
{% endif %}
{% for %}{% endfor %}
{% nope %}
{% endif %}
{% set 1 = 2 %}
{% set none = 2 %}
{{ 'unterminated }}
{{ 1 +  }}
{{ (1 }}
{{ [1 }}
{{ 1 2 }}
{{ a b }}
{{ $ }}
{% break %}
{% for i in list %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% raw %}
{# open
{{ 1 is odd is even }}
{{ s.split(',')[0].strip()[1:3]|upper ~ '!' }} {{ (s|upper).lower() }} {{ [1, 2][0] + 1 }} {{ (1, 2)[1] }} {{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ -n|abs }} {{ -(n|abs) }} {{ 2 ** n|int }} {{ n|string ~ 'x'|upper }} {{ not n in list }}
{{ users[0].name ~ users[1]['name'] }} {{ users[-1].get('zip', 'none') }} {{ (users|first).age + 1 }} {{ users|length > 2 and 'many' or 'few' }}
{% if list %}a{% elif d %}b{% else %}c{% endif %}{% if not list %}a{% elif none %}b{% else %}c{% endif %}{% if 0.0 %}x{% elif '0' %}y{% endif %}
{{ [1, 2, 3] | map('string') | join(', ') }} {{ list|map('int')|list|last }} {{ words|select('in', ['a', 'b'])|list }} {{ words|join('\n') }} {{ [none, missing, '']|map('default', 'D', true)|list }}
{{ 'a' if missing }}|{{ ('a' if missing) is defined }} {{ [missing] }} {{ {'a': missing} }} {{ missing|upper }}| {{ missing|trim }}|{{ none|trim }}|{{ none|upper }}|{{ 5|upper }}
{{ 0.1 + 0.2 }} {{ 1/3 }} {{ 100000000000000000000.0 }} {{ 1e100 }} {{ 123456789.123456789 }} {{ 3.0 }} {{ -0.0 }} {{ 1e-4 }} {{ 2.0 ** 0.5 }} {{ 10 ** 20 }} {{ 10.0 ** 20 }} {{ 7 // 2.0 }} {{ 1e16|int }} {{ 0.1|string }}
{{ 10 ** 400 }}
{{ (10 ** 400) * 1.0 }}
{{ 'ab' > 'a' }} {{ 'Z' < 'a' }} {{ '' < 'a' }} {{ [] < [1] }} {{ (1, 'a') < (1, 'b') }} {{ true < 2 }} {{ 1.5 >= 1 }} {{ 1 != 1.0 }} {{ 'a' != 'a' }}
{{ list is sameas list }} {{ d is mapping and d.a is sequence and d.a is not string }} {{ s is not none and s is string }} {{ d.m is mapping }} {{ none is mapping }} {{ none is string }} {{ none is number }}
{{ s.encode is defined }} {{ list.sort is defined }} {{ d.pop is defined }} {{ d['pop'] is defined }} {{ list.pop }}|
{% for i in range(3) -%} {{ i }} {%- endfor %} end
{%- for m in users %}
    {%- if m.ok %}
        {{- '<' + m.name + '>\n' }}
    {%- else %}
        {{- m.name|lower }}
    {%- endif %}
{%- endfor %}
'''

SPECIAL = [  # templates with line ends of their own
    "a\n", "a\n\n", "a\r\nb\rc\r\n", "{% if yes %}\nx\n{% endif %}\ny\n", "  {% if yes %}  \n  x\n  {% endif %}  \ny", "{{ n }}\n{{ n }}\n",
    "{# c #}\nx", "  {# c #}\n  x", "  {#- c -#}\n  x", "a {%- set x = 1 -%} \n\n b", "\t{%+ if yes %}\n a{% endif %}", "{% raw %}\n a\n{% endraw %}\n b",
    "a\n  {% raw %} x {% endraw %}", "{%- if yes -%}\n\n x \n\n{%- endif -%}\n", "\n\n{{ n }}", "{{ '\n' }}\n", "x{% set a = 1 %}\n{% set b = 2 %}\ny",
    "", " ", "\n", "{", "{ {", "}}", "%}", "{{ '}}' }}", "{{ {'a': {'b': 1}}}}", "{{'{%'}}", "a{{ 1 }}{{ 2 }}b", "{%if yes%}x{%endif%}",
    "{%-if yes-%} x {%-endif-%} y", "{{-1}}", "{{ -1 }}", "{{- 1 }}", "{{1-}}", "{{ 1 -}} x", "{{ 5 -1 }}", "{{n -1}}", "\u00a0{%- if yes %}x{% endif %}",
    "x \u2003{%- if yes %}x{% endif %}", "a\x1c {%- if yes %}b{% endif %}", "  \x0b{% if yes %}b{% endif %}", "{{ n }}{# a {{ b }} {% c %} #}{{ n }}",
    "{% for i in list %}\n{{ i }}\n{% endfor %}\n", "{% for i in list %}\n  {{ i }}\n  {% endfor %}\n", "{% macro m(x) %}\n {{ x }}\n{% endmacro %}\n[{{ m(1) }}]",
    "{% macro m(x) -%}\n {{ x }}\n{%- endmacro %}\n[{{ m(1) }}]", "{{\nn\n}}", "a{#", "{# x", "{#-", "{{", "{%", "{% raw", "a{%- raw -%}", "{% raw %}x", "{#x-#} a", "{% raw %}{% endraw", "{% if yes\n%}x{% endif %}", "line1\nline2 {{ missing.x }}",
]


def main():
    env = environment()
    cases = []
    lines, joined = TEMPLATES.strip("\n").split("\n"), []
    for line in lines:  # an example that goes on in the next line starts with an open tag or an indent
        if joined and (line.startswith(("    ", "line'", "{% endif %}", "{%- endfor", "{%- if m")) or joined[-1].endswith(("{%- for m in users %}",))):
            joined[-1] += "\n" + line
        else:
            joined.append(line)
    for template in joined + SPECIAL:
        text, error = render(env, template, json.loads(json.dumps(VARS)))
        cases.append({"template": template, "vars": VARS, "text": text, "error": error})
    for name in ("qwen3", "qwen35"):
        template = (ROOT / f"pkg/chat/templates/{name}.jinja").read_text()
        for conversation in conversations():
            text, error = render(env, template, conversation)
            cases.append({"file": f"{name}.jinja", "vars": conversation, "text": text, "error": error})
    # Every case carries only the variables that its template could mean.
    for case in cases:
        if "template" in case:
            case["vars"] = {k: v for k, v in VARS.items() if k in case["template"]}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(c, ensure_ascii=True) for c in cases) + "\n]\n")
    print(len(cases), "cases,", sum(1 for c in cases if c["error"]), "of them errors")


def conversations():
    tool = {"type": "function", "function": {"name": "f", "description": "d & <x>", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "s": "é", "l": [1.5, None, {"k": True}], "t": True}}}
    messages = [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "I look", "reasoning_content": "hm\n", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"}, {"role": "tool", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\ndone"}, {"role": "user", "content": [{"type": "text", "text": "more"}]},
        {"role": "system", "content": "late"}, {"role": "assistant", "content": "ok"},
    ]
    for n in range(len(messages) + 1):
        for extra in ({}, {"tools": [tool]}, {"enable_thinking": False}):
            for prompt in (True, False):
                yield {"messages": messages[:n], "tools": None, "add_generation_prompt": prompt, **extra}


if __name__ == "__main__":
    main()
