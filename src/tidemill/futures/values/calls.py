"""Pickle a function and its arguments. If that fails, name the part that cannot be pickled.

pickle reports "cannot pickle '_thread.lock' object", but not where this object is. So after an error this
module pickles the parts of the value one by one. It takes the first part that fails, continues with the parts
of that part, and reports the innermost part that fails.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.errors import CannotSerialize, CodeNotLoadable, UsageError
from tidemill.futures.values import pickling
from tidemill.futures.values.pickling import Dumped, Places

Resolve = Callable[[bytes], object]

_DEEPEST = 12
_MOST_TRIES = 2_000


class Args(NamedTuple):
    """Pickled arguments, and the ids of the futures among them."""

    content: bytes
    inputs: tuple[bytes, ...]


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function, to display it."""
    inner = inspect.unwrap(getattr(function, "func", function))
    name = getattr(inner, "__qualname__", "") or type(inner).__qualname__
    module = getattr(inner, "__module__", "") or ""
    return f"{module}.{name}" if module not in ("", "__main__", "builtins") else str(name)


def dump_code(function: Callable[..., object]) -> bytes:
    """Pickle a function: by reference if it is in a module, by value otherwise (FUT-19)."""
    if not callable(function):
        raise UsageError(
            f"{function!r:.200} is not a function", hint="use submit(function, *args), not submit(function())"
        )
    return pickling.pack(_dump(function, f"the function {name_of(function)}"))


def load_code(content: bytes) -> Callable[..., Any]:
    """Load a function. The caller has checked its signature. Raise `CodeNotLoadable` on failure."""
    function = pickling.unpack(content, subject="the function")
    if not callable(function):
        raise CodeNotLoadable(f"the code is a {type(function).__qualname__}, not a function")
    return function  # type: ignore[no-any-return] # it is callable


def dump_args(args: Sequence[object], kwargs: Mapping[str, object], places: Places | None = None) -> Args:
    """Pickle arguments. Each future among them becomes an input: the task receives the future's result.

    - places: where the task gets the results of futures that are not inputs themselves.
    """
    call = tuple(args), dict(kwargs)
    try:
        dumped = pickling.dump(call, handles=True, places=places)
    except MemoryError:
        raise
    except Exception as error:
        for name, value in _names_and_values(args, kwargs):
            _dump(value, name, handles=True)
        raise _cannot_serialize(call, "the arguments", error) from error
    return Args(pickling.pack(dumped), dumped.inputs)


def load_args(content: bytes, resolve: Resolve) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Load positional and keyword arguments. The caller has checked their signature.

    Args:
        content: from `dump_args`.
        resolve: returns the result of the future with this id; its errors are raised unchanged.
    """
    args, kwargs = pickling.unpack(content, resolve=resolve, subject="an argument")
    return args, kwargs


def dump_value(value: object, subject: str = "the result") -> Dumped:
    """Pickle a value into a stream and parts. `CannotSerialize` names the part that cannot be pickled."""
    return _dump(value, subject)


def _names_and_values(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for number, value in enumerate(args, 1):
        yield f"argument {number}", value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value


def _dump(value: object, name: str, *, handles: bool = False) -> Dumped:
    try:
        return pickling.dump(value, handles=handles)
    except MemoryError:
        raise
    except Exception as error:
        raise _cannot_serialize(value, name, error) from error


# --- the part that cannot be pickled


def _cannot_serialize(value: object, name: str, error: Exception) -> CannotSerialize:
    part = unpicklable_part(value, name)
    reason = str(error).partition("\n")[0][:200]
    return CannotSerialize(f"{part}, which cannot be stored: {type(error).__name__}: {reason}")


def unpicklable_part(value: object, name: str) -> str:
    """Return which part of a value cannot be pickled: `"argument 'job'.pool['a'] is a _thread.lock"`.

    Args:
        value: a value that cannot be pickled.
        name: what the caller calls the value.
    """
    tries = _MOST_TRIES
    for _ in range(_DEEPEST):
        inner = None
        for label, child in _children(value):
            tries -= 1
            if tries < 0:
                break
            if child is not value and _fails(child):
                inner = label, child
                break
        if inner is None:
            break
        name, value = name + inner[0], inner[1]
    kind = type(value)
    return f"{name} is a {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")


def _fails(value: object) -> bool:
    try:
        pickling.dump(value)
    except Exception:  # noqa: BLE001 - methods of the value may raise anything
        return True
    return False


def _children(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value, each with the text to append to the value's name."""
    try:
        yield from _parts(value)
    except Exception:  # noqa: BLE001 - the parts of such a value cannot be listed
        return


def _parts(value: Any) -> Iterator[tuple[str, object]]:
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
            yield from _function_parts(value)
        case types.MethodType():
            yield ".__self__", value.__self__
        case functools.partial():
            yield ".func", value.func
            yield from ((f".args{label}", item) for label, item in _parts(value.args))
            yield from ((f".keywords{label}", item) for label, item in _parts(value.keywords))
        case type() | types.ModuleType():
            return
    for name, item in list(getattr(value, "__dict__", {}).items()):
        yield f".{name}", item
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name != "__dict__":
                yield f".{name}", getattr(value, name)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    used = inspect.getclosurevars(function)
    for name, item in used.nonlocals.items():
        yield f"'s variable {name!r} of the enclosing function", item
    for name, item in used.globals.items():
        yield f"'s global {name!r}", item
    for number, item in enumerate(function.__defaults__ or ()):
        yield f"'s default {number}", item
    for name, item in (function.__kwdefaults__ or {}).items():
        yield f"'s default {name!r}", item
