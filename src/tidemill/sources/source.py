"""Define the protocol of a source, which brings rows from outside into a pipeline.

A user declares a source with a function such as `folder("landing/*.json")`. The function returns a `Source`:
plain data that every process of the pipeline can hold. Planning binds the source to its dataset
(`PlannedSource`). A runner opens the source (`Arrival`) and polls it. No code outside this package knows the
kinds of source; `registry` lists them.

To add a kind, write one file with a subclass of `Source` and the function that makes it, and add one line to
`registry.SOURCES`. A source of files derives from `FileSource` and provides a listing. Other sources publish
the rows that they fetch with a `BatchPublisher`, and keep their progress in its checkpoints.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from tidemill.errors import CodeDiffers
from tidemill.lots.checks import Check
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId

if TYPE_CHECKING:
    from tidemill.cluster.keeper import Keeper
    from tidemill.publish.parts import PartClaim, Parts, PartTask, SinkWritten
    from tidemill.scope import Scope
    from tidemill.sources.keys import SourceKeys
    from tidemill.spark.ingest.ingestion import Session
    from tidemill.spark.storage import Storage
    from tidemill.spark.table_checks import Evaluate
    from tidemill.store import Tx

POLL_EVERY_S = 1.0
CLOSE_S = 5.0
"""How long `Arrival.close` waits for a poll that is still running."""


@contextmanager
def acquired(lock: threading.Lock) -> Iterator[bool]:
    """Acquire the lock of an arrival, to close it; yield False if its poll does not end.

    A poll can hang in a driver: librdkafka waits until a wall time, so for an hour if the clock is set back
    by an hour. A runner that stops after an error must end nevertheless. Otherwise its supervisor would renew
    its lease, and everything that it holds would wait. What the source holds then expires with the node.
    """
    free = lock.acquire(timeout=CLOSE_S)
    try:
        yield free
    finally:
        if free:
            lock.release()


def source_label(dataset: str, name: str = "") -> str:
    """Return how a source is called: by its dataset, and by its own name if it has one (`orders#csv`)."""
    return f"{dataset}#{name}" if name else dataset


def source_id(pipeline: str, label: str) -> str:
    """Return the id of a source. The attempts of the source have this id as their author.

    - label: as `source_label` returns it.
    """
    return f"source:{pipeline}/{label}"


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """The result of one poll of a source.

    Args:
        files: how many files are in the lots that this poll published.
        settled: whether everything that has arrived is published, apart from failures.
        failed: an error message for each thing that could not be taken.
        wait_s: how long to wait before the next poll.
        fetched: whether this node itself looked for new data; False if another node does that.
    """

    files: int = 0
    settled: bool = True
    failed: tuple[str, ...] = ()
    wait_s: float = POLL_EVERY_S
    fetched: bool = False


class Arrival(Protocol):
    """A source that is open on one node, under one epoch of that node."""

    def poll(self) -> PollResult:
        """Take new data that no other node is taking."""
        ...

    def close(self) -> None:
        """Release leases, so that other nodes can take over. Do not wait forever for a poll (`acquired`)."""
        ...


@dataclass(frozen=True, kw_only=True)
class SourceRuntime:
    """The services of a node that its sources use, under one epoch of the node.

    Args:
        scope: the node's store, objects, clock and identity.
        parts: runs tasks on Spark.
        keeper: renews the node's leases.
        watching: returns whether this runner keeps running. A runner that only catches up receives no pushed
            rows.
        stops: returns whether the runner is stopping, so that nothing new may start.
        evaluate: evaluates the expressions of checks on this runner's Spark session.
        arrived: tells the node that a source, by its id, probably has new data, so that its next poll is due.
    """

    scope: "Scope"
    parts: "Parts"
    keeper: "Keeper"
    watching: Callable[[], bool]
    stops: Callable[[], bool] = lambda: False
    evaluate: "Evaluate | None" = None
    arrived: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class SourceTarget:
    """The dataset that a source fills, and what the pipeline declares about it.

    Args:
        pipeline: the name of the pipeline.
        dataset: the dataset, with its current columns.
        schema: the declared columns.
        where: the line of the declaration, for errors.
        name: the name of the source, if the dataset has several; otherwise empty.
        checks: the checks that arriving rows must pass.
        quarantine: the dataset for rows that do not fit; None if the source has none.
    """

    pipeline: str
    dataset: DatasetRow
    schema: str
    where: str
    name: str = ""
    checks: tuple[Check, ...] = ()
    quarantine: DatasetId | None = None

    @property
    def id(self) -> str:
        """The id of the source."""
        return source_id(self.pipeline, self.label)

    @property
    def label(self) -> str:
        """How the source is called in messages."""
        return source_label(self.dataset.name, self.name)


@dataclass(frozen=True, kw_only=True)
class SourceContext:
    """Values that a source takes from its pipeline if its declaration omits them.

    Args:
        pipeline: the name of the pipeline.
        dataset: the name of the dataset.
        label: how the source is called: the dataset, and the name of the source if it has one.
        base: the folder that relative paths start from.
        secret: returns the secret of the cluster key.
    """

    pipeline: str
    dataset: str
    label: str
    base: Path
    secret: Callable[[], bytes] = field(repr=False)


class PendingWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a source has taken but not published yet.

    - lot: the lot that they become; empty until a node works on them.
    - node: the node that works on them; empty if no node does.
    - error: why the last attempt to read them failed; empty if it did not fail.
    """

    number: int
    files: int
    lot: str = ""
    node: str = ""
    error: str = ""


class PushAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where senders push rows, and their token. `url` and `node` are empty while no node receives.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT")
    >>> shop.source(orders, tm.http_push())
    >>> orders.address()
    <PushAddress (no node receives)>
    """

    url: str = ""
    token: str
    node: str = ""

    def __repr__(self) -> str:
        return f"<PushAddress {self.url or '(no node receives)'}>"


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a source, read from the store.

    - pending: windows of files that are not published.
    - errors: why the source makes no progress, apart from the errors of windows.
    - address: where senders push rows; None if the source does not receive pushed rows.
    """

    pending: tuple[PendingWindow, ...] = ()
    errors: tuple[str, ...] = ()
    address: PushAddress | None = None


class Source(ABC):
    """A kind of source, with the options of its declaration."""

    quarantines: ClassVar[bool] = True
    """Whether rows that do not fit go to a quarantine dataset. Otherwise their sender gets an error."""

    fetches: ClassVar[bool] = True
    """Whether a poll fetches data. Otherwise senders push it, and a poll only looks after the receiver."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The origin of the rows, in readable form and without secrets."""

    def resolve(self, context: SourceContext) -> "Source":
        """Return this source with the values from the pipeline that its declaration omits."""
        return self

    def check(self, target: SourceTarget) -> None:
        """Raise an error if this source cannot fill the dataset. Planning calls this."""

    @abstractmethod
    def open(self, target: SourceTarget, runtime: SourceRuntime) -> Arrival:
        """Open this source on a node; the runner then polls the result."""

    @abstractmethod
    def status(self, tx: "Tx", keys: "SourceKeys", source: str) -> SourceStatus:
        """Read the state of this source from the store.

        - source: the id of this source.
        """

    def make_part(
        self,
        target: SourceTarget,
        spark: "Session",
        storage: "Storage",
        task: "PartTask",
        place: "PartClaim",
    ) -> "Sequence[SinkWritten]":
        """Run a task of this source on Spark. Only sources that submit tasks implement this."""
        raise CodeDiffers(
            f"source {target.id} ({target.where}) is declared differently on this node and on the node"
            " that created this task"
        )


@dataclass(frozen=True, kw_only=True)
class PlannedSource:
    """A source that is bound to its dataset."""

    source: Source
    target: SourceTarget

    @property
    def id(self) -> str:
        return self.target.id

    def open(self, runtime: SourceRuntime) -> Arrival:
        """Open the source on a node."""
        return self.source.open(self.target, runtime)

    def make_part(
        self, spark: "Session", storage: "Storage", task: "PartTask", place: "PartClaim"
    ) -> "Sequence[SinkWritten]":
        """Run a task of the source on Spark."""
        return self.source.make_part(self.target, spark, storage, task, place)
