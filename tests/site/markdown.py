"""Write Markdown from docstrings."""

import inspect
import re
import textwrap
from collections.abc import Iterator

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> ).+\n?)*)+", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (.*)")


def described(thing: object) -> str:
    """Return the docstring of an object as Markdown: examples as code, arguments as a list."""
    text = inspect.getdoc(thing) or ""
    before, _, arguments = text.partition("\nArgs:\n")
    parts = [_EXAMPLE.sub(lambda match: f"```python\n{match[0].rstrip()}\n```\n", before)]
    if arguments:
        parts += ["", "Arguments:", "", *(f"- {line}" for line in _arguments(arguments))]
    return "\n".join(parts).strip()


def _arguments(text: str) -> Iterator[str]:
    """Yield one line for each argument."""
    current = ""
    for line in textwrap.dedent(text).splitlines():
        match = _ARGUMENT.match(line)
        if match:
            if current:
                yield current
            current = f"`{match[1]}`: {match[2]}"
        elif line.strip():
            current += f" {line.strip()}"
    if current:
        yield current


def signature(name: str, thing: object) -> str:
    """Return a function or class with its parameters, as code; long ones have one parameter per line."""
    try:
        parameters = list(inspect.signature(thing).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name
    parameters = [each for each in parameters if each.name != "self"]
    shown, starred = [], False
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            starred = True
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        text = str(each.replace(annotation=each.empty))
        shown.append(re.sub(r"=<(\w+)[^>]*>", r"=…", text))
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


def cell(text: str) -> str:
    """Return a text that is safe in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)
