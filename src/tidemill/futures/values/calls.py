"""A call as bytes: the function, and its arguments with futures among them."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.errors import CannotSerialize, CodeNotLoadable, UsageError
from tidemill.futures.values import pickling
from tidemill.futures.values.pickle_errors import culprit
from tidemill.futures.values.pickling import Dumped

Resolve = Callable[[bytes], object]


class Args(NamedTuple):
    """Arguments as stored, and the ids of the futures among them."""

    content: bytes
    inputs: tuple[bytes, ...]


def name_of(function: Callable[..., object]) -> str:
    """What people call a function."""
    inner = inspect.unwrap(getattr(function, "func", function))
    name = getattr(inner, "__qualname__", "") or type(inner).__qualname__
    module = getattr(inner, "__module__", "") or ""
    return f"{module}.{name}" if module not in ("", "__main__", "builtins") else str(name)


def dump_code(function: Callable[..., object]) -> bytes:
    """A function as stored: by reference when a module has it, by value otherwise (FUT-19)."""
    if not callable(function):
        raise UsageError(
            f"not a function: {function!r:.200}", hint="submit(function, *args), not submit(function())"
        )
    return pickling.pack(_dumped(function, f"the function {name_of(function)}"))


def load_code(content: bytes) -> Callable[..., Any]:
    """The function of stored bytes whose signature was checked; `CodeNotLoadable` if it cannot be made."""
    function = pickling.unpack(content, what="the function")
    if not callable(function):
        raise CodeNotLoadable(f"the code is a {type(function).__qualname__} and no function")
    return function  # type: ignore[no-any-return] # callable, as far as anybody can know


def dump_args(args: Sequence[object], kwargs: Mapping[str, object]) -> Args:
    """Arguments as stored. A handle anywhere in them becomes an input, and arrives as its result."""
    call = tuple(args), dict(kwargs)
    try:
        dumped = pickling.dump(call, handles=True)
    except MemoryError:
        raise
    except Exception as error:
        for name, value in _named(args, kwargs):
            _dumped(value, name, handles=True)
        raise _trouble(call, "the arguments", error) from error
    return Args(pickling.pack(dumped), dumped.inputs)


def load_args(content: bytes, resolve: Resolve) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of stored bytes whose signature was checked.

    Args:
        content: from `dump_args`.
        resolve: the result of the future with this id; what it raises comes out as it is.
    """
    args, kwargs = pickling.unpack(content, resolve=resolve, what="an argument")
    return args, kwargs


def dump_value(value: object, what: str = "the result") -> Dumped:
    """A value as a stream and parts; `CannotSerialize` says what in it is to blame."""
    return _dumped(value, what)


def _named(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for number, value in enumerate(args, 1):
        yield f"argument {number}", value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value


def _dumped(value: object, name: str, *, handles: bool = False) -> Dumped:
    try:
        return pickling.dump(value, handles=handles)
    except MemoryError:
        raise
    except Exception as error:
        raise _trouble(value, name, error) from error


def _trouble(value: object, name: str, error: Exception) -> CannotSerialize:
    found = culprit(value, name, pickling.dump)
    reason = str(error).partition("\n")[0][:200]
    return CannotSerialize(f"{found}, which cannot be stored: {type(error).__name__}: {reason}")
