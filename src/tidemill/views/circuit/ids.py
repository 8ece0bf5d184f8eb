"""Stable ids: the hash of an operator's versioned normal form.

The normal form of an operator is its kind, its fields and the fingerprints of its inputs, as JSON: no names
of columns, no layout of the query, nothing of the engine that runs it. So two views that compute the same
thing share an operator, and after an edit exactly the changed operators have other ids. `FORMAT` is part of
it: when the meaning of the form changes the number goes up, and operators stored under the old one are
rebuilt knowingly.

A fingerprint is of the query alone. An id adds what else decides the result: the pinned settings (time zone,
ANSI, case sensitivity, collation, time type) and the digests of the user functions that the subtree calls.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType

from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import InputTable, Opaque, Operator

FORMAT = 1

# Why an operator is as it is, and what its columns are called, does not change what it computes.
APART: Mapping[type[Operator], frozenset[str]] = {Opaque: frozenset({"reason"})}


@dataclass(frozen=True)
class Pins:
    """What decides a result beside the query:
    the settings of the view, and digests of user functions by name.
    """

    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    functions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def fingerprint(operator: Operator) -> str:
    """The hash of the normal form, 128 bits as hexadecimal digits."""
    return _digest(normal_form(operator))


def normal_form(operator: Operator) -> object:
    """What is hashed, as JSON values; inputs stand for themselves by their fingerprints."""
    apart = APART.get(type(operator), frozenset())
    own = [f.name for f in fields(operator) if f.name not in apart]  # type: ignore[arg-type]
    return {
        "format": FORMAT,
        "kind": operator.kind,
        **{name: _plain(getattr(operator, name)) for name in own},
    }


def ids(operators: Iterable[Operator], pins: Pins) -> dict[Operator, str]:
    """The ids under which state is kept, of operators listed inputs first.

    They are stable across releases, processes and the other views of a group. A source is the same whatever
    the settings are: nothing is computed there.
    """
    found: dict[Operator, str] = {}
    for operator in operators:
        settings = {} if isinstance(operator, InputTable) else dict(pins.settings)
        called = {name: pins.functions[name] for name in sorted(_called(operator) & pins.functions.keys())}
        below = [found[child] for child in operator.inputs]
        found[operator] = _digest([operator.fingerprint, settings, called, below])
    return found


def expressions_of(operator: Operator) -> Iterator[Expr]:
    """Every expression of the operator itself, wherever it stands among its fields."""
    for f in fields(operator):  # type: ignore[arg-type]
        yield from _exprs(getattr(operator, f.name))


def _exprs(value: object) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _exprs(item)
    elif is_dataclass(value) and not isinstance(value, Operator):
        for f in fields(value):
            yield from _exprs(getattr(value, f.name))


def _called(operator: Operator) -> set[str]:
    return {name for expr in expressions_of(operator) for name in expr.calls}


def _plain(value: object) -> object:
    if isinstance(value, Operator):
        return value.fingerprint
    if isinstance(value, Expr):
        return [{"now": p.name} if isinstance(p, Enum) else p for p in value.parts]
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    assert value is None or isinstance(value, str | int | bool), f"no normal form for {value!r}"
    return value


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
