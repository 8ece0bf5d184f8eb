"""Input is kept: whatever is collected and cleaned, a step finds the rows that its record names (DBSP-28)."""

import msgspec
import pytest

from tests.unit.attempt_publisher import AttemptPublisher
from tests.unit.steps_stage import P, spec
from tests.unit.test_steps_collecting import Files
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import StoredObject
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.cleaner import KEEP_S, READERS_S
from tidemill.publish.manifests import Manifests, data_start
from tidemill.publish.parts import SinkWritten
from tidemill.store import Tx
from tidemill.views.steps import commits
from tidemill.views.steps.commits import StepBatch
from tidemill.views.steps.inputs import InputReader, LotSlice, ManifestReader
from tidemill.views.steps.keys import group_id


class Inputs(Files):
    """Views over a dataset whose lots have real manifests and files."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests = Manifests(self.objects, self.clock)
        self.publisher = AttemptPublisher(self.scope(self.node("producer", 10**15)))

    def open(self, lot: str, generation: int) -> Hold:
        target = Target(self.orders, lot, generation)
        attempt = self.scope().new_attempt()
        return self.publisher.open(
            Draft(id=attempt, author="producer", lot=lot, generation=generation, targets=(target,))
        )

    def write(self, hold: Hold, body: bytes) -> LotRow:
        (target,) = hold.draft.targets
        self.manifests.write_intents(hold)
        key = f"{data_start(target, hold.draft.id)}.1.1/x.parquet"
        item = StoredObject(uri=key, size=self.objects.put(key, body).size, rows=1)
        written = SinkWritten(dataset=self.orders, objects=(item,), rows=1)
        part = self.manifests.write_part(hold, "", [written], alone=True, fingerprints={})
        (row,) = self.manifests.finish(hold, [part], {})
        return row

    def publish(self, dataset: DatasetId) -> int:
        assert dataset == self.orders
        lot = str(self.run(lots.next_append, self.lots, dataset))
        hold = self.open(lot, 0)
        return self.publisher.publish(hold, [self.write(hold, lot.encode())]).positions[0]

    def current(self, number: int) -> LotRow:
        return self.rows_of(self.orders)[number - 1]

    def correct(self, number: int, body: bytes | None) -> None:
        """Replace a lot, or remove it."""
        old = self.current(number)
        hold = self.open(old.lot, old.generation + 1)
        row = self.manifests.write_removal(hold, "wrong") if body is None else self.write(hold, body)
        self.publisher.publish(hold, [row])

    def compact(self, number: int) -> None:
        """Write the same content into another file."""
        old = self.current(number)
        before = self.run(lots.set_digest, self.lots, old, "digest")
        hold = self.open("A99999999999999999", 0)
        (item,) = self.manifests.lot_objects(old.manifest)
        row = self.write(hold, self.objects.get(item.uri)[0])
        after = msgspec.structs.replace(row, digest="digest", rows=before.rows)

        def revise(tx: Tx) -> None:
            lots.revise(tx, self.lots, before, after)
            attempts.end_published(tx, self.keys, hold, [0], [row.manifest])

        self.store.run(revise)

    def contents(self, slices: list[LotSlice]) -> list[tuple[str, int, list[bytes]]]:
        return [
            (each.lot, each.generation, [self.objects.get(item.uri)[0] for item in each.objects])
            for each in slices
        ]

    def reader(self) -> InputReader:
        """Return a reader that has cached nothing."""
        return InputReader(self.store, self.lots, ManifestReader(self.objects))

    def change(self, after: int, to: int) -> tuple[list[tuple[str, int, list[bytes]]], ...]:
        change = self.reader().between(self.orders, after, to)
        return self.contents(list(change.plus)), self.contents(list(change.minus))

    def table(self, position: int) -> list[tuple[str, int, list[bytes]]]:
        return self.contents(self.reader().at(self.orders, position))

    def tidy_for_days(self) -> None:
        """Let all grace periods pass, and collect and clean in between."""
        for _ in range(8):
            self.clock.advance(max(KEEP_S, READERS_S) / 4 + 1)
            self.collect()
            self.clean()

    def cut(self, name: str) -> StepBatch:
        """Write a record as a node that dies before it computes the step."""
        node = self.node(name, 10**15)
        ticket = self.begin(node, "g")
        assert ticket is not None
        self.run(commits.next_record, self.keys, P, ticket, "g")
        batch = self.run(commits.next_batch, self.keys, P, "g")
        self.kill(node)
        assert self.look(group_id(P, "g"))
        return batch


@pytest.fixture
def stage() -> Inputs:
    files = Inputs()
    files.declare(spec("g", files.orders))
    return files


@pytest.mark.rule("DBSP-28", "DBSP-26")
def test_the_input_of_a_step_that_is_not_committed_stays_although_it_was_corrected(stage: Inputs) -> None:
    stage.go(3)
    stage.publish(stage.orders)
    stage.publish(stage.orders)
    batch = stage.cut("doomed")
    after, to = batch.before[stage.orders], batch.positions[stage.orders]
    assert (after, to) == (3, 5)
    before = stage.change(after, to)
    assert [body for _, _, bodies in before[0] for body in bodies] == [
        b"A00000000000000004",
        b"A00000000000000005",
    ]
    stage.correct(4, b"other")
    stage.correct(5, None)
    stage.correct(1, b"other")
    stage.compact(3)
    stage.tidy_for_days()
    assert stage.change(after, to) == before, "data that arrives later never joins an old step"
    assert stage.run(commits.next_batch, stage.keys, P, "g") == batch
    stage.settle(stage.me, "g")
    ran = [done for done, _ in stage.computed[-2:]]
    assert [(done.before[stage.orders], done.positions[stage.orders]) for done in ran] == [(3, 5), (5, 8)]
    stage.tidy_for_days()
    plus, minus = stage.change(5, 8)
    assert [(lot[-1], bodies) for lot, _, bodies in plus] == [("4", [b"other"]), ("1", [b"other"])]
    assert [(lot[-1], bodies) for lot, _, bodies in minus] == [
        ("4", [b"A00000000000000004"]),
        ("5", [b"A00000000000000005"]),
        ("1", [b"A00000000000000001"]),
    ]


@pytest.mark.rule("DBSP-28")
def test_a_view_that_is_built_again_finds_every_input_that_ever_counted(stage: Inputs) -> None:
    """The earliest version of a rebuilt view is before its first step, so it needs all input."""
    stage.go(4)
    stage.correct(2, b"other")
    stage.correct(3, None)
    stage.compact(1)
    stage.settle(stage.me, "g")
    tables = [stage.table(position) for position in range(7)]
    inputs = {key for key in stage.files() if "name=orders/" in key and "/state=partial/" not in key}
    assert [len(table) for table in tables] == [0, 1, 2, 3, 4, 4, 3]
    old = stage.current(1)  # the only file that may go: compaction has replaced it
    stage.tidy_for_days()
    assert [stage.table(position) for position in range(7)] == tables
    replaced = inputs - stage.files()
    assert all("lot=A00000000000000001/" in key for key in replaced)
    assert len(replaced) == 2, "the replaced file and its manifest"
    assert old == stage.current(1)
