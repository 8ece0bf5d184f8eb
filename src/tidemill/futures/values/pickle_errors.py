"""Which part of a value cannot be pickled, in words that the caller knows: theirs, not pickle's.

pickle says "cannot pickle '_thread.lock' object" and not where it is. When something fails, and only then,
we try its parts one by one, and follow the first that fails by itself to the innermost.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

_DEEPEST = 12
_MOST_TRIES = 2_000


def culprit(value: object, name: str, attempt: Callable[[object], object]) -> str:
    """Where in `value` the trouble is: `"argument 'job'.pool['a'] is a _thread.lock"`.

    Args:
        value: what could not be pickled.
        name: what the caller calls it.
        attempt: pickles something, or raises.
    """
    tries = _MOST_TRIES
    for _ in range(_DEEPEST):
        inner = None
        for label, child in _children(value):
            tries -= 1
            if tries < 0:
                break
            if child is not value and _fails(child, attempt):
                inner = label, child
                break
        if inner is None:
            break
        name, value = name + inner[0], inner[1]
    kind = type(value)
    return f"{name} is a {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")


def _fails(value: object, attempt: Callable[[object], object]) -> bool:
    try:
        attempt(value)
    except Exception:  # noqa: BLE001 - whatever the value's own methods raise
        return True
    return False


def _children(value: Any) -> Iterator[tuple[str, object]]:
    """The parts of a value, each with how one would write it behind the value's name."""
    try:
        yield from _of(value)
    except Exception:  # noqa: BLE001 - a value that cannot be looked into has no parts we could name
        return


def _of(value: Any) -> Iterator[tuple[str, object]]:
    match value:
        case dict():
            for key, item in value.items():
                yield f"[{key!r:.80}]", item
                yield f"'s key {key!r:.80}", key
        case list() | tuple():
            for number, item in enumerate(value):
                yield f"[{number}]", item
        case set() | frozenset():
            for item in value:
                yield f"'s item {item!r:.80}", item
        case types.FunctionType():
            yield from _of_function(value)
        case types.MethodType():
            yield ".__self__", value.__self__
        case functools.partial():
            yield ".func", value.func
            yield from ((f".args{label}", item) for label, item in _of(value.args))
            yield from ((f".keywords{label}", item) for label, item in _of(value.keywords))
        case type() | types.ModuleType():
            return
    for name, item in list(getattr(value, "__dict__", {}).items()):
        yield f".{name}", item
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name != "__dict__":
                yield f".{name}", getattr(value, name)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    found = inspect.getclosurevars(function)
    for name, item in found.nonlocals.items():
        yield f"'s variable {name!r} of the enclosing function", item
    for name, item in found.globals.items():
        yield f"'s global {name!r}", item
    for number, item in enumerate(function.__defaults__ or ()):
        yield f"'s default {number}", item
    for name, item in (function.__kwdefaults__ or {}).items():
        yield f"'s default {name!r}", item
