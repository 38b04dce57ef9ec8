"""Random templates from a grammar of what chat templates use."""

VARIABLES = {
    "s": "Hello Wörld", "t": " <b>x</b>\n", "e": "", "i": 3, "j": -7, "big": 12345678901234567890123, "f": 2.5, "g": -0.0, "yes": True, "no": False, "nul": None,
    "l": [3, 1, 2], "w": ["b", "A", "c"], "m": [1, "a", None, 2.5, [1], {"k": 1}], "d": {"a": 1, "b": [1, 2], "items": "x", "c": {"d": None}},
    "us": [{"n": "x", "v": 2}, {"n": "Y", "v": 1}, {"v": 1}],
}
NAMES = list(VARIABLES) + ["missing", "messages", "tools"]
FILTERS = ["upper", "lower", "trim", "title", "capitalize", "length", "list", "first", "last", "string", "int", "float", "abs", "tojson", "join", "join(', ')",
           "default('D')", "default('D', true)", "sort", "reverse|list", "unique|list", "map('string')|list", "map('upper')|list", "select|list", "sum", "max", "min",
           "replace('l', 'L')", "e", "safe", "items|list", "dictsort", "round", "round(1)", "batch(2)|list", "map(attribute='n')|list", "selectattr('n')|list",
           "selectattr('v', 'gt', 1)|list|length", "rejectattr('n', 'defined')|list", "groupby('v')|length", "indent", "indent(2, true)", "truncate(5)", "wordcount",
           "center(12)", "count", "tojson(indent=2)", "tojson(sort_keys=true)", "sort(reverse=true)", "sort(attribute='v')|list", "reject('none')|list", "select('string')|list"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "true", "false", "odd", "even",
         "divisibleby 2", "eq 1", "ne 'a'", "gt 1", "in [1, 'a']", "lower", "upper", "callable", "sameas none", "escaped"]
METHODS = ["upper()", "lower()", "strip()", "split()", "split('l')", "strip('H')", "startswith('H')", "endswith('d')", "items()|list", "keys()|list", "get('a')",
           "get('zz', 5)", "replace('l', '')", "title()", "find('l')", "count('l')", "index(1)", "rstrip('\\n')", "splitlines()", "join(w)", "isdigit()", "values()|list", "copy()",
           "append(1)", "rsplit('l', 1)", "partition('l')", "zfill(14)", "format(1)"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


def literal(rng):
    return rng.choice(["0", "1", "2", "-1", "10", "1.5", "1e3", "'a'", "\"b c\"", "''", "'l'", "true", "false", "none", "[]", "[1, 'a']", "(1, 2)", "{}", "{'k': 1}",
                       "[1, [2, none]]", "'%s|%s'", "1_000", "'é\\n'"])


def expression(rng, depth=0):
    kind = rng.random()
    if depth > 3 or kind < 0.25:
        return rng.choice(NAMES) if rng.random() < 0.7 else literal(rng)
    sub = lambda: expression(rng, depth + 1)
    if kind < 0.40:
        return f"{sub()} {rng.choice(BINARY)} {sub()}"
    if kind < 0.46:
        return f"({sub()})"
    if kind < 0.62:
        return f"({sub()})|{rng.choice(FILTERS)}"
    if kind < 0.70:
        return f"{sub()} is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind < 0.78:
        return f"{rng.choice(NAMES)}.{rng.choice(METHODS)}"
    if kind < 0.81:  # a constant that cannot be sliced is not asked for: there jinja2's constant folding shows
        return f"{rng.choice(NAMES)}[{rng.choice(['1:', ':-1', '::-1', '1:3', '::2', 'i:', ':missing'])}]"
    if kind < 0.84:
        return f"({sub()})[{rng.choice(['0', '-1', chr(39) + 'a' + chr(39), 'i', '5', sub()])}]"
    if kind < 0.88:
        return f"({sub()}).{rng.choice(['a', 'b', 'k', 'n', 'items', 'zz', '0', 'c.d'])}"
    if kind < 0.92:
        return f"{sub()} if {sub()} else {sub()}"
    if kind < 0.95:
        return f"not {sub()}"
    if kind < 0.97:
        return f"-({sub()})"
    return rng.choice([f"[{sub()}, {sub()}]", f"{{'k': {sub()}}}", f"range({rng.randrange(5)})|list", f"namespace(x={sub()}).x", f"dict(a={sub()})", f"mac({sub()})"])


def space(rng):
    return rng.choice(["", "", " ", "\n", "  ", "\n  ", "text", " a\n"])


def tag(rng, body):
    return "{%" + rng.choice(["", "-", "-", "+"]) + " " + body + " " + rng.choice(["", "-", "-", "+"]) + "%}"


def statements(rng, depth=0, loop=False):
    out = []
    for _ in range(rng.randrange(1, 4)):
        out.append(space(rng))
        kind = rng.random()
        if kind < 0.45 or depth > 2:
            out.append("{{" + rng.choice(["", "-"]) + " " + expression(rng) + " " + rng.choice(["", "-"]) + "}}")
        elif kind < 0.6:
            out.append(tag(rng, "if " + expression(rng)) + statements(rng, depth + 1, loop))
            if rng.random() < 0.3:
                out.append(tag(rng, "elif " + expression(rng)) + statements(rng, depth + 1, loop))
            if rng.random() < 0.4:
                out.append(tag(rng, "else") + statements(rng, depth + 1, loop))
            out.append(tag(rng, "endif"))
        elif kind < 0.75:
            name = rng.choice(["x", "y", "i", "s", "k, v"])
            test = " if " + expression(rng) if rng.random() < 0.2 else ""
            out.append(tag(rng, f"for {name} in {rng.choice(['l', 'w', 'us', 'd', 'd.items()', 's', 'range(3)', 'missing', expression(rng, 2)])}{test}"))
            out.append(statements(rng, depth + 1, True))
            if rng.random() < 0.4:
                out.append("{{ loop." + rng.choice(["index", "index0", "first", "last", "length", "revindex", "previtem", "nextitem"]) + " }}")
            if rng.random() < 0.15:
                out.append(tag(rng, rng.choice(["break", "continue"])))
            if rng.random() < 0.2:
                out.append(tag(rng, "else") + "empty")
            out.append(tag(rng, "endfor"))
        elif kind < 0.9:
            out.append(tag(rng, f"set {rng.choice(['x', 'y', 's', 'i', 'zz'])} = {expression(rng)}"))
        elif kind < 0.93:
            out.append(tag(rng, "set x") + statements(rng, depth + 1, loop) + tag(rng, "endset"))
        elif kind < 0.95:
            out.append(tag(rng, f"with y = {expression(rng)}") + statements(rng, depth + 1, loop) + tag(rng, "endwith"))
        elif kind < 0.97:
            out.append(tag(rng, "filter upper") + statements(rng, depth + 1, loop) + tag(rng, "endfilter"))
        elif kind < 0.98:
            out.append(tag(rng, "generation") + statements(rng, depth + 1) + tag(rng, "endgeneration"))
        else:
            out.append("{#" + rng.choice(["", "-"]) + " note " + rng.choice(["", "-"]) + "#}")
    out.append(space(rng))
    return "".join(out)


def template(rng):
    macro = "{% macro mac(a, b='B') %}[{{ a }}{{ b }}{{ x }}]{% endmacro %}" if rng.random() < 0.5 else ""
    return macro + statements(rng)
