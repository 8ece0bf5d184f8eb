"""The digest of a call. Equal calls have the same digest in every process (FUT-62).

A retried task submits its children again, from another process. The digest of the call is part of the key
that identifies a child. A digest of the pickle is not enough: pickle writes equal strings differently if they
are different objects, it writes sets in an order that differs between processes, and cloudpickle adds a
random number to each class of `__main__`. So this module pickles the call again, into a hash, without
references between objects. In place of some objects it writes:

- for a function, its module and name, or its byte code, constants, defaults, and the variables and globals
  that it uses (but not its file and line);
- for a class that is not in a module, its name and members;
- for a set, its sorted items;
- for a future, its id.

Equal calls may still have different digests, if the pickle of a value contains something random. Then a child
is submitted twice, which costs time but does no harm.
"""

import inspect
import pickle
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import cloudpickle

from tidemill.futures.values.pickling import PROTOCOL, Handle, dump

DIGEST_BYTES = 32


def call_digest(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> bytes:
    """Return the digest of a call that `dump_code` and `dump_args` accept."""
    call = function, tuple(args), dict(sorted(kwargs.items()))
    try:
        return _digest(call, frozenset())
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - this value needs a complete pickle: use the digest of the pickle
        dumped = dump(call, handles=True)
        state = blake2b(repr(dumped.inputs).encode() + dumped.stream, digest_size=DIGEST_BYTES)
        for part in dumped.parts:
            state.update(part.view)
        return state.digest()


def _digest(value: object, above: frozenset[int]) -> bytes:
    """Return the digest of a value. `above` are the functions and classes that contain it."""
    try:
        return _pickle_digest(value, above, fast=True)
    except (ValueError, RecursionError):  # it contains itself: pickle it with references
        return _pickle_digest(value, above, fast=False)


def _pickle_digest(value: object, above: frozenset[int], *, fast: bool) -> bytes:
    out = _Out()
    pickler = _Pickler(out, above)
    pickler.fast = fast
    pickler.dump(value)
    return out.state.digest()


class _Out:
    def __init__(self) -> None:
        self.state = blake2b(digest_size=DIGEST_BYTES, person=b"tidemill-call")

    def write(self, piece: Any) -> int:
        self.state.update(piece)
        return len(piece)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    def __init__(self, out: _Out, above: frozenset[int]) -> None:
        super().__init__(out, protocol=PROTOCOL)
        self._above = above

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, set | frozenset) and type(obj) in (set, frozenset):
            return "set", type(obj).__name__, *sorted(_digest(item, self._above) for item in obj)
        if isinstance(obj, Handle):
            return "future", obj.id
        if isinstance(obj, types.FunctionType | type) and not names_itself(obj):
            if id(obj) in self._above:
                return "itself", obj.__qualname__
            parts = _of_function(obj) if isinstance(obj, types.FunctionType) else _of_class(obj)
            return "code", obj.__qualname__, _digest(parts, self._above | {id(obj)})
        return None


def names_itself(obj: Any) -> bool:
    """Return whether another process finds the same object by its module and name."""
    module = getattr(obj, "__module__", None)
    target: Any = sys.modules.get(module or "")
    if target is None or module == "__main__":
        return False
    for name in obj.__qualname__.split("."):
        target = getattr(target, name, None)
    return target is obj


def _of_function(function: types.FunctionType) -> object:
    used = inspect.getclosurevars(function)
    return (
        shape_of(function.__code__),
        function.__defaults__,
        sorted((function.__kwdefaults__ or {}).items()),
        sorted(used.nonlocals.items()),
        sorted(used.globals.items()),
        sorted(vars(function).items()),
    )


def shape_of(code: types.CodeType) -> object:
    """Return the parts of a code object that determine what it does, without its file and line."""
    constants = [
        shape_of(constant) if isinstance(constant, types.CodeType) else constant
        for constant in code.co_consts
    ]
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
    )


_MACHINERY = frozenset(
    (
        "__annotations_cache__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__slotnames__",  # appears with the first pickle
        "__static_attributes__",
        "__weakref__",
    )
)


def _of_class(kind: type) -> object:
    return kind.__bases__, members_of(kind)


def members_of(kind: type) -> list[tuple[str, object]]:
    """Return the members of a class, without those that the interpreter adds."""
    members = [(name, _plain(value)) for name, value in sorted(vars(kind).items()) if name not in _MACHINERY]
    return [pair for pair in members if _picklable(pair[1])]


def _plain(member: object) -> object:
    """Return a member of a class in a form that can be pickled."""
    if isinstance(member, staticmethod | classmethod):
        return type(member).__name__, member.__func__
    if isinstance(member, property):
        return "property", member.fget, member.fset, member.fdel
    return member


def _picklable(value: object) -> bool:
    """Return whether the digest covers this member. It omits caches and the interpreter's descriptors."""
    if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType | types.FunctionType):
        return isinstance(value, types.FunctionType)
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - methods of the value may raise anything
        return isinstance(value, tuple)
    return True
