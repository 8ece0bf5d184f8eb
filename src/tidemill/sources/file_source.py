"""The base class of file sources: folders and buckets.

Each kind of file source has its own listing (`FileSource.listing`). Everything else is the same: nodes
discover new files, take them into windows, read each window on Spark and publish it as a lot.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from tidemill.clock import Clock
from tidemill.errors import BadSource
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Drift, Kind
from tidemill.lots.keys import DatasetId
from tidemill.schemas import ddl
from tidemill.sources import path_patterns, windows
from tidemill.sources.folder_watch import LOOK_EVERY_S, FolderWatch
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import FileListing
from tidemill.sources.path_patterns import PathPattern
from tidemill.sources.source import (
    POLL_EVERY_S,
    PendingWindow,
    PollResult,
    Source,
    SourceRuntime,
    SourceStatus,
    SourceTarget,
)
from tidemill.sources.windows import FailedWindow, HeldWindow
from tidemill.spark.ingest.formats import Format, FormatOptions, format_of
from tidemill.spark.ingest.origin_columns import NO_ORIGIN, OriginColumns
from tidemill.store import Tx

if TYPE_CHECKING:
    from tidemill.publish.parts import PartClaim, PartTask, SinkWritten
    from tidemill.sources.discovery import DiscoveryResult
    from tidemill.spark.ingest.ingestion import Session
    from tidemill.spark.storage import Storage

MOST_SHARDS = 64
FORGET_EVERY_S = 3600.0
MOST_FILES = 500
"""The maximum number of files in one window, so that its rows fit into one transaction (LOT-43)."""

LEAST_FORGET_S = 86_400.0
MOST_FORGET_S = 100 * 366 * 86_400.0


class FilePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to take files, and how many at once.

    - settle_s: a file must be unchanged for this long before it is taken.
    - on_change: what to do with a file that changes after it was taken: `warn`, or `take` it again.
    - max_files, max_bytes: the maximum size of one window.
    - listing_shards: into how many shards to split the listing, so that several nodes can list at the same
      time; with 1, a single node lists.
    - dedupe: `content` to skip a file if the source has read the same content before, under any path.
    - forget_after_s: forget a file that is gone, this long after it was read; None to forget no file.
    """

    settle_s: float = 0.0
    on_change: str = "warn"
    max_files: int = MOST_FILES
    max_bytes: int = 1 << 30
    listing_shards: int = 1
    dedupe: str | None = None
    forget_after_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.settle_s <= 86_400:
            raise BadSource(
                f"invalid settle_s={self.settle_s}", hint="use a value from 0 to 86400 seconds (one day)"
            )
        if self.on_change not in ("warn", "take"):
            raise BadSource(f"invalid on_change={self.on_change!r}", hint="use 'warn' or 'take'")
        if not 1 <= self.max_files <= MOST_FILES:
            raise BadSource(f"invalid max_files={self.max_files}", hint=f"use a value from 1 to {MOST_FILES}")
        if self.dedupe not in (None, "content"):
            raise BadSource(f"invalid dedupe={self.dedupe!r}", hint="use 'content', or omit it")
        if self.forget_after_s is not None and not LEAST_FORGET_S <= self.forget_after_s <= MOST_FORGET_S:
            raise BadSource(
                f"invalid forget_after_s={self.forget_after_s}",
                hint="use a number of seconds from a day to 100 years, or omit it",
            )
        if self.max_bytes < 1:
            raise BadSource(f"invalid max_bytes={self.max_bytes}", hint="use a positive number of bytes")
        if not 1 <= self.listing_shards <= MOST_SHARDS:
            raise BadSource(
                f"invalid listing_shards={self.listing_shards}", hint=f"use a value from 1 to {MOST_SHARDS}"
            )


DEFAULT_POLICY = FilePolicy()


class FileSourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A file source that is bound to its dataset, with everything that decides how a file is processed.

    - id: `source:{pipeline}/{dataset}`, the author of its attempts.
    - schema, kind, key: those of the dataset, as declared. Records of a dataset with a key are upserts, in
      the order of windows, paths and lines. So the windows of such a dataset are published one after the
      other.
    - quarantine: the dataset for records that do not fit and rows that checks remove. A quarantine lot has
      the same id as the dataset's lot that is published with it.
    - checks: the checks that the rows of a window must pass (LOT-33).
    - drift: what to do with columns that are not declared (LOT-34). If the policy adds them to the dataset,
      a task gets the columns that the dataset has when a node begins the window. Publishing the window adds
      the new columns of its files.
    - origin: the columns that say where a row comes from.
    """

    id: str
    pipeline: str
    dataset: DatasetId
    schema: str
    kind: Kind = Kind.ROWS
    key: tuple[str, ...] = ()
    reading: FormatOptions
    policy: FilePolicy = DEFAULT_POLICY
    partition_by: tuple[str, ...] = ()
    quarantine: DatasetId
    retries: int = 3
    checks: tuple[Check, ...] = ()
    drift: Drift = Drift.FREEZE
    origin: OriginColumns = NO_ORIGIN.columns

    @property
    def code(self) -> str:
        """The digest of everything that decides how a file is processed."""
        parts = (self.schema, self.kind, self.key, self.reading, self.partition_by, self.quarantine)
        if self.checks or self.drift is not Drift.FREEZE:
            parts = (*parts, self.checks, self.drift)  # type: ignore[assignment]
        if self.origin.names:
            parts = (*parts, self.origin)  # type: ignore[assignment]
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, repr=False)
class FileSource(Source):
    """Files that match a pattern.

    Args:
        pattern: the paths of the files.
        reading: the format of the files, and how to read it.
        policy: when to take the files, and how many at once.
        origin: the columns that say where a row comes from.
    """

    pattern: PathPattern
    reading: FormatOptions
    policy: FilePolicy
    origin: OriginColumns = NO_ORIGIN.columns

    @property
    @abstractmethod
    def root(self) -> str:
        """The folder that the pattern is relative to, without secrets."""

    @abstractmethod
    def listing(self) -> FileListing:
        """Open the listing of the files."""

    @property
    def description(self) -> str:
        return f"{self.reading.format.value} files in {self.root}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.root.rstrip('/')}/{self.pattern.text}>"

    def check(self, target: SourceTarget) -> None:
        self.origin.check(target.dataset.name, ddl.parse(target.schema), self.reading)
        if self.policy.dedupe is not None and target.dataset.kind is Kind.KEYED:
            raise BadSource(
                f"{target.dataset.name} has a key, so its source cannot have dedupe='content'",
                hint="omit dedupe: reading a copy again changes nothing, because its rows have the same keys",
            )

    def open(self, target: SourceTarget, runtime: SourceRuntime) -> "FileArrival":
        watch = self.watch(lambda: runtime.arrived(target.id), runtime.scope.clock)
        return FileArrival(self.spec(target), self.listing(), runtime, watch)

    def watch(self, changed: Callable[[], object], clock: Clock) -> FolderWatch | None:
        """Return a watch that notices new files before the next poll; None if this source has none."""
        return None

    def make_part(
        self,
        target: SourceTarget,
        spark: "Session",
        storage: "Storage",
        task: "PartTask",
        place: "PartClaim",
    ) -> "Sequence[SinkWritten]":
        from tidemill.sources.window_task import run_window

        return run_window(spark, storage, self.spec(target), self.listing(), task, place)

    def status(self, tx: Tx, keys: SourceKeys, source: str) -> SourceStatus:
        unfinished = windows.open_windows(tx, keys, source)
        return SourceStatus(pending=tuple(_pending(window) for window in unfinished))

    def spec(self, target: SourceTarget) -> FileSourceSpec:
        """Bind this source to its dataset."""
        assert target.quarantine is not None
        return FileSourceSpec(
            id=target.id,
            pipeline=target.pipeline,
            dataset=target.dataset.id,
            schema=target.schema,
            kind=target.dataset.kind,
            key=target.dataset.key,
            drift=target.dataset.drift,
            reading=self.reading,
            policy=self.policy,
            quarantine=target.quarantine,
            checks=target.checks,
            origin=self.origin,
        )


def _pending(window: windows.AnyWindow) -> PendingWindow:
    return PendingWindow(
        number=window.about.number,
        files=window.about.files,
        lot=window.about.lot,
        node=window.node if isinstance(window, HeldWindow) else "",
        error=f"{window.kind}: {window.message}" if isinstance(window, FailedWindow) else "",
    )


class FileArrival:
    """A file source that is open on one node."""

    def __init__(
        self,
        spec: FileSourceSpec,
        listing: FileListing,
        runtime: SourceRuntime,
        watch: FolderWatch | None = None,
    ) -> None:
        from tidemill.sources.file_ingestion import FileIngestion
        from tidemill.sources.gone_files import GoneFiles

        self._scope = runtime.scope
        self._keys = SourceKeys(runtime.scope.cluster)
        self._watching = runtime.watching
        self._stops = runtime.stops
        self._watch = watch
        self._source = spec.id
        self._settle_s = 2 * spec.policy.settle_s + POLL_EVERY_S
        self._settled_by: float | None = None  # when all files of the first listing have settled
        self._ingestion = FileIngestion(spec, listing, runtime.scope, runtime.parts, keeper=runtime.keeper)
        self._gone = None
        self._forget_at = 0.0
        if spec.policy.forget_after_s is not None:
            by_content = spec.policy.dedupe is not None
            self._gone = GoneFiles(
                spec.id, listing, spec.policy.forget_after_s, runtime.scope, by_content=by_content
            )

    def poll(self) -> PollResult:
        """Take new files, and publish all windows that no other live node holds."""
        if self._watch is not None and self._watching():
            self._watch.start()
        if self._settled_by is None:
            self._settled_by = self._scope.clock.monotonic() + self._settle_s
        discovery = self._ingestion.discover(fresh_s=POLL_EVERY_S if self._watching() else 0.0)
        files_before = self._ingestion.files
        ended = self._ingestion.ingest(stop=self._stops)
        self._forget_gone_files()
        unfinished = self._scope.store.run(lambda tx: windows.open_windows(tx, self._keys, self._source))
        waits = (
            discovery is None
            or not discovery.complete
            or discovery.copies_waiting
            or self._is_settling(discovery)
        )
        failed = [window for window in unfinished if isinstance(window, FailedWindow)]
        return PollResult(
            files=self._ingestion.files - files_before,
            settled=not waits and len(failed) == len(unfinished),
            failed=tuple(f"{window.kind}: {window.message}" for window in failed),
            wait_s=0.0 if ended else _pause_s(discovery),  # there may be more
            fetched=discovery is not None,
        )

    def _forget_gone_files(self) -> None:
        """Ask for a pass over the files that are gone, once per hour. The store makes it one pass per day."""
        now = self._scope.clock.monotonic()
        if self._gone is not None and now >= self._forget_at:
            self._forget_at = now + FORGET_EVERY_S
            self._gone.forget()

    def _is_settling(self, discovery: "DiscoveryResult") -> bool:
        """Return whether to wait for a file to settle.

        Files that the first listing finds get a fixed time to settle. A file that is still being written
        after that time, or that arrived later, waits for the next run. Otherwise a run that only catches up
        might never end.
        """
        assert self._settled_by is not None
        return discovery.waiting_s is not None and self._scope.clock.monotonic() < self._settled_by

    def close(self) -> None:
        """Stop watching. `poll` releases its lease itself, and windows become free when the node ends."""
        if self._watch is not None:
            self._watch.stop()


def _pause_s(discovery: "DiscoveryResult | None") -> float:
    """Return how long to wait before the next poll: not longer than until a file settles."""
    waiting_s = None if discovery is None else discovery.waiting_s
    return POLL_EVERY_S if waiting_s is None else min(POLL_EVERY_S, max(LOOK_EVERY_S, waiting_s))


def reading_of(pattern: str, name: str | None, options: dict[str, object]) -> FormatOptions:
    """Return how to read the files that a pattern matches.

    Args:
        pattern: its ending decides the format, unless `name` is given.
        name: a format.
        options: options of the format.
    """
    names = [file_format.value for file_format in Format]
    if name is not None and name not in names:
        raise BadSource(f"invalid format={name!r}", hint=f"use one of {', '.join(names)}")
    formats = (
        {Format(name)}
        if name is not None
        else {format_of(choice) for choice in path_patterns.expanded(pattern)}
    )
    file_format = formats.pop() if len(formats) == 1 else None
    if file_format is None:
        raise BadSource(
            f"the format of {pattern!r} cannot be determined from the file extension",
            hint="set the format, for example format='json'; for files of several formats, declare one source"
            " per format: pipeline.source(dataset, tm.folder('landing/*.csv'), name='csv')",
        )
    fields = {option for option in FormatOptions.__struct_fields__ if option != "format"}
    unknown = sorted(set(options) - fields)
    if unknown:
        raise BadSource(f"unknown option {unknown[0]!r}", hint=f"use one of {', '.join(sorted(fields))}")
    if file_format is Format.CSV and ".tsv" in PurePosixPath(pattern).suffixes:
        options = {"separator": "\t", **options}
    try:
        return msgspec.convert({"format": file_format, **options}, FormatOptions)
    except msgspec.ValidationError as error:
        raise BadSource(
            f"an option of the format {file_format} is invalid: {error}",
            hint="correct the type or value of the option",
        ) from None
