"""Values as bytes and back: pickle protocol 5, with large buffers beside the stream instead of in it.

`dump` gives a *stream* and *parts*. A part is memory that still belongs to the value: a numpy array's data,
an Arrow buffer, a large `bytes`. Whoever stores the value copies each part once, to where it shall lie, and
`load` builds the value around views of that place, so that reading an array copies nothing. Such views are
read-only, whatever the size of the value: a result is shared by everyone who reads it.

cloudpickle does the pickling: functions and classes that a module has go by reference, those of `__main__` or
of no module by value. What holds code by value is marked with the Python version, and no other version loads
it: byte code of another one may crash the interpreter instead of failing (FUT-22).

A `Handle` inside arguments is left out and its id noted; when the arguments are loaded, the future's result
stands in its place (FUT-19).

Nothing here checks a signature: callers do, before they call `load`.
"""

import contextlib
import pickle
import platform
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import cloudpickle
import msgspec

from tidemill.errors import CannotSerialize, CodeNotLoadable, TidemillError, UsageError
from tidemill.futures.values import reducers, stored_names

PYTHON = ".".join(platform.python_version_tuple()[:2])
"""The version whose byte code this interpreter runs."""

PROTOCOL = 5
VIEW, BYTES, BYTEARRAY = 0, 1, 2
"""What a part is given back as: a read-only view, or an object of its own."""

_BY_VALUE = frozenset({"_make_function", "_make_skeleton_class", "_make_skeleton_enum"})
_SCALARS = frozenset({type(None), bool, int, float, str})


class Handle:
    """What stands for a future in arguments; the client's `Future` is one."""

    __slots__ = ()
    id: bytes


class PicklePart(NamedTuple):
    """Memory of a value, to be stored beside its stream."""

    kind: int
    view: memoryview


class Dumped(NamedTuple):
    """A value as a stream and its parts; the parts' memory is the value's own."""

    stream: bytes
    parts: tuple[PicklePart, ...] = ()
    inputs: tuple[bytes, ...] = ()  # the ids of the handles that were left out, each once
    python: str = ""  # the only version that can load it; empty for any

    @property
    def size(self) -> int:
        """Bytes of the stream and the parts."""
        return len(self.stream) + sum(part.view.nbytes for part in self.parts)


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A value in one piece: what is stored in a row or an object of its own."""

    stream: bytes
    python: str = ""
    kinds: tuple[int, ...] = ()
    bodies: tuple[bytes, ...] = ()


_packed = msgspec.msgpack.Decoder(Packed)
_encode = msgspec.msgpack.Encoder().encode


def dump(value: object, *, handles: bool = False) -> Dumped:
    """Pickle a value; whatever pickle or the value's own methods raise comes out as it is.

    Args:
        value: anything that pickle or cloudpickle can take apart.
        handles: whether a `Handle` stands for its future's result; else it is a value like any other.
    """
    if type(value) in _SCALARS:
        return Dumped(pickle.dumps(value, PROTOCOL))
    out = _Out()
    pickler = _Pickler(out, handles=handles)
    pickler.dump(value)
    inputs = tuple(pickler.inputs)
    return Dumped(out.stream(), tuple(out.parts), inputs, PYTHON if pickler.by_value else "")


def load(
    stream: bytes | memoryview,
    parts: Sequence[PicklePart] = (),
    *,
    python: str = "",
    resolve: Callable[[bytes], object] | None = None,
    what: str = "the value",
) -> Any:
    """The value of a stream and its parts; `CodeNotLoadable` when this process cannot make it.

    Args:
        stream: from `dump`, its signature checked.
        parts: where the parts lie now; the value keeps what it needs of them alive.
        python: from `dump`.
        resolve: gives the value for a handle's id; what it raises comes out as it is.
        what: names the value in an error.
    """
    if python and python != PYTHON:
        raise CodeNotLoadable(
            f"{what} holds code for Python {python}, and this is {PYTHON}",
            hint="run clients and workers on one version, or put the functions into a module",
        )
    token = _resolver.set(resolve)
    try:
        with loading(what):
            return stored_names.load(stream, map(_given_back, parts))
    finally:
        _resolver.reset(token)


def pack(dumped: Dumped) -> bytes:
    """A value in one piece; its parts are copied."""
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
            f"{dumped.size:,} bytes are too many for one piece", hint="put() large values and pass the future"
        ) from None


def unpack(
    content: bytes | memoryview,
    *,
    resolve: Callable[[bytes], object] | None = None,
    what: str = "the value",
) -> Any:
    """The value of `pack`ed bytes whose signature was checked."""
    try:
        packed = _packed.decode(content)
    except msgspec.DecodeError as error:
        raise CodeNotLoadable(f"{what} was stored by a release that this one cannot read: {error}") from None
    parts = [
        PicklePart(kind, memoryview(body)) for kind, body in zip(packed.kinds, packed.bodies, strict=True)
    ]
    return load(packed.stream, parts, python=packed.python, resolve=resolve, what=what)


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Tell the ways apart in which a pickle cannot be loaded; a lack of memory stays one."""
    try:
        yield
    except (TidemillError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        missing = CodeNotLoadable(f"{what} needs the module {error.name!r}, which is not installed here")
        missing.module = error.name or ""
        raise missing from error
    except (ImportError, AttributeError) as error:
        raise CodeNotLoadable(
            f"{what} needs what a module here does not have: {error}",
            hint="install the same release of that module on workers and clients",
        ) from error
    except (Exception, SystemExit) as error:  # a module's top level, __setstate__: anything
        raise CodeNotLoadable(
            f"{what} cannot be loaded: {type(error).__name__}: {error}",
            hint="loading runs imports and __setstate__ of its classes: see the cause",
        ) from error


def _given_back(part: PicklePart) -> object:
    if part.kind == BYTES:
        return bytes(part.view)
    if part.kind == BYTEARRAY:
        return bytearray(part.view)
    return part.view.toreadonly()


_resolver: ContextVar[Callable[[bytes], object] | None] = ContextVar("tidemill-resolver", default=None)


def _result_of(future_id: bytes) -> object:
    """What a handle in arguments becomes. Pickles name it: see `stored_names` before it moves."""
    resolve = _resolver.get()
    if resolve is None:
        raise UsageError(
            "these arguments hold futures and can only be loaded by a task",
            hint="load them with a resolver",
        )
    return resolve(future_id)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    """cloudpickle with handles and with notes of what it met.

    `reducer_override` is asked for objects that are not of pickle's own types only. `persistent_id` would be
    asked for every number in a list, which makes large lists three times as slow.
    """

    def __init__(self, out: "_Out", *, handles: bool) -> None:
        super().__init__(out, protocol=PROTOCOL, buffer_callback=out.take)
        self.inputs: dict[bytes, None] = {}
        self.by_value = False
        self._handles = handles

    def reducer_override(self, obj: Any) -> Any:
        if self._handles and isinstance(obj, Handle):
            self.inputs[obj.id] = None
            return _result_of, (obj.id,)
        if (reduced := reducers.reduce(obj)) is not NotImplemented:
            return reduced
        reduced = super().reducer_override(obj)
        if reduced is not NotImplemented and reduced[0].__name__ in _BY_VALUE:
            self.by_value = True
        return reduced


class _Out:
    """Where the pickler writes: the stream in pieces, and the parts in the order they are met.

    numpy and Arrow hand their memory to `take`. A large `bytes` or `bytearray` has no such hook: pickle
    writes it as one piece of its own, behind the opcode for "so many bytes follow". That opcode is taken back
    and replaced by "the next buffer", which pickle itself writes for `take`; so it becomes a part as well, at
    any depth, and is neither copied into the stream nor hashed with it.
    """

    def __init__(self) -> None:
        self.parts: list[PicklePart] = []
        self._pieces: list[bytes] = []

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            self.parts.append(PicklePart(VIEW, buffer.raw()))
        except BufferError:  # not contiguous: pickle says so better than we could
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
"""From this size on pickle writes bytes as a piece of their own (its frames are that large)."""


def _header(before: bytes, array: bool, size: int) -> int:
    """How long the opcode at the end of `before` is that announces `size` bytes; 0 if there is none."""
    long_form = size.to_bytes(8, "little")
    if before.endswith((pickle.BYTEARRAY8 if array else pickle.BINBYTES8) + long_form):
        return 9
    if not array and size < 2**32 and before.endswith(pickle.BINBYTES + long_form[:4]):
        return 5
    return 0
