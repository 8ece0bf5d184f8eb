"""Pickling: turn values into bytes and back, with pickle protocol 5 and large buffers outside of the stream.

`dump` returns a *stream* and *parts*. A part is memory that belongs to the value: the data of a numpy array,
an Arrow buffer, a large `bytes`. The caller copies each part once, to its destination. `load` builds the
value from views of that destination, so reading an array copies nothing. These views are always read-only,
because all readers of a result share the memory.

cloudpickle does the pickling. It pickles functions and classes of a module by reference, and those of
`__main__` or without a module by value. A pickle that contains code by value records the Python version, and
no other version loads it: byte code of another version may crash the interpreter instead of failing (FUT-22).

If a future is among the arguments, only its id is pickled. When the arguments are loaded, the future's result
takes its place (FUT-19).

This module checks no signatures. Callers must check them before they call `load`.
"""

import contextlib
import operator
import pickle
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import cloudpickle
import msgspec

from tidemill.errors import CannotSerialize, CodeNotLoadable, TidemillError, UsageError
from tidemill.futures.values import reducers, stored_names

PYTHON = ".".join(platform.python_version_tuple()[:2])
"""The Python version of this interpreter, which determines its byte code."""

PROTOCOL = 5
VIEW, BYTES, BYTEARRAY = 0, 1, 2
"""What a part becomes when it is loaded: a read-only view, or a copy as bytes or bytearray."""

_BY_VALUE = frozenset({"_make_function", "_make_skeleton_class", "_make_skeleton_enum"})
_SCALARS = frozenset({type(None), bool, int, float, str})


class Handle:
    """Refers to a future by its id. The client's `Future` derives from this class."""

    __slots__ = ()
    id: bytes


class InputPlace(Handle):
    """Where a task gets the result of a future: from the future, or from an item of another input's result.

    - parent: the input whose result has this item; None if the future itself is an input.
    - index: the position of the item.
    """

    __slots__ = ("id", "index", "parent")

    def __init__(self, future_id: bytes) -> None:
        self.id = future_id
        self.parent: InputPlace | None = None
        self.index = 0


Places = Mapping[bytes, InputPlace]
"""The places of futures, by the ids of the futures."""


class PicklePart(NamedTuple):
    """Memory of a value that is stored outside of its stream."""

    kind: int
    view: memoryview


class Dumped(NamedTuple):
    """A value as a stream and parts. The parts are views of the value's memory."""

    stream: bytes
    parts: tuple[PicklePart, ...] = ()
    inputs: tuple[bytes, ...] = ()  # the ids of the handles that were replaced, without duplicates
    python: str = ""  # the only Python version that can load it; empty for any

    @property
    def size(self) -> int:
        """The number of bytes in the stream and the parts."""
        return len(self.stream) + sum(part.view.nbytes for part in self.parts)


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A value as one block of bytes, for a row or an object."""

    stream: bytes
    python: str = ""
    kinds: tuple[int, ...] = ()
    bodies: tuple[bytes, ...] = ()


_packed = msgspec.msgpack.Decoder(Packed)
_encode = msgspec.msgpack.Encoder().encode


def dump(value: object, *, handles: bool = False, places: Places | None = None) -> Dumped:
    """Pickle a value. Errors of pickle and of the value's methods are raised unchanged.

    Args:
        value: anything that pickle or cloudpickle accepts.
        handles: whether a task receives a future's result in place of the future; if not, futures are pickled
            like other values.
        places: where the task gets the results of futures that are not inputs themselves.
    """
    if type(value) in _SCALARS:
        return Dumped(pickle.dumps(value, PROTOCOL))
    out = _Out()
    pickler = _Pickler(out, handles=handles, places=places or {})
    pickler.dump(value)
    inputs = tuple(pickler.inputs)
    return Dumped(out.stream(), tuple(out.parts), inputs, PYTHON if pickler.by_value else "")


def load(
    stream: bytes | memoryview,
    parts: Sequence[PicklePart] = (),
    *,
    python: str = "",
    resolve: Callable[[bytes], object] | None = None,
    subject: str = "the value",
) -> Any:
    """Load the value of a stream and its parts. Raise `CodeNotLoadable` if this process cannot load it.

    Args:
        stream: from `dump`; the caller has checked its signature.
        parts: the stored parts; the memory of a part stays allocated as long as the value uses it.
        python: from `dump`.
        resolve: returns the value for a handle's id; its errors are raised unchanged.
        subject: names the value in errors.
    """
    if python and python != PYTHON:
        raise CodeNotLoadable(
            f"{subject} contains code for Python {python}, but this is Python {PYTHON}",
            hint="use one Python version on clients and workers, or move the functions into a module",
        )
    token = _resolver.set(resolve)
    try:
        with loading(subject):
            return stored_names.load(stream, map(_to_buffer, parts))
    finally:
        _resolver.reset(token)


def pack(dumped: Dumped) -> bytes:
    """Return a value as one block of bytes. Its parts are copied."""
    if not dumped.parts:
        return _encode(Packed(dumped.stream, dumped.python))
    try:
        return _encode(
            Packed(
                dumped.stream,
                dumped.python,
                tuple(part.kind for part in dumped.parts),
                tuple(part.view for part in dumped.parts),  # type: ignore[misc] # encoded as bytes
            )
        )
    except ValueError:  # a length past 32 bits
        raise CannotSerialize(
            f"a part of this value is larger than the limit of {2**32 - 1:,} bytes"
            f" (the whole value has {dumped.size:,} bytes)",
            hint="store large values with put() and pass the futures",
        ) from None


def unpack(
    content: bytes | memoryview,
    *,
    resolve: Callable[[bytes], object] | None = None,
    subject: str = "the value",
) -> Any:
    """Load the value of `pack`ed bytes. The caller has checked the signature."""
    try:
        packed = _packed.decode(content)
    except msgspec.DecodeError as error:
        raise CodeNotLoadable(f"{subject} has a format that this release cannot read: {error}") from None
    parts = [
        PicklePart(kind, memoryview(body)) for kind, body in zip(packed.kinds, packed.bodies, strict=True)
    ]
    return load(packed.stream, parts, python=packed.python, resolve=resolve, subject=subject)


@contextlib.contextmanager
def loading(subject: str) -> Iterator[None]:
    """Turn the errors of loading a pickle into `CodeNotLoadable`, except for `MemoryError`."""
    try:
        yield
    except (TidemillError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        missing = CodeNotLoadable(f"{subject} needs the module {error.name!r}, which is not installed here")
        missing.module = error.name or ""
        raise missing from error
    except (ImportError, AttributeError) as error:
        raise CodeNotLoadable(
            f"{subject} needs a name that is missing from an imported module: {error}",
            hint="install the same release of that module on workers and clients",
        ) from error
    except (Exception, SystemExit) as error:  # code of a module or __setstate__ may raise anything
        raise CodeNotLoadable(
            f"{subject} cannot be loaded: {type(error).__name__}: {error}",
            hint="fix the cause: a module raised this error while it was imported, or a class raised it in"
            " __setstate__",
        ) from error


def _to_buffer(part: PicklePart) -> object:
    if part.kind == BYTES:
        return bytes(part.view)
    if part.kind == BYTEARRAY:
        return bytearray(part.view)
    return part.view.toreadonly()


_resolver: ContextVar[Callable[[bytes], object] | None] = ContextVar("tidemill-resolver", default=None)


def _result_of(future_id: bytes) -> object:
    """Return the result that replaces a future. Pickles refer to this function: see `stored_names`."""
    resolve = _resolver.get()
    if resolve is None:
        raise UsageError(
            "these arguments contain futures and can be loaded only by a task",
            hint="pass these arguments to a task instead of loading them yourself",
        )
    return resolve(future_id)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    """A cloudpickle pickler that replaces handles and records whether it pickled code by value.

    pickle calls `reducer_override` only for objects that are not of its built-in types. It would call
    `persistent_id` for every number in a list, which makes large lists three times as slow.
    """

    def __init__(self, out: "_Out", *, handles: bool, places: Places) -> None:
        super().__init__(out, protocol=PROTOCOL, buffer_callback=out.take)
        self.inputs: dict[bytes, None] = {}
        self.by_value = False
        self._handles = handles
        self._places = places

    def reducer_override(self, obj: Any) -> Any:
        if self._handles and isinstance(obj, Handle):
            place = obj if isinstance(obj, InputPlace) else self._places.get(obj.id)
            if place is not None and place.parent is not None:
                return operator.getitem, (place.parent, place.index)  # pickle writes each parent only once
            self.inputs[obj.id] = None
            return _result_of, (obj.id,)
        if (reduced := reducers.reduce(obj)) is not NotImplemented:
            return reduced
        reduced = super().reducer_override(obj)
        if reduced is not NotImplemented and reduced[0].__name__ in _BY_VALUE:
            self.by_value = True
        return reduced


class _Out:
    """The output of the pickler: the stream in pieces, and the parts in order.

    numpy and Arrow pass their memory to `take`. A large `bytes` or `bytearray` has no such hook: pickle
    writes it as a separate piece, after an opcode with its length. This class replaces that opcode with
    NEXT_BUFFER, which pickle also writes for `take`. So the bytes become a part too, at any depth, and are
    neither copied into the stream nor hashed with it.
    """

    def __init__(self) -> None:
        self.parts: list[PicklePart] = []
        self._pieces: list[bytes] = []

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            self.parts.append(PicklePart(VIEW, buffer.raw()))
        except BufferError:  # not contiguous: let pickle raise its own error
            return True
        return False

    def write(self, piece: bytes | bytearray | memoryview) -> int:
        size = len(piece)
        if size >= LARGE_BYTES and self._pieces and type(piece) in (bytes, bytearray):
            before = self._pieces[-1]
            header = _header(before, type(piece) is bytearray, size)
            if header:
                self._pieces[-1] = before[:-header]
                self._pieces.append(pickle.NEXT_BUFFER)
                self.parts.append(
                    PicklePart(
                        BYTEARRAY if type(piece) is bytearray else BYTES, memoryview(piece).toreadonly()
                    )
                )
                return size
        self._pieces.append(piece if type(piece) is bytes else bytes(piece))
        return size

    def stream(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


LARGE_BYTES = 64 * 1024
"""pickle writes bytes of at least this size, the size of its frames, as a separate piece."""


def _header(before: bytes, array: bool, size: int) -> int:
    """Return the length of the opcode at the end of `before` that announces `size` bytes; 0 for none."""
    long_form = size.to_bytes(8, "little")
    if before.endswith((pickle.BYTEARRAY8 if array else pickle.BINBYTES8) + long_form):
        return 9
    if not array and size < 2**32 and before.endswith(pickle.BINBYTES + long_form[:4]):
        return 5
    return 0
