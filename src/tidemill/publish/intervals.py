"""Close intervals: when an interval has ended, publish its appends as one lot (LOT-42).

Every runner closes intervals; there is no leader. If two runners close the same interval, only one of them
publishes it. The lot's manifest is a root that lists the manifests of the appends. So no data
is read or copied when an interval is closed, and the transaction is as small for ten thousand appends as for
one.
"""

from functools import partial

from tidemill.cluster.nodes import Node
from tidemill.errors import IntervalConflict, LotConflict, ObjectError
from tidemill.lots import datasets, lots, staging, wall_clock
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.staging import Staged
from tidemill.lots.states import LotState
from tidemill.lots.wall_clock import ClockJump
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.events import IntervalClosed, WallClockJumped
from tidemill.publish.keys import PublishKeys
from tidemill.publish.manifests import Manifests
from tidemill.publish.publisher import Publisher
from tidemill.publish.transaction import Positions, publish
from tidemill.scope import Scope
from tidemill.store import Tx

PAGE = 500


class IntervalCloser:
    """Closes the intervals that are over, as one node."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)
        self._publisher = Publisher(scope)
        self._manifests = Manifests(scope.objects, scope.clock)
        self._jumped_at_us: int | None = None  # when the last reported jump of the wall clock was first seen

    def close_due(self, limit: int = 100) -> int:
        """Close a page of the intervals that are over; return how many were closed."""
        jump, due = self._scope.store.run(
            lambda tx: (wall_clock.observe(tx, self._keys.lots), staging.due(tx, self._keys.lots, limit))
        )
        self._report(jump)
        closed = sum(self.close(dataset, lot) for dataset, lot in due)
        if closed:
            self.sweep()
        return closed

    def _report(self, jump: ClockJump | None) -> None:
        """Report a jump of the wall clock once. If the clock jumps again, report that jump too."""
        since_us = None if jump is None else jump.since_us
        if jump is not None and since_us != self._jumped_at_us:
            self._scope.emit(
                WallClockJumped(
                    shift_s=jump.shift_us / 1e6, accepted_in_s=jump.accepted_in_us / 1e6, message=jump.text
                )
            )
        self._jumped_at_us = since_us

    def close(self, dataset: DatasetId, lot: LotId) -> bool:
        """Close one interval.

        Return False if another node has closed it, or if an earlier interval is still open.
        """
        published = self._scope.store.run(lambda tx: lots.current(tx, self._keys.lots, dataset, str(lot)))
        if published is not None:  # the intervals of the dataset were rewound
            try:
                if self._skipped(dataset, lot, published):
                    return True
            except IntervalConflict:
                return False
        try:
            hold = self.seal(dataset, lot, self._scope.new_attempt())
        except IntervalConflict:
            return False
        try:
            staged = self._staged(dataset, lot)
            declared = self._scope.store.run(lambda tx: datasets.read(tx, self._keys.lots, dataset))
            rows, size = sum(append.rows for append in staged), sum(append.size for append in staged)
            parts = [append.uri for append in staged if append.rows]
            row = self._manifests.write_root(hold, parts, rows, size, declared.fingerprint)
            position = self.commit(hold, row)
        except (IntervalConflict, LotConflict) as error:
            self._publisher.abandon(hold, error.message)
            return False
        except ObjectError as error:  # the next try opens a new attempt, so this one must end
            self._publisher.abandon(hold, error.message)
            raise
        self._scope.emit(
            IntervalClosed(
                dataset=str(dataset), lot=str(lot), position=position, appends=len(staged), rows=rows
            )
        )
        return True

    def _skipped(self, dataset: DatasetId, lot: LotId, published: LotRow) -> bool:
        """Close an interval whose lot already exists, without publishing anything.

        Return False if the lot is empty and the interval has appends: these must be published as the lot's
        next generation. If a correction has added rows to the lot or removed it, the appends move to the next
        interval, because a new generation would replace the correction.
        """
        keys = self._keys.lots
        self._scope.step("publish.seal", lambda tx: staging.seal(tx, keys, dataset, lot))
        if published.state is LotState.EMPTY and self._staged(dataset, lot):
            return False
        while self._scope.step("publish.close", lambda tx: staging.skip(tx, keys, dataset, lot)):
            pass
        return True

    def seal(self, dataset: DatasetId, lot: LotId, attempt: str) -> Hold:
        """Seal an interval, so that it accepts no more appends, and open the attempt at its lot."""
        return self._scope.step(
            "publish.seal", lambda tx: seal(tx, self._keys, self._scope.node, dataset, lot, attempt)
        )

    def commit(self, hold: Hold, row: LotRow) -> int:
        """Publish the lot of a sealed interval; return its position."""
        return self._scope.step("publish.close", lambda tx: commit(tx, self._keys, hold, row))

    def sweep(self) -> None:
        """Remove the staging rows of closed intervals."""
        while self._scope.step("publish.sweep", lambda tx: staging.sweep(tx, self._keys.lots)):
            pass

    def _staged(self, dataset: DatasetId, lot: LotId) -> list[Staged]:
        """Read the appends of a sealed interval."""
        appends: list[Staged] = []
        after: bytes | None = None
        while True:
            read = partial(staging.page, keys=self._keys.lots, dataset=dataset, lot=lot, after=after)
            page = self._scope.store.run(partial(read, limit=PAGE))
            appends += [row.append for row in page]
            if len(page) < PAGE:
                return appends
            after = page[-1].key


def seal(tx: Tx, keys: PublishKeys, node: Node, dataset: DatasetId, lot: LotId, attempt: str) -> Hold:
    """Seal an interval that is over, and open the attempt at its lot."""
    staging.seal(tx, keys.lots, dataset, lot)
    published = lots.current(tx, keys.lots, dataset, str(lot))
    generation = 0 if published is None else published.generation + 1
    draft = Draft(
        id=attempt,
        author=f"interval {dataset}",
        lot=str(lot),
        generation=generation,
        targets=(Target(dataset, str(lot), generation),),
    )
    return attempts.begin(tx, keys, node, draft)


def commit(tx: Tx, keys: PublishKeys, hold: Hold, row: LotRow) -> int:
    """Publish the lot of a sealed interval, which closes the interval; return the lot's position."""

    def close(tx: Tx, _: Positions) -> None:
        staging.close(tx, keys.lots, row.dataset, LotId.parse(row.lot))

    return publish(tx, keys, hold, [row], move=close).positions[0]
