"""What a supervisor and its children say to each other: msgpack frames, each behind its length.

There are two socket pairs for each child. On the *work* line tasks go down and their ends come up; the
child's main thread reads it between two tasks. On the *control* line go the few words that must be heard
while a task runs; a thread of the child listens to it and does nothing else. Beside them lies a *page* of
shared memory in which the child says what it is doing, so that this costs no message and can be read after
its death.
"""

import mmap
import os
import socket
from typing import Generic, TypeVar

import msgspec

from tidemill.futures.protocol.rows import Failure, Result

T = TypeVar("T")

RECEIVE_BYTES = 256 * 1024
_LENGTH = 4


class Message(msgspec.Struct, frozen=True, array_like=True):
    """The base of everything that is said."""


# --- work, down


class ChildHello(Message, frozen=True, array_like=True, tag=0):
    """The first word to a child: where it is, and with whom."""

    cluster: str
    store: str
    objects: str
    secret: bytes  # the cluster key; here and not in the environment, where others could read it
    node: str
    node_epoch: int
    address: str
    segments: str  # the folder for results that are too large for a row
    roots: str = ""  # a file of certificates to trust when results are fetched from other hosts


class TaskMessage(Message, frozen=True, array_like=True):
    """One claimed future, with all that a child needs to run it."""

    number: int
    epoch: int  # of the claim; becomes the version of the result
    spec: bytes
    inputs: tuple[tuple[bytes, Result], ...] = ()
    code: bytes = b""  # empty: this child was sent it before, or it is an object
    ram: int = 0  # bytes it may take; 0 for no limit


class TaskBatch(Message, frozen=True, array_like=True, tag=1):
    """Tasks to run in this order."""

    tasks: list[TaskMessage]


# --- control, down


class Recall(Message, frozen=True, array_like=True, tag=2):
    """Begin none of these numbers, `low` to below `high`; the answer is `Recalled`."""

    low: int
    high: int


class Cancel(Message, frozen=True, array_like=True, tag=3):
    """Somebody asked for the end of this task: its token says so from now on."""

    number: int


class Resume(Message, frozen=True, array_like=True, tag=4):
    """A task that asked to go on has a slot again."""

    number: int


# --- work, up


class Ready(Message, frozen=True, array_like=True, tag=10):
    """The child has said all its imports and waits for work."""


class TaskDone(Message, frozen=True, array_like=True, tag=11):
    """The task has a result. `took_us` is how long it ran."""

    number: int
    result: Result
    took_us: int


class TaskBroken(Message, frozen=True, array_like=True, tag=12):
    """The task has none."""

    number: int
    failure: Failure
    took_us: int
    ram_used: int = 0  # bytes at the most, of a task that ran out of memory


class Loss(Message, frozen=True, array_like=True):
    """A copy of an input that could not be had."""

    id: bytes
    version: int
    node: str  # who has it, by its record; empty for object storage
    unreachable: bool  # its node may be alive, and it could not be fetched again and again


class InputsMissing(Message, frozen=True, array_like=True, tag=13):
    """The task was not run, for want of inputs."""

    number: int
    losses: tuple[Loss, ...]


class TaskWaiting(Message, frozen=True, array_like=True, tag=14):
    """The task awaits these futures and needs no slot meanwhile."""

    number: int
    ids: tuple[bytes, ...]


class Resuming(Message, frozen=True, array_like=True, tag=15):
    """The task wants to go on; the answer is `Resume`."""

    number: int


class Status(Message, frozen=True, array_like=True, tag=16):
    """What the task says of itself, for people."""

    number: int
    text: str


class Keep(Message, frozen=True, array_like=True, tag=17):
    """A segment that the task wrote beside its result, and that somebody knows of."""

    segment: str


# --- control, up


class Recalled(Message, frozen=True, array_like=True, tag=20):
    """None of these numbers, `low` to below `high`, was begun, nor will be."""

    low: int
    high: int


Down = ChildHello | TaskBatch
Order = Recall | Cancel | Resume
Up = Ready | TaskDone | TaskBroken | InputsMissing | TaskWaiting | Resuming | Status | Keep | Recalled

encoder = msgspec.msgpack.Encoder()


def frame(message: Message) -> bytes:
    """A message as it travels."""
    out = bytearray(_LENGTH)
    encoder.encode_into(message, out, _LENGTH)
    out[:_LENGTH] = (len(out) - _LENGTH).to_bytes(_LENGTH, "little")
    return bytes(out)


class Frames(Generic[T]):
    """Cuts a stream of bytes into messages."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decode = decoder.decode
        self._rest = b""

    def feed(self, data: bytes) -> list[T]:
        """The messages that are whole with these bytes."""
        if self._rest:
            data = self._rest + data
        found: list[T] = []
        at, view = 0, memoryview(data)
        while len(data) - at >= _LENGTH:
            end = at + _LENGTH + int.from_bytes(view[at : at + _LENGTH], "little")
            if end > len(data):
                break
            found.append(self._decode(view[at + _LENGTH : end]))
            at = end
        self._rest = data[at:]
        return found


def downs() -> Frames[Down]:
    """For a child's end of its work line."""
    return Frames(msgspec.msgpack.Decoder(Down))


def orders() -> Frames[Order]:
    """For a child's end of its control line."""
    return Frames(msgspec.msgpack.Decoder(Order))


def ups() -> Frames[Up]:
    """For the supervisor's end of either line."""
    return Frames(msgspec.msgpack.Decoder(Up))


def receive(line: socket.socket, frames: Frames[T]) -> list[T]:
    """Wait until at least one message is whole; none when the other side is gone."""
    while True:
        data = line.recv(RECEIVE_BYTES)
        if not data:
            return []
        if messages := frames.feed(data):
            return messages


class SharedPage:
    """Shared memory of one child: what it runs, since when, and when it last made progress.

    Only the child writes it. The number is written last when a task begins and first when it ends, so that a
    number stands there only with its own times.
    """

    SIZE = mmap.PAGESIZE

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, self.SIZE)
        self._words = memoryview(self._map).cast("q")

    @staticmethod
    def make() -> int:
        """The descriptor of a new page."""
        fd = os.memfd_create("tidemill-page")
        os.ftruncate(fd, SharedPage.SIZE)
        return fd

    def begin(self, number: int, now_us: int, used_bytes: int = 0) -> None:
        words = self._words
        words[1] = words[2] = now_us
        words[3] = used_bytes
        words[0] = number

    def end(self) -> None:
        self._words[0] = 0

    def progress(self, now_us: int) -> None:
        self._words[2] = now_us

    @property
    def running(self) -> int:
        """The number of the task that is being executed; 0 for none."""
        return self._words[0]

    @property
    def used_bytes(self) -> int:
        """What the process had in memory when the task began, if the task asked for memory."""
        return self._words[3]

    @property
    def began_us(self) -> int:
        return self._words[1]

    @property
    def progress_us(self) -> int:
        return self._words[2]

    def close(self) -> None:
        self._words.release()
        self._map.close()
