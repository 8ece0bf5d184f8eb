"""Ingest files: turn new files into published lots (LOT-35).

    discover  take new files into windows; under a lease, so that only one node lists
    begin     in one transaction: hold a window, assign an id to its lot, open or take over its attempt
    produce   write the intent manifests, run the window's task, write the manifests (`publish.assembly`)
    publish   publish the lot; the same transaction also ends the window, which acknowledges its files

One task reads all files of a window. If the task and its retries fail, files that have changed or disappeared
are removed from the window; a changed file is taken again in its new version. If no file has changed, the
window waits, and a node tries it again later. If a node dies after any step, another node can resume from
there: each file stays taken, and is published only once.
"""

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from tidemill.cluster.keeper import Keeper
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptDamaged, DatasetChanged, ManifestUnreadable
from tidemill.lots import datasets, lots
from tidemill.lots.datasets import Drift, Kind
from tidemill.lots.manifest import StoredObject
from tidemill.publish import attempts
from tidemill.publish.adoption import open_or_adopt
from tidemill.publish.assembly import Assembled, Assembler, tasks_of
from tidemill.publish.attempts import Draft, Hold, Published, Target
from tidemill.publish.parts import PartFailed, PartInput, Parts, PartSink, PartTask
from tidemill.publish.publisher import Publisher
from tidemill.publish.transaction import Move
from tidemill.schemas import ddl
from tidemill.scope import Scope
from tidemill.sources import dataset_columns, source_lease, windows
from tidemill.sources.discovery import DiscoveryResult, FileDiscovery
from tidemill.sources.events import (
    ColumnsDrifted,
    FilesLeftOut,
    RecordsQuarantined,
    WindowFailed,
    WindowPublished,
    WindowTaken,
)
from tidemill.sources.file_source import FileSourceSpec
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import FileListing, ListedFile
from tidemill.sources.listing_shards import ShardedDiscovery
from tidemill.sources.windows import DroppedWindow, FailedWindow, HeldWindow
from tidemill.store import Tx

KIND = "source"


class BegunWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window that this node holds, with the attempt that writes its lot.

    - adopted: whether this node continues an attempt that was opened earlier.
    - over: whether this node took the window over from a dead node.
    - schema: the current columns of the dataset if lots may add columns to it; otherwise empty.
    """

    window: HeldWindow
    hold: Hold
    files: tuple[ListedFile, ...]
    adopted: bool
    over: bool
    schema: str = ""


class FileIngestion:
    """Ingests the files of one source on one node.

    `files` counts the files in the lots that this node has published.

    Args:
        spec: the source.
        listing: lists the files of the source.
        scope: the node.
        parts: runs tasks on Spark.
        keeper: renews the lease for listing; None if no other node lists the source.
    """

    def __init__(
        self,
        spec: FileSourceSpec,
        listing: FileListing,
        scope: Scope,
        parts: Parts,
        *,
        keeper: Keeper | None = None,
    ) -> None:
        self.spec = spec
        self._listing = listing
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._keeper = keeper
        self._publisher = Publisher(scope)
        self._assembler = Assembler(scope, parts)
        self._discovery = FileDiscovery(spec.id, listing, spec.policy, scope)
        self._unfinished: set[int] = set()  # windows that we hold, although an error ended our work on them
        self.files = 0
        self._sharded = None
        if spec.policy.listing_shards > 1:
            self._sharded = ShardedDiscovery(
                spec.id, self._discovery, listing, spec.policy.listing_shards, scope
            )

    # --- discovery

    def discover(self, *, fresh_s: float = 0.0) -> DiscoveryResult | None:
        """List the source and take new files. Return None if another node is listing it.

        If nodes share the listing (`listing_shards` of the policy), they list at the same time, and each
        lists some of the shards. They skip shards that were listed within the last `fresh_s` seconds. A node
        that polls passes its polling interval as `fresh_s`.
        """
        if self._sharded is not None:
            return self._sharded.discover(fresh_s=fresh_s)
        if self._keeper is None:
            return self._discovery.discover()
        lease = source_lease.acquire(self._keeper, self._keys.discovery_lease(self.spec.id))
        if lease is None:
            return None
        try:
            return self._discovery.discover(fence=lease.fence)
        finally:
            self._keeper.release(lease)

    # --- windows

    def ingest(self, most: int | None = None, *, stop: Callable[[], bool] = lambda: False) -> int:
        """Ingest all free windows, or at most `most` of them; return how many windows ended.

        - stop: called before each window. If it returns True, the remaining windows wait for the next call.
        """
        ended = after = 0
        while most is None or ended < most:
            waiting = self._scope.store.run(
                lambda tx, after=after: windows.open_windows(tx, self._keys, self.spec.id, after)  # type: ignore[misc]
            )
            if not waiting:
                break
            for window in waiting:
                after = window.about.number
                if stop():
                    return ended
                if (most is None or ended < most) and self.ingest_window(after):
                    ended += 1
        return ended

    def ingest_window(self, number: int) -> bool:
        """Ingest one window if it is free. Return True if it was published, or if no file was left in it.

        An error, such as unavailable storage, leaves the window held by this node. The next call resumes it.
        """
        resumes = number in self._unfinished
        self._unfinished.discard(number)  # no other thread resumes it at the same time
        try:
            ended = self._ingest_window(number, idle=resumes)
        except Exception:
            self._unfinished.add(number)
            raise
        if resumes and not ended:
            self._unfinished.add(number)
        return ended

    def _ingest_window(self, number: int, *, idle: bool) -> bool:
        begun = self._begin(number, idle=idle)
        while begun is not None:
            self._scope.emit(
                WindowTaken(
                    source=self.spec.id,
                    window=number,
                    node=self._scope.node.id,
                    attempt=begun.hold.draft.id,
                    files=len(begun.files),
                    over=begun.over,
                )
            )
            try:
                assembled = self._assembler.assemble(
                    begun.hold, tasks_of(begun.hold, [self._task(begun)]), adopted=begun.adopted
                )
            except (AttemptDamaged, ManifestUnreadable) as damage:
                if not begun.adopted:
                    raise
                self._give_up(begun, str(damage))
                begun = self._begin(number)
                continue
            if not assembled.failed:
                try:
                    published = self._publisher.publish(
                        begun.hold, assembled.rows, move=self._end_window(begun, assembled)
                    )
                except DatasetChanged as changed:  # another window added the same column with another type
                    self._give_up(begun, changed.message)
                    begun = self._begin(number)
                    continue
                self.files += len(begun.files)
                self._report_published(begun, assembled, published)
                return True
            changed_paths = self._changed(begun.files)
            if not changed_paths:
                self._fail(begun, assembled.failed[0])
                return False
            if self._leave_out(begun, changed_paths):
                return True
            begun = self._begin(number)
        return False

    def _begin(self, number: int, *, idle: bool = False) -> BegunWindow | None:
        attempt = self._scope.new_attempt()
        node = self._scope.node
        return self._scope.step(
            "sources.begin", lambda tx: begin(tx, self._keys, node, self.spec, number, attempt, idle=idle)
        )

    def _task(self, begun: BegunWindow) -> PartTask:
        spec = self.spec
        objects = tuple(
            StoredObject(uri=file.path, size=file.size, etag=file.version, format=spec.reading.format.value)
            for file in begun.files
        )
        return PartTask(
            kind=KIND,
            pipeline=spec.pipeline,
            author=spec.id,
            code=spec.code,
            attempt=begun.hold.draft.id,
            lot=begun.hold.draft.lot,
            part=part_name(begun.files),
            key=f"{spec.id}/{begun.window.about.number}/{part_name(begun.files)}/{spec.code}",
            inputs=(PartInput(dataset=spec.dataset, objects=objects),),
            sinks=(
                PartSink(dataset=spec.dataset, partition_by=spec.partition_by),
                PartSink(dataset=spec.quarantine),
            ),
            retries=spec.retries,
            options=self._options(begun),
        )

    def _options(self, begun: BegunWindow) -> dict[str, str]:
        about = begun.window.about
        options = {"schema": begun.schema} if begun.schema else {}
        if self.spec.origin.arrived:
            options["arrived"] = str(
                about.arrived_at if about.arrived_at is not msgspec.UNSET else about.listed_at
            )
        return options

    def _end_window(self, begun: BegunWindow, assembled: Assembled) -> Move:
        """Return a function that ends the window and adds new columns when the lot is published."""
        columns = assembled.parts[0].sinks[0].manifest.schema

        def move(tx: Tx, _: object) -> None:
            windows.publish(tx, self._keys, begun.window)
            if columns:
                dataset_columns.add(tx, self._keys, self.spec.dataset, columns)

        return move

    def _report_published(self, begun: BegunWindow, assembled: Assembled, published: Published) -> None:
        lot = begun.hold.draft.lot
        self._report_drift(begun, assembled, assembled.parts[0].sinks[0].manifest.schema)
        by_dataset = {row.dataset: row for row in assembled.rows}
        self._scope.emit(
            WindowPublished(
                source=self.spec.id,
                window=begun.window.about.number,
                lot=lot,
                position=published.positions[0],
                files=len(begun.files),
                rows=by_dataset[self.spec.dataset].rows,
            )
        )
        quarantined = by_dataset.get(self.spec.quarantine)
        if quarantined is not None:
            self._scope.emit(
                RecordsQuarantined(
                    source=self.spec.id,
                    window=begun.window.about.number,
                    dataset=self.spec.quarantine.name,
                    lot=lot,
                    records=quarantined.rows,
                )
            )

    def _report_drift(self, begun: BegunWindow, assembled: Assembled, columns: str) -> None:
        counts = assembled.parts[0].sinks[0].manifest.checks
        unknown, rescued = counts.get("unknown_columns", 0), counts.get("rescued", 0)
        earlier = set(ddl.parse(begun.schema or self.spec.schema).names)
        added = [name for name in ddl.parse(columns).names if name not in earlier] if columns else []
        if unknown or rescued or added:
            self._scope.emit(
                ColumnsDrifted(
                    source=self.spec.id,
                    window=begun.window.about.number,
                    dataset=self.spec.dataset.name,
                    lot=begun.hold.draft.lot,
                    unknown=unknown,
                    rescued=rescued,
                    added=tuple(added),
                )
            )

    def _changed(self, files: Sequence[ListedFile]) -> list[str]:
        """Return the files that changed or disappeared since they were listed."""
        current = self._listing.stat([file.path for file in files])
        return [
            file.path
            for file, now in zip(files, current, strict=True)
            if now is None or now.version != file.version
        ]

    def _leave_out(self, begun: BegunWindow, paths: Sequence[str]) -> bool:
        """Remove changed files from a window; return True if the window is now empty."""

        def both(tx: Tx) -> windows.AnyWindow:
            attempts.abandon(tx, self._keys.publish, begun.hold, "some of its files changed")
            return windows.leave_out(tx, self._keys, begun.window, paths)

        left = self._scope.step("sources.leave-out", both)
        self._scope.emit(
            FilesLeftOut(source=self.spec.id, window=begun.window.about.number, paths=list(paths[:100]))
        )
        return isinstance(left, DroppedWindow)

    def _give_up(self, begun: BegunWindow, why: str) -> None:
        def both(tx: Tx) -> None:
            attempts.abandon(tx, self._keys.publish, begun.hold, why)
            windows.give_back(tx, self._keys, begun.window)

        self._scope.step("sources.give-up", both)

    def _fail(self, begun: BegunWindow, failed: PartFailed) -> None:
        def both(tx: Tx) -> tuple[FailedWindow, int]:
            attempts.park(tx, self._keys.publish, begun.hold)
            return windows.fail(tx, self._keys, begun.window, failed.kind, failed.message), tx.now()

        window, now = self._scope.step("sources.fail", both)
        self._scope.emit(
            WindowFailed(
                source=self.spec.id,
                window=window.about.number,
                kind=failed.kind,
                message=failed.message[:500],
                wait_s=(window.retry_at - now) / windows.SECOND_US,
            )
        )


def begin(
    tx: Tx,
    keys: SourceKeys,
    node: Node,
    spec: FileSourceSpec,
    number: int,
    attempt: str,
    *,
    idle: bool = False,
) -> BegunWindow | None:
    """Hold a window, and open an attempt to write its lot or adopt the attempt of an earlier holder.

    Return None if the window cannot be held now, for example because another node works on it.

    - idle: as in `windows.may_hold`.
    """
    window = windows.read(tx, keys, spec.id, number)
    if window is None or not windows.may_hold(tx, keys, node, window, idle=idle):
        return None
    if spec.kind is Kind.KEYED and windows.first_open(tx, keys, spec.id) != number:
        return None  # windows are published in order, so that the later of two upserts of a key wins
    files = windows.files_of(tx, keys, spec.id, number)
    lot = window.about.lot or str(lots.next_append(tx, keys.publish.lots, spec.dataset))
    draft = Draft(
        id=attempt,
        author=spec.id,
        lot=lot,
        targets=(Target(spec.dataset, lot), Target(spec.quarantine, lot, optional=True)),
        code=spec.code,
    )
    opened = open_or_adopt(tx, keys.publish, node, draft, [part_name(files)])
    if opened is None:
        return None
    over = isinstance(window, HeldWindow)
    schema = ""
    if spec.drift is Drift.EVOLVE:
        schema = datasets.read(tx, keys.publish.lots, spec.dataset).schema
    return BegunWindow(
        window=windows.hold(tx, keys, node, window, opened.hold.draft.id, lot, idle=idle),
        hold=opened.hold,
        files=tuple(files),
        adopted=opened.adopted,
        over=over,
        schema=schema,
    )


def part_name(files: Sequence[ListedFile]) -> str:
    """Return a name that changes with the paths or versions of the files. A new name needs a new attempt."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.version}\0".encode())
    return digest.hexdigest()[:32]
