"""Parts: the units in which an attempt's data is made, each by one task of its own (LOT-8, LOT-17, LOT-26).

A room above splits its work into tasks, has them run through the port `Parts`, and builds manifests from what
they say they wrote. A task is plain data: it names code by its digest and objects by their keys, so any
process that has the pipeline can run it. Where it writes is decided by who runs it: the folder carries the
attempt, the task's own id and the epoch of its claim, so that a zombie and its successor never share one.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject


class PartInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a part reads of one table: exactly these objects."""

    dataset: DatasetId
    objects: tuple[StoredObject, ...] = ()


class PartSink(msgspec.Struct, frozen=True, kw_only=True):
    """What a part writes to; `quarantine` is where the rows go that its checks take out (LOT-33)."""

    dataset: DatasetId
    partition_by: tuple[str, ...] = ()
    quarantine: DatasetId | None = None


class PartTask(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an attempt at a lot.

    - kind: who knows how to run it, "arc" or "source".
    - author, code: which arc or source, and the digest of its code.
    - key: names equal work: a part that was made under an equal key is reused (LOT-18).
    - options: what else the code needs, as text.
    """

    kind: str
    pipeline: str
    author: str
    code: str
    attempt: str
    lot: str
    generation: int = 0
    part: str = ""
    key: str
    inputs: tuple[PartInput, ...] = ()
    sinks: tuple[PartSink, ...]
    retries: int = 0
    options: dict[str, str] = {}


class PartPlace(msgspec.Struct, frozen=True):
    """Who runs a task, under which claim."""

    task: str
    epoch: int

    def attempt(self, attempt: str) -> str:
        """The attempt as this claim writes it."""
        return f"{attempt}.{self.task}.{self.epoch}"

    def data_prefix(self, task: PartTask, sink: PartSink) -> str:
        """The folder of one sink, ours alone."""
        return layout.data_prefix(
            sink.dataset.name, sink.dataset.version, task.lot, self.attempt(task.attempt)
        )


class SinkWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What a part wrote to one sink; `schema` are its columns, if they are more than was known (LOT-34)."""

    dataset: DatasetId
    objects: tuple[StoredObject, ...] = ()
    rows: int = 0
    checks: dict[str, int] = {}
    schema: str = ""


class PartDone(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is made, by this run or an earlier one."""

    task: PartTask
    written: tuple[SinkWritten, ...]
    reused: bool = False


class PartFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is not made, after all its retries."""

    task: PartTask
    kind: str
    message: str
    traceback: str = ""


PartEnd = PartDone | PartFailed


class Parts(Protocol):
    """Runs tasks somewhere, several at a time, and says how each ended, in any order."""

    def run(self, tasks: Sequence[PartTask]) -> Iterator[PartEnd]: ...
