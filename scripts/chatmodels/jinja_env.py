"""The jinja2 environment that transformers renders chat templates in, as a reference for tests."""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2026, 11, 30, 12, 34, 56)


class Generation(jinja2.ext.Extension):
    """The generation tag: prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _print(self, context, caller):
        return caller()


def environment(now=NOW):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = now.strftime
    return env


def render(env, template, variables):
    """The text, or None and what was raised."""
    try:
        return env.from_string(template).render(**variables), ""
    except RecursionError:
        raise
    except Exception as error:  # whatever Python raises is an error of the template
        return "", f"{type(error).__name__}: {error}"[:200]
