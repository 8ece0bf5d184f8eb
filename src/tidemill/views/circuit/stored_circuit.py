"""Store circuits as bytes, so that a later process need not compile their queries again.

The operators of a circuit are a list, inputs first. An operator refers to its inputs by their places in the
list, so equal subtrees are stored once. Only the code that wrote the bytes can read them: the caller checks
that first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import ClockValue, Expr
from tidemill.views.circuit.operators import (
    KINDS,
    AggregateCall,
    JoinKey,
    NamedInput,
    Operator,
    SortKey,
    SparkColumn,
    WindowCall,
)

_VALUES = (AggregateCall, JoinKey, NamedInput, SortKey, SparkColumn, WindowCall)
_CLASSES: Mapping[str, type[Any]] = {each.__name__: each for each in (*KINDS, *_VALUES)}


def encode(roots: Sequence[Operator]) -> bytes:
    """Encode circuits that may share operators."""
    places: dict[Operator, int] = {}
    operators = []
    for operator in walk(*roots):
        operators.append(_encoded_fields(operator, places))
        places[operator] = len(places)
    return msgspec.msgpack.encode([operators, [places[root] for root in roots]])


def decode(raw: bytes) -> list[Operator]:
    """Decode the circuits that `encode` stored, in the same order."""
    operators: list[Operator] = []
    stored, roots = msgspec.msgpack.decode(raw)
    for entry in stored:
        operator = _decoded(entry, operators)
        assert isinstance(operator, Operator)
        operators.append(operator)
    return [operators[place] for place in roots]


def _encoded(value: object, places: Mapping[Operator, int]) -> object:
    if isinstance(value, Operator):
        return {"input": places[value]}
    if isinstance(value, Expr):
        parts = [{"now": part.name} if isinstance(part, ClockValue) else part for part in value.parts]
        return {"expr": parts, "calls": sorted(value.calls)}
    if isinstance(value, _VALUES):
        return _encoded_fields(value, places)
    if isinstance(value, tuple):
        return [_encoded(item, places) for item in value]
    assert value is None or isinstance(value, str | int), f"no stored form for {value!r}"
    return value


def _encoded_fields(value: Any, places: Mapping[Operator, int]) -> dict[str, object]:
    encoded = {each.name: _encoded(getattr(value, each.name), places) for each in fields(value)}
    return {"class": type(value).__name__, "fields": encoded}


def _decoded(value: Any, operators: Sequence[Operator]) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(item, operators) for item in value)
    if not isinstance(value, dict):
        return value
    if "input" in value:
        return operators[value["input"]]
    if "expr" in value:
        parts = [ClockValue[part["now"]] if isinstance(part, dict) else part for part in value["expr"]]
        return Expr(tuple(parts), frozenset(value["calls"]))
    decoded = {name: _decoded(each, operators) for name, each in value["fields"].items()}
    return _CLASSES[value["class"]](**decoded)
