"""The messages between a supervisor and its children: msgpack frames, each preceded by its length.

There are two socket pairs for each child. The *work* socket carries tasks to the child and outcomes back; the
child's main thread reads it between tasks. The *control* socket carries the few messages that must arrive
while a task runs; a separate thread of the child reads it. The child records in a *page* of shared memory
which task it is running. This needs no message, and the supervisor can read the page even after the child has
died.
"""

import mmap
import os
import socket
from typing import Generic, TypeVar

import msgspec

from tidemill.cluster.leases import TTL_S
from tidemill.futures.protocol.rows import Failure, Result

T = TypeVar("T")

RECEIVE_BYTES = 256 * 1024
_LENGTH = 4


class Message(msgspec.Struct, frozen=True, array_like=True):
    """The base class of all messages."""


# --- work socket, to the child


class ChildHello(Message, frozen=True, array_like=True, tag=0):
    """The first message to a child: its cluster and its node."""

    cluster: str
    store: str
    objects: str
    secret: bytes  # the cluster key; not in the environment, where other processes could read it
    node: str
    node_epoch: int
    address: str
    segments: str  # the folder for results that are too large for a row
    roots: str = ""  # a file with the certificates to trust when fetching results from other hosts
    ttl_s: float = TTL_S  # how long the locks of its tasks last without renewal


class TaskMessage(Message, frozen=True, array_like=True):
    """One claimed future, with everything that a child needs to run it."""

    number: int
    epoch: int  # of the claim; becomes the version of the result
    spec: bytes
    inputs: tuple[tuple[bytes, Result], ...] = ()
    code: bytes = b""  # empty if this child has received it before, or if it is in object storage
    ram: int = 0  # bytes that it may use; 0 for no limit


class TaskBatch(Message, frozen=True, array_like=True, tag=1):
    """Tasks to run in this order."""

    tasks: list[TaskMessage]


# --- control socket, to the child


class Recall(Message, frozen=True, array_like=True, tag=2):
    """Do not start the tasks with numbers from `low` to below `high`. The child answers with `Recalled`."""

    low: int
    high: int


class Cancel(Message, frozen=True, array_like=True, tag=3):
    """Cancel this task. From now on, its context reports that it was cancelled."""

    number: int


class Resume(Message, frozen=True, array_like=True, tag=4):
    """A task that wants to resume has a slot again."""

    number: int


# --- work socket, from the child


class Ready(Message, frozen=True, array_like=True, tag=10):
    """The child has finished its imports and waits for tasks."""


class TaskDone(Message, frozen=True, array_like=True, tag=11):
    """The task has a result. `took_us` is how long it ran."""

    number: int
    result: Result
    took_us: int


class TaskBroken(Message, frozen=True, array_like=True, tag=12):
    """The task failed."""

    number: int
    failure: Failure
    took_us: int
    ram_used: int = 0  # the peak in bytes, if the task ran out of memory


class Loss(Message, frozen=True, array_like=True):
    """A copy of an input that could not be loaded."""

    id: bytes
    version: int
    node: str  # the node that has the copy, according to the store; empty for object storage
    unreachable: bool  # several attempts to fetch it failed, although its node may be alive


class InputsMissing(Message, frozen=True, array_like=True, tag=13):
    """The task did not run, because inputs are missing."""

    number: int
    losses: tuple[Loss, ...]


class TaskWaiting(Message, frozen=True, array_like=True, tag=14):
    """The task waits for these futures and uses no slot until it resumes."""

    number: int
    ids: tuple[bytes, ...]


class Resuming(Message, frozen=True, array_like=True, tag=15):
    """The task wants to resume. The supervisor answers with `Resume`."""

    number: int


class Status(Message, frozen=True, array_like=True, tag=16):
    """The status text that the task has set, for users."""

    number: int
    text: str


class Keep(Message, frozen=True, array_like=True, tag=17):
    """Keep a segment that the task wrote in addition to its result: other rows refer to it."""

    segment: str


# --- control socket, from the child


class Recalled(Message, frozen=True, array_like=True, tag=20):
    """The child has not started the tasks with numbers from `low` to below `high`, and will not."""

    low: int
    high: int


WorkMessage = ChildHello | TaskBatch
ControlMessage = Recall | Cancel | Resume
ChildMessage = (
    Ready | TaskDone | TaskBroken | InputsMissing | TaskWaiting | Resuming | Status | Keep | Recalled
)

encoder = msgspec.msgpack.Encoder()


def frame(message: Message) -> bytes:
    """Encode a message with its length."""
    out = bytearray(_LENGTH)
    encoder.encode_into(message, out, _LENGTH)
    out[:_LENGTH] = (len(out) - _LENGTH).to_bytes(_LENGTH, "little")
    return bytes(out)


class Frames(Generic[T]):
    """Splits a stream of bytes into messages."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decode = decoder.decode
        self._rest = b""

    def feed(self, data: bytes) -> list[T]:
        """Add bytes to the stream and return the messages that are now complete."""
        if self._rest:
            data = self._rest + data
        messages: list[T] = []
        at, view = 0, memoryview(data)
        while len(data) - at >= _LENGTH:
            end = at + _LENGTH + int.from_bytes(view[at : at + _LENGTH], "little")
            if end > len(data):
                break
            messages.append(self._decode(view[at + _LENGTH : end]))
            at = end
        self._rest = data[at:]
        return messages


def work_frames() -> Frames[WorkMessage]:
    """Return the decoder for a child's end of its work socket."""
    return Frames(msgspec.msgpack.Decoder(WorkMessage))


def control_frames() -> Frames[ControlMessage]:
    """Return the decoder for a child's end of its control socket."""
    return Frames(msgspec.msgpack.Decoder(ControlMessage))


def child_frames() -> Frames[ChildMessage]:
    """Return the decoder for the supervisor's end of either socket."""
    return Frames(msgspec.msgpack.Decoder(ChildMessage))


def receive(sock: socket.socket, frames: Frames[T]) -> list[T]:
    """Wait until at least one message is complete. Return no messages if the other side closed the socket."""
    while True:
        data = sock.recv(RECEIVE_BYTES)
        if not data:
            return []
        if messages := frames.feed(data):
            return messages


class SharedPage:
    """A page of memory that shows the supervisor which task a child runs.

    The page also shows when the task began and when it last reported progress. Only the child writes to the
    page. When a task begins, the child writes the task's number last; when the task ends, it clears the
    number. So a reader that sees a number also sees the times of that task.
    """

    SIZE = mmap.PAGESIZE

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, self.SIZE)
        self._words = memoryview(self._map).cast("q")

    @staticmethod
    def make() -> int:
        """Create a page and return its file descriptor."""
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
        """The number of the running task; 0 for none."""
        return self._words[0]

    @property
    def used_bytes(self) -> int:
        """How much memory the process used when the task began, if the task specifies `ram`."""
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
