"""Work: from new files to a published lot (LOT-35).

    look      new files become windows; under a lease, so that nodes do not list in vain
    begin     a window is held, its lot gets an id, the attempt at it is opened or adopted: one transaction
    make      intents, the window's task through the port, manifests (`publish.assembly`)
    publish   the one transaction; the window is published in it, and with it its files are acknowledged

A window is one task: a failed one is tried again by its own retries, then later. Files that changed, or are
gone, when the task has failed are left out of the window and taken again as they are then. Every step may be
repeated by any node, from wherever another has died: what was taken stays taken, and is published once.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tidemill import crash
from tidemill.clock import Clock
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptDamaged, DatasetChanged
from tidemill.events import Emit, ignore
from tidemill.lots import datasets, lots
from tidemill.lots.datasets import Dataset, Drift, Kind
from tidemill.lots.manifest import StoredObject
from tidemill.objects.port import Objects
from tidemill.publish import attempts
from tidemill.publish.adoption import open_or_adopt
from tidemill.publish.assembly import Assembled, Assembler, tasks_of
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.parts import PartFailed, PartInput, Parts, PartSink, PartTask
from tidemill.publish.publisher import Publisher
from tidemill.schemas import ddl as schemas
from tidemill.scope import Scope
from tidemill.sources import leasing, windows
from tidemill.sources.declarations import QUARANTINE_SCHEMA, SourceSpec
from tidemill.sources.events import (
    ColumnsDrifted,
    FilesLeftOut,
    RecordsQuarantined,
    WindowFailed,
    WindowPublished,
    WindowTaken,
)
from tidemill.sources.growing import grow
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import Found, Listing
from tidemill.sources.looking import Looked, Looker
from tidemill.sources.sharing import Sharing
from tidemill.sources.windows import Held
from tidemill.store import Store, Tx

T = TypeVar("T")
KIND = "source"


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A window that is ours to work on, with the attempt at its lot."""

    held: Held
    hold: Hold
    files: tuple[Found, ...]
    adopted: bool
    over: bool
    schema: str = ""


class SourceWork:
    """One source on one node.

    Args:
        spec: what was declared.
        listing: where its files are.
        keeper: keeps the lease under which we look; without one every look is ours.
    """

    def __init__(
        self,
        spec: SourceSpec,
        listing: Listing,
        *,
        store: Store,
        keys: SourceKeys,
        node: Node,
        objects: Objects,
        parts: Parts,
        clock: Clock,
        chance: random.Random,
        keeper: Keeper | None = None,
        emit: Emit = ignore,
    ) -> None:
        self.spec = spec
        self._listing = listing
        self._store = store
        self._keys = keys
        self._node = node
        self._clock = clock
        self._chance = chance
        self._keeper = keeper
        self._emit = emit
        scope = Scope(
            store=store,
            cluster=keys.publish.lots.cluster,
            objects=objects,
            node=node,
            clock=clock,
            chance=chance,
            emit=emit,
        )
        self._scope = scope
        self._publisher = Publisher(scope)
        self._assembler = Assembler(scope, parts)
        self._looker = Looker(spec.id, listing, spec.policy, store=store, keys=keys, clock=clock, emit=emit)

        self._sharing = None
        if spec.policy.stretches > 1:
            self._sharing = Sharing(
                spec.id,
                self._looker,
                listing,
                store=store,
                keys=keys,
                holder=f"{node.id}.{node.epoch}",
                most=spec.policy.stretches,
                clock=clock,
                chance=chance,
                emit=emit,
            )

    # --- looking

    def look(self, *, fresh_s: float = 0.0) -> Looked | None:
        """Take what is new; None while another node looks.

        Where the listing is shared (`stretches` of the policy), nodes look at once, each at some of it; what
        another has looked at within `fresh_s` is left out, so nodes that poll give their pause here.
        """
        if self._sharing is not None:
            return self._sharing.look(fresh_s=fresh_s)
        if self._keeper is None:
            return self._looker.look()
        lease = leasing.acquire(self._keeper, self._keys.looking(self.spec.id))
        if lease is None:
            return None
        try:
            return self._looker.look(fence=lease.fence)
        finally:
            self._keeper.release(lease)

    # --- windows

    def work(self, most: int | None = None) -> int:
        """Work on windows until none is to be had, or on so many; how many were ended."""
        ended = after = 0
        while most is None or ended < most:
            waiting = self._store.run(
                lambda tx, after=after: windows.open_windows(tx, self._keys, self.spec.id, after)  # type: ignore[misc]
            )
            if not waiting:
                break
            for window in waiting:
                after = window.about.number
                if (most is None or ended < most) and self.work_on(after):
                    ended += 1
        return ended

    def work_on(self, number: int) -> bool:
        """Work on one window, if it is to be had; True when its files are in a lot, or none was left."""
        begun = self._begin(number)
        while begun is not None:
            self._emit(
                WindowTaken(
                    source=self.spec.id,
                    window=number,
                    node=self._node.id,
                    attempt=begun.hold.draft.id,
                    files=len(begun.files),
                    over=begun.over,
                )
            )
            try:
                made = self._assembler.assemble(
                    begun.hold, tasks_of(begun.hold, [self._task(begun)]), adopted=begun.adopted
                )
            except AttemptDamaged as damage:
                self._give_up(begun, str(damage))
                begun = self._begin(number)
                continue
            if not made.failed:
                try:
                    self._publish(begun, made)
                except DatasetChanged as other:  # another window added a column of that name, of another type
                    self._give_up(begun, other.message)
                    begun = self._begin(number)
                    continue
                return True
            changed = self._changed(begun.files)
            if not changed:
                self._fail(begun, made.failed[0])
                return False
            if self._leave_out(begun, changed):
                return True
            begun = self._begin(number)
        return False

    def _begin(self, number: int) -> Begun | None:
        attempt = self._scope.new_attempt()
        return self._step("begin", lambda tx: begin(tx, self._keys, self._node, self.spec, number, attempt))

    def _task(self, begun: Begun) -> PartTask:
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
            key=f"{spec.id}/{begun.held.about.number}/{part_name(begun.files)}/{spec.code}",
            inputs=(PartInput(dataset=spec.dataset, objects=objects),),
            sinks=(
                PartSink(dataset=spec.dataset, partition_by=spec.partition_by),
                PartSink(dataset=spec.quarantine),
            ),
            retries=spec.retries,
            options={"schema": begun.schema} if begun.schema else {},
        )

    def _publish(self, begun: Begun, made: Assembled) -> None:
        lot, rows = begun.hold.draft.lot, made.rows
        columns = made.parts[0].sinks[0].manifest.schema

        def move(tx: Tx, _: object) -> None:
            acknowledge(tx, self._keys, begun.held)
            if columns:
                grow(tx, self._keys, self.spec.dataset, columns)

        published = self._publisher.publish(begun.hold, rows, move=move)
        self._tell_drift(begun, made, columns)
        by_dataset = {row.dataset: row for row in rows}
        self._emit(
            WindowPublished(
                source=self.spec.id,
                window=begun.held.about.number,
                lot=lot,
                position=published.positions[0],
                files=len(begun.files),
                rows=by_dataset[self.spec.dataset].rows,
            )
        )
        bad = by_dataset.get(self.spec.quarantine)
        if bad is not None:
            self._emit(
                RecordsQuarantined(
                    source=self.spec.id,
                    window=begun.held.about.number,
                    dataset=self.spec.quarantine.name,
                    lot=lot,
                    records=bad.rows,
                )
            )

    def _tell_drift(self, begun: Begun, made: Assembled, columns: str) -> None:
        counts = made.parts[0].sinks[0].manifest.checks
        unknown, rescued = counts.get("unknown_columns", 0), counts.get("rescued", 0)
        known = set(schemas.parse(begun.schema or self.spec.schema).names)
        added = [name for name in schemas.parse(columns).names if name not in known] if columns else []
        if unknown or rescued or added:
            self._emit(
                ColumnsDrifted(
                    source=self.spec.id,
                    window=begun.held.about.number,
                    dataset=self.spec.dataset.name,
                    lot=begun.hold.draft.lot,
                    unknown=unknown,
                    rescued=rescued,
                    added=tuple(added),
                )
            )

    def _changed(self, files: Sequence[Found]) -> list[str]:
        """Which of the files are not what was listed any more."""
        now = self._listing.look([file.path for file in files])
        return [
            file.path
            for file, found in zip(files, now, strict=True)
            if found is None or found.version != file.version
        ]

    def _leave_out(self, begun: Begun, paths: Sequence[str]) -> bool:
        """Go on without files that changed; True when none is left."""

        def both(tx: Tx) -> windows.AnyWindow:
            attempts.abandon(tx, self._keys.publish, begun.hold, "files of it changed")
            return windows.leave_out(tx, self._keys, begun.held, paths)

        left = self._step("leave-out", both)
        self._emit(FilesLeftOut(source=self.spec.id, window=begun.held.about.number, paths=list(paths[:100])))
        return isinstance(left, windows.Dropped)

    def _give_up(self, begun: Begun, why: str) -> None:
        def both(tx: Tx) -> None:
            attempts.abandon(tx, self._keys.publish, begun.hold, why)
            windows.give_back(tx, self._keys, begun.held)

        self._step("give-up", both)

    def _fail(self, begun: Begun, failed: PartFailed) -> None:
        def both(tx: Tx) -> tuple[windows.Failed, int]:
            attempts.park(tx, self._keys.publish, begun.hold)
            return windows.fail(tx, self._keys, begun.held, failed.kind, failed.message), tx.now()

        window, now = self._step("fail", both)
        self._emit(
            WindowFailed(
                source=self.spec.id,
                window=window.about.number,
                kind=failed.kind,
                message=failed.message[:500],
                wait_s=(window.retry_at - now) / windows.SECOND_US,
            )
        )

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        crash.point(f"sources.{name}.before")
        answer = self._store.run(fn)
        crash.point(f"sources.{name}.after")
        return answer


def begin(tx: Tx, keys: SourceKeys, node: Node, spec: SourceSpec, number: int, attempt: str) -> Begun | None:
    """Hold a window and open the attempt at its lot, or adopt the one that its last holder left.

    None when somebody else works on it, or it is ended.
    """
    window = windows.read(tx, keys, spec.id, number)
    if window is None or not windows.may_hold(tx, keys, node, window):
        return None
    if spec.kind is Kind.KEYED and windows.first_open(tx, keys, spec.id) != number:
        return None  # of two upserts of one key the later one counts
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
    held = windows.hold(tx, keys, node, window, opened.hold.draft.id, lot)
    over = isinstance(window, Held)
    schema = ""
    if spec.drift is Drift.EVOLVE:
        schema = datasets.read(tx, keys.publish.lots, spec.dataset).schema
    return Begun(
        held=held, hold=opened.hold, files=tuple(files), adopted=opened.adopted, over=over, schema=schema
    )


def acknowledge(tx: Tx, keys: SourceKeys, held: Held) -> None:
    """The transition of this room in the one transaction: the window and its files are in their lot."""
    windows.publish(tx, keys, held)


def part_name(files: Sequence[Found]) -> str:
    """Names exactly these files in these versions: an attempt at others is another one."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.version}\0".encode())
    return digest.hexdigest()[:32]


def declare(tx: Tx, keys: SourceKeys, spec: SourceSpec) -> Dataset:
    """Enter the quarantine dataset of a source; its own dataset is declared by whoever made it."""
    quarantine = Dataset(name=spec.quarantine.name, version=spec.quarantine.version, schema=QUARANTINE_SCHEMA)
    return datasets.declare(tx, keys.publish.lots, quarantine)
