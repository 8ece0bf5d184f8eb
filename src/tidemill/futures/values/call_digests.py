"""The digest of a call: the same for the same call in another process (FUT-62).

A parent that is tried again submits its children again, from another process; the digest of the call is part
of the key by which they are recognised. A digest of the pickle would not do: pickle writes equal strings
differently when they are not the same object, sets in the order of a hash that is new with every process, and
cloudpickle gives each class of `__main__` a random number. So this pickles once more, into a hash, without
references between objects and with these few things replaced:

- a function by its module and name, or by what it does: byte code, constants, defaults, the variables and
  globals it uses (not its file and line, which change without it);
- a class of no module by its name and its members; sets by their items in order; a handle by its id.

Two calls with different digests may still be equal (values whose own pickle has a random part): then a child
is submitted twice, which costs time and nothing else.
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
    """The digest of a call that `dump_code` and `dump_args` have taken; its parts may be anything."""
    call = function, tuple(args), dict(sorted(kwargs.items()))
    try:
        return _digest(call, frozenset())
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - something that only a whole pickle can take: then its digest has to do
        dumped = dump(call, handles=True)
        state = blake2b(repr(dumped.inputs).encode() + dumped.stream, digest_size=DIGEST_BYTES)
        for part in dumped.parts:
            state.update(part.view)
        return state.digest()


def _digest(value: object, above: frozenset[int]) -> bytes:
    """Of any value. `above` are the functions and classes around it: they may refer to themselves."""
    try:
        return _fed(value, above, fast=True)
    except (ValueError, RecursionError):  # refers to itself: pickled with references then
        return _fed(value, above, fast=False)


def _fed(value: object, above: frozenset[int], *, fast: bool) -> bytes:
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
    """Whether another process finds the very same under its name."""
    module = getattr(obj, "__module__", None)
    found: Any = sys.modules.get(module or "")
    if found is None or module == "__main__":
        return False
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


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
    """What a code does, without its file and line."""
    constants = [shape_of(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
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
    """What a class consists of, without what the interpreter adds."""
    members = [(name, _plain(value)) for name, value in sorted(vars(kind).items()) if name not in _MACHINERY]
    return [pair for pair in members if _picklable(pair[1])]


def _plain(member: object) -> object:
    """A member of a class as something that can be pickled."""
    if isinstance(member, staticmethod | classmethod):
        return type(member).__name__, member.__func__
    if isinstance(member, property):
        return "property", member.fget, member.fset, member.fdel
    return member


def _picklable(value: object) -> bool:
    """Whether it counts: descriptors of the interpreter, caches and the like do not."""
    if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType | types.FunctionType):
        return isinstance(value, types.FunctionType)
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever the value's own methods raise
        return isinstance(value, tuple)
    return True
