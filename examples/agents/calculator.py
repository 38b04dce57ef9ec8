"""The calculator agent on the real OpenAI SDK: a loop of chat completions and a tool.

    session: {agent: {exec: [.venv/bin/python, examples/agents/calculator.py]}}

The SDK reads OPENAI_BASE_URL and OPENAI_API_KEY itself. The task comes as JSON on
stdin, and the last line of stdout is the result. --stream takes the replies as
streams.
"""

import json
import os
import re
import sys
import time

from openai import OpenAI

MAX_TURNS = 4
TOOLS = [{
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes a sum, a difference or a product.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}]


def calculate(arguments):
    """Returns what the tool says; what it cannot do it says as well."""
    try:
        expression = json.loads(arguments)["expression"]
        left, op, right = re.fullmatch(r"\s*(-?\d+)\s*([-+*])\s*(-?\d+)\s*", expression).groups()
    except (ValueError, KeyError, TypeError, AttributeError):
        return "error: an expression is two whole numbers with +, - or * between them"
    a, b = int(left), int(right)
    return str({"+": a + b, "-": a - b, "*": a * b}[op])


def complete(client, model, history, stream):
    """Asks for the next message."""
    request = dict(model=model, messages=history, tools=TOOLS)
    if not stream:
        return client.chat.completions.create(**request).choices[0].message
    with client.chat.completions.stream(**request) as events:
        for _ in events:
            pass
        return events.get_final_completion().choices[0].message


def main():
    stream = "--stream" in sys.argv[1:]
    task = json.load(sys.stdin)
    client = OpenAI()
    model = task.get("model") or os.environ.get("OPENAI_MODEL", "policy")
    history = list(task["messages"])
    tool_time, status, turns = 0.0, "unresolved", 0
    for turns in range(1, MAX_TURNS + 1):
        message = complete(client, model, history, stream)
        if not message.tool_calls:
            status = "resolved"
            break
        history.append(message.model_dump(exclude_none=True))
        begun = time.monotonic()
        for call in message.tool_calls:
            history.append({"role": "tool", "tool_call_id": call.id, "content": calculate(call.function.arguments)})
        tool_time += time.monotonic() - begun
    print(json.dumps({
        "exit_status": status,
        "metadata": {"turns": turns},
        "agent_metrics": {"total_tool_time": tool_time},
    }))


if __name__ == "__main__":
    main()
