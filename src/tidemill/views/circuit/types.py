"""The types of every operator's columns, from Spark's own analysis: one question for a whole circuit."""

from collections.abc import Callable, Sequence

from tidemill.views.circuit.interpret import probe
from tidemill.views.circuit.operators import Column, Operator


def types(root: Operator, ask: Callable[[str], Sequence[Column]]) -> dict[Operator, tuple[str, ...]]:
    """The types of all operators below and including the root, as Spark writes them.

    ask: Spark's analysis of a query, over tables that may be empty.
    """
    operators, sql = probe(root)
    found: dict[Operator, tuple[str, ...]] = {}
    for operator, column in zip(operators, ask(sql), strict=True):
        found[operator] = tuple(kind for _, kind in fields(column.type))
    return found


def fields(struct: str) -> list[tuple[str, str]]:
    """The names and types of a struct's fields, from the text `struct<a:int,b:array<string>>`.

    >>> fields("struct<c0:int,c1:struct<f:int,g:map<string,int>>,c2:decimal(10,2)>")
    [('c0', 'int'), ('c1', 'struct<f:int,g:map<string,int>>'), ('c2', 'decimal(10,2)')]
    """
    inside = struct.removeprefix("struct<").removesuffix(">")
    return [(name, kind) for name, _, kind in (part.partition(":") for part in listed(inside) if part)]


def listed(text: str) -> list[str]:
    """The parts of a list, at commas that stand inside of nothing.

    >>> listed("string,map<string,decimal(4,2)>")
    ['string', 'map<string,decimal(4,2)>']
    """
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]
