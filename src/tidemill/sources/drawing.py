"""Drawing: what a node fetches becomes a lot, and how far it has come with it (LOT-35, CLU-22).

How far a source has come is kept in marks: an ETag, an offset, one for each partition of a topic. A batch
says which marks it moves, from what to what, and they are moved in the one transaction that publishes its
lot, if they still are what they were. So whatever was fetched is in exactly one lot: a node that dies before
that has moved nothing, and the next one fetches the same again; one that comes too late is refused.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa

from tidemill import crash
from tidemill.clock import Clock
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, TidemillError
from tidemill.events import Emit, ignore
from tidemill.lots import layout, lots
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.objects.port import Objects
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import SinkWritten
from tidemill.publish.publisher import Publisher
from tidemill.scope import Scope
from tidemill.sources.events import BatchDrawn
from tidemill.sources.growing import columns_of, fingerprint, grow, rescued
from tidemill.sources.keys import SourceKeys
from tidemill.sources.records import BAD, Convert, Growing, Record, Sifted, sift
from tidemill.spark import operations
from tidemill.spark.checking import refuse
from tidemill.spark.checking_arrow import check_table
from tidemill.spark.evaluating import Evaluate
from tidemill.spark.writing import write_table
from tidemill.store import Store, Tx

Fence = Callable[[Tx], None]
T = TypeVar("T")


class Move(NamedTuple):
    """A mark, as it was when the batch was fetched, and as it is with it."""

    mark: str
    before: bytes | None
    after: bytes


class Drawn(NamedTuple):
    """What became of a batch; no lot if there was nothing in it."""

    lot: str
    rows: int
    bad: int


class Drawer:
    """Publishes what is fetched for one dataset.

    Args:
        source: the author of its attempts.
        dataset: as declared; one without intervals.
        quarantine: where records go that do not fit, and rows that checks take out.
        checks: what is expected of the rows of each batch.
        growing: makes rows for a dataset that gains the columns which they bring.
        evaluate: tells which rows expressions are true for, on Spark.
    """

    def __init__(
        self,
        source: str,
        dataset: Dataset,
        quarantine: DatasetId,
        *,
        checks: Sequence[Check] = (),
        growing: Growing | None = None,
        evaluate: Evaluate | None = None,
        store: Store,
        keys: SourceKeys,
        node: Node,
        objects: Objects,
        clock: Clock,
        chance: random.Random,
        emit: Emit = ignore,
    ) -> None:
        self.source = source
        self.dataset = dataset
        self._quarantine = quarantine
        self._checks = checks
        self._growing = growing
        self._evaluate = evaluate
        self._store = store
        self._keys = keys
        self._node = node
        self._objects = objects
        self._clock = clock
        self._chance = chance
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
        self._manifests = Manifests(objects, clock)
        self._said: dict[str, str] = {}  # what is known to be told of a mark

    def marks(self, names: Sequence[str]) -> list[bytes | None]:
        """How far we have come, in this order."""
        found = self._store.run(lambda tx: tx.get_many([self._keys.mark[self.source, one] for one in names]))
        return list(found)

    def tell(self, troubles: Mapping[str, str]) -> None:
        """Keep in the store why marks do not move, for everybody to see; an empty text when they do."""
        news = {mark: said[:2000] for mark, said in troubles.items() if self._said.get(mark) != said[:2000]}
        if not news:
            return

        def write(tx: Tx) -> None:
            for mark, said in news.items():
                key = self._keys.trouble[self.source, mark]
                if said:
                    tx.set(key, said.encode(), quiet=True)
                elif tx.get(key) is not None:
                    tx.clear(key)

        self._store.run(write)
        self._said |= news

    def sift(self, records: Sequence[Record], convert: Convert) -> Sifted:
        """Make rows of what was fetched, with the columns that the dataset has by now."""
        known = ""
        if self._growing is not None:
            known = self._store.run(lambda tx: columns_of(tx, self._keys, self.dataset.id))
        return sift(records, convert, self.dataset.key, growing=self._growing, known=known)

    def publish(self, sifted: Sifted, moves: Sequence[Move], fence: Fence) -> Drawn:
        """Publish a batch and move its marks; without rows, only the marks.

        `LeaseLost` when somebody else has moved one of them, `CheckFailed` for rows that fail a check which
        forbids them: then nothing is published, and no mark moves.
        """
        kind = self.dataset.kind
        operation = operations.Operation.UPSERT if kind is Kind.KEYED else operations.Operation.APPEND
        stored = operations.stored_table(sifted.rows, self.dataset, operation)
        checked = check_table(stored, self._checks, kind, self._evaluate)
        if stored.num_rows:
            refuse(self.dataset.name, self._checks, checked.counts, checked.rows.num_rows)
        bad = pa.concat_tables([sifted.bad, _padded(checked.quarantined)])
        if not stored.num_rows and not bad.num_rows:
            self._step("mark", lambda tx: self._move(tx, moves, fence))
            return Drawn("", 0, 0)
        hold = self._begin(fence)
        try:
            self._manifests.intend(hold)
            counts = checked.counts | rescued(self.dataset, checked.rows)
            rows = self._write(hold, checked.rows, bad, counts, sifted.columns)
            self._publisher.publish(
                hold, rows, move=lambda tx, _: self._moved(tx, moves, fence, sifted.columns)
            )
        except TidemillError as error:
            self._publisher.abandon(hold, error.message)
            raise
        drawn = Drawn(hold.draft.lot, checked.rows.num_rows, bad.num_rows)
        self._emit(BatchDrawn(source=self.source, lot=drawn.lot, rows=drawn.rows, bad=drawn.bad))
        return drawn

    def _moved(self, tx: Tx, moves: Sequence[Move], fence: Fence, columns: str) -> None:
        self._move(tx, moves, fence)
        if columns:
            grow(tx, self._keys, self.dataset.id, columns)

    def _move(self, tx: Tx, moves: Sequence[Move], fence: Fence) -> None:
        fence(tx)
        found = tx.get_many([self._keys.mark[self.source, one.mark] for one in moves])
        for move, current in zip(moves, found, strict=True):
            if current != move.before:
                raise LeaseLost(f"{self.source} is elsewhere by now: {move.mark}")
            tx.set(self._keys.mark[self.source, move.mark], move.after, quiet=True)

    def _begin(self, fence: Fence) -> Hold:
        attempt = self._scope.new_attempt()

        def begin(tx: Tx) -> Hold:
            fence(tx)
            lot = str(lots.next_append(tx, self._keys.publish.lots, self.dataset.id))
            targets = (Target(self.dataset.id, lot), Target(self._quarantine, lot, optional=True))
            draft = Draft(id=attempt, author=self.source, lot=lot, targets=targets)
            return attempts.begin(tx, self._keys.publish, self._node, draft)

        return self._step("draw", begin)

    def _write(
        self, hold: Hold, rows: pa.Table, bad: pa.Table, counts: dict[str, int], columns: str
    ) -> list[LotRow]:
        written = []
        for target, table in zip(hold.draft.targets, (rows, bad), strict=True):
            prefix = layout.data_prefix(*target.dataset.parts, target.lot, hold.draft.id)
            made = write_table(table, self._objects, prefix)
            of_rows = target.dataset == self.dataset.id
            written.append(
                SinkWritten(
                    dataset=target.dataset,
                    objects=made.objects,
                    rows=made.rows,
                    checks=counts if of_rows else {},
                    schema=columns if of_rows else "",
                )
            )
        prints = {self.dataset.id: fingerprint(self.dataset, columns)}
        part = self._manifests.part_made(hold, "", written, alone=True, fingerprints=prints)
        return self._manifests.finish(hold, [part], prints)

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        crash.point(f"sources.{name}.before")
        answer = self._store.run(fn)
        crash.point(f"sources.{name}.after")
        return answer


def _padded(found: pa.Table) -> pa.Table:
    """Rows that checks took out, with the columns of records that could not be read."""
    missing = {"file": pa.nulls(found.num_rows, pa.string()), "line": pa.nulls(found.num_rows, pa.int64())}
    return pa.table([missing[name] if name in missing else found[name] for name in BAD.names], schema=BAD)


def troubles(tx: Tx, keys: SourceKeys, source: str, limit: int = 5) -> list[str]:
    """Why marks of a source do not move, of some of them."""
    rows = tx.range(*keys.trouble.under(source), limit=limit, snapshot=True)
    return [f"{keys.trouble.unpack(row.key)[1]!s}: {row.value.decode()}" for row in rows]
