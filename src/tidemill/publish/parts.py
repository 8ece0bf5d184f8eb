"""Parts: pieces of an attempt's work, each run as one task (LOT-8, LOT-17, LOT-26).

Arcs and sources split their work into tasks, run the tasks through the interface `Parts`, and build manifests
from the objects that the tasks report. A task is plain data: it names code by digest and objects by key, so
any process that has the pipeline can run it. The name of the task's folder contains the attempt, the id of
the task and the epoch of the claim under which it runs. So a stale holder and its successor never share a
folder.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from tidemill.errors import TidemillError
from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject


class PartInput(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one table that a part reads."""

    dataset: DatasetId
    objects: tuple[StoredObject, ...] = ()


class PartSink(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that a part writes; `quarantine` receives the rows that its checks drop (LOT-33)."""

    dataset: DatasetId
    partition_by: tuple[str, ...] = ()
    quarantine: DatasetId | None = None


class PartTask(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an attempt at a lot.

    - kind: "arc" or "source".
    - author, code: the arc or source, and the digest of its code.
    - key: identifies the work; the result of a part with an equal key is reused (LOT-18).
    - options: other values that the code needs, as text.
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


class PartClaim(msgspec.Struct, frozen=True):
    """The claim under which a task runs; it decides where the task writes."""

    task: str
    epoch: int

    def attempt(self, attempt: str) -> str:
        """Return the text that object names contain for this attempt and claim."""
        return f"{attempt}.{self.task}.{self.epoch}"

    def data_prefix(self, task: PartTask, sink: PartSink) -> str:
        """Return the folder for one sink; no other claim writes there."""
        return layout.data_prefix(
            sink.dataset.name, sink.dataset.version, task.lot, self.attempt(task.attempt)
        )


class SinkWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What a part wrote to one sink; `schema` lists all columns if there are new ones (LOT-34)."""

    dataset: DatasetId
    objects: tuple[StoredObject, ...] = ()
    rows: int = 0
    checks: dict[str, int] = {}
    schema: str = ""


class PartDone(msgspec.Struct, frozen=True, kw_only=True):
    """A part completed, in this run or an earlier one."""

    task: PartTask
    written: tuple[SinkWritten, ...]
    reused: bool = False


class PartFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A part failed, after all its retries.

    - outage: the error, if storage or a machine is the cause and not the part.
    """

    task: PartTask
    kind: str
    message: str
    traceback: str = ""
    outage: TidemillError | None = None


PartEnd = PartDone | PartFailed


class Parts(Protocol):
    """Runs tasks, several at a time, and yields their results in any order."""

    def run(self, tasks: Sequence[PartTask]) -> Iterator[PartEnd]: ...
