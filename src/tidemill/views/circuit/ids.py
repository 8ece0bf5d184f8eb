"""Stable ids: hashes of the versioned normal form of operators.

The normal form is JSON: the kind of the operator, its fields, and the fingerprints of its inputs. It contains
no column names, no layout of the query, and nothing about the engine that runs it. So two views that compute
the same thing share an operator, and an edit of a query changes only the ids of the operators that it
affects. `FORMAT` is part of the normal form. Increment it when the meaning of the form changes: operators
stored under the old number are then rebuilt.

A fingerprint depends on the query only. An id adds everything else that affects the result: the pinned
settings (time zone, ANSI, case sensitivity, collation, time type) and the digests of the user functions that
the subtree calls.
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

# Fields that do not change the result.
EXCLUDED: Mapping[type[Operator], frozenset[str]] = {Opaque: frozenset({"reason"})}


@dataclass(frozen=True)
class Pins:
    """What decides a result besides the query: settings of the view, and digests of its user functions."""

    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    functions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def fingerprint(operator: Operator) -> str:
    """Return the hash of the normal form: 128 bits as hexadecimal digits."""
    return _digest(normal_form(operator))


def normal_form(operator: Operator) -> object:
    """Return what is hashed, as JSON values; inputs are represented by their fingerprints."""
    excluded = EXCLUDED.get(type(operator), frozenset())
    names = [f.name for f in fields(operator) if f.name not in excluded]  # type: ignore[arg-type]
    return {
        "format": FORMAT,
        "kind": operator.kind,
        **{name: _plain(getattr(operator, name)) for name in names},
    }


def ids(operators: Iterable[Operator], pins: Pins) -> dict[Operator, str]:
    """Return the ids under which the state of operators is stored.

    The ids do not depend on the release, the process or the other views of a group. The id of an input table
    does not depend on the settings either, because an input table computes nothing.

    operators: the operators, each one after its inputs.
    """
    ids_by_operator: dict[Operator, str] = {}
    for operator in operators:
        settings = {} if isinstance(operator, InputTable) else dict(pins.settings)
        called = {name: pins.functions[name] for name in sorted(_called(operator) & pins.functions.keys())}
        inputs = [ids_by_operator[child] for child in operator.inputs]
        ids_by_operator[operator] = _digest([operator.fingerprint, settings, called, inputs])
    return ids_by_operator


def expressions_of(operator: Operator) -> Iterator[Expr]:
    """Yield every expression in the fields of the operator, but not those of its inputs."""
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
