"""The publication transaction: all sinks, events, wake-ups and the end of the run, or nothing."""

from dataclasses import dataclass, field
from itertools import count

import msgspec
import pytest

from tests.unit.attempt_publisher import AttemptPublisher
from tests.unit.lots_stage import FIVE_MINUTES, Stage, new_lot
from tidemill import crash
from tidemill.cluster.nodes import Node
from tidemill.errors import (
    AttemptEnded,
    IntervalConflict,
    LeaseLost,
    LotConflict,
    ProducerConflict,
    TidemillError,
    UsageError,
)
from tidemill.lots import manifest, staging
from tidemill.lots.ids import LotId
from tidemill.lots.producers import Identity, Receipt
from tidemill.lots.staging import Staged
from tidemill.lots.states import LotState
from tidemill.publish import attempts, intervals
from tidemill.publish.attempts import Abandoned, Draft, Hold, Open, Published, Target
from tidemill.publish.intervals import IntervalCloser
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import Ending, publish
from tidemill.scope import Scope
from tidemill.store import Space, Tx, open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import together
from tidemill.triggers import subscriptions, wakes
from tidemill.triggers.subscriptions import Scheduled, Terms, Waiting

KEYS = PublishKeys("c")
LOT = "A00000000000000001"


def rows_for(hold: Hold) -> list:
    return [
        new_lot(target.dataset, target.lot, target.generation, attempt=hold.draft.id)
        for target in hold.draft.targets
    ]


def opened(stage: Stage, node: Node, attempt: str, *targets: Target, **fields: object) -> Hold:
    draft = Draft(id=attempt, author="arc", lot=LOT, targets=targets, **fields)
    return stage.run(attempts.begin, KEYS, node, draft)


def everything(stage: Stage) -> dict[bytes, bytes]:
    return {row.key: row.value for row in stage.store.run(lambda tx: tx.range(*Space("c").all()))}


def test_all_sinks_are_published_in_one_transaction_with_the_rooms_own_move_and_the_runs_end():
    stage = Stage()
    source, a, b = stage.dataset("source"), stage.dataset("a"), stage.dataset("b")
    node = stage.node("n")
    stage.publish(source)
    stage.subscribe("arc", source)
    stage.subscribe("reader", a, b)
    ticket = stage.start(node, "arc")
    hold = opened(stage, node, "t", Target(b, LOT), Target(a, LOT))
    own = Space("c", "arc lot")["arc", LOT]

    def move(tx: Tx, positions) -> None:
        assert positions == {Target(a, LOT): 1, Target(b, LOT): 1}
        tx.set(own, b"complete")

    published = stage.run(publish, KEYS, hold, rows_for(hold), move=move, ending=Ending(ticket, ticket.heads))
    assert isinstance(published, Published)
    assert published.positions == (1, 1)
    assert [event.attempt for sink in (a, b) for event in stage.events(sink)] == ["t", "t"]
    assert stage.store.run(lambda tx: tx.get(own)) == b"complete"
    assert isinstance(stage.row("arc"), Waiting)
    assert isinstance(stage.row("reader"), Waiting)  # its wake-up is a mark, one per dataset
    assert len(stage.store.run(lambda tx: tx.range(*KEYS.triggers.wake.all()))) == 3
    stage.page_all()
    assert isinstance(stage.row("reader"), Scheduled)
    with pytest.raises(AttemptEnded):
        stage.run(publish, KEYS, hold, rows_for(hold))


@pytest.mark.parametrize("fault", ["conflict", "move", "zombie run", "one sink", "another attempt"])
def test_if_anything_is_refused_nothing_is_published(fault):
    stage = Stage()
    source, a, b = stage.dataset("source"), stage.dataset("a"), stage.dataset("b")
    node = stage.node("n")
    stage.publish(source)
    stage.subscribe("arc", source)
    ticket = stage.start(node, "arc")
    hold = opened(stage, node, "t", Target(a, LOT), Target(b, LOT))
    rows = rows_for(hold)

    def move(tx: Tx, positions) -> None:
        tx.set(Space("c", "arc lot")["arc"], b"complete")
        if fault == "move":
            raise UsageError("refused by the room above")

    if fault == "conflict":
        stage.add(b, LOT)
    if fault == "zombie run":
        ticket = msgspec.structs.replace(ticket, fence=ticket.fence - 1)
    if fault == "one sink":
        rows = rows[:1]
    if fault == "another attempt":
        rows[1] = msgspec.structs.replace(rows[1], attempt="other")
    before = everything(stage)
    with pytest.raises((LotConflict, UsageError, LeaseLost)):
        stage.run(publish, KEYS, hold, rows, move=move, ending=Ending(ticket, ticket.heads))
    assert everything(stage) == before


def test_stale_holders_publish_nothing():
    stage = Stage()
    sink = stage.dataset("sink")
    node, other = stage.node("n"), stage.node("m")
    abandoned = opened(stage, node, "t0", Target(sink, LOT))
    stage.run(attempts.abandon, KEYS, abandoned, "given up")
    with pytest.raises(AttemptEnded):
        stage.run(publish, KEYS, abandoned, rows_for(abandoned))
    adopted = opened(stage, node, "t1", Target(sink, LOT))
    slow = opened(stage, other, "t2", Target(sink, LOT))
    stage.kill(node)
    hold = stage.run(attempts.adopt, KEYS, other, stage.run(attempts.read, KEYS, "t1"), (), "")
    back = stage.node("n")
    for late in (adopted, msgspec.structs.replace(adopted, node=back)):
        with pytest.raises(LeaseLost):
            stage.run(publish, KEYS, late, rows_for(late))
    stage.run(publish, KEYS, hold, rows_for(hold))
    with pytest.raises(LotConflict):  # another attempt at the same generation
        stage.run(publish, KEYS, slow, rows_for(slow))
    assert [event.attempt for event in stage.events(sink)] == ["t1"]


@pytest.mark.rule("LOT-43")
def test_no_transaction_grows_with_files_appends_parts_or_subscribers():
    sizes = []
    for size in (1, 800):
        stage = Stage(scan=False)
        sink, node = stage.dataset("sink", unit=FIVE_MINUTES), stage.node("n")
        terms = Terms(sources=(sink,))
        for first in range(0, size, 100):
            stage.run(subscribe_all, [f"s{n}" for n in range(first, min(size, first + 100))], terms)
        lot = stage.run(staging.begin, stage.lots, sink).lot
        for n in range(size):
            stage.run(staging.stage, stage.lots, sink, Staged(uri=f"{n}", digest="", rows=10**9))
        stage.clock.advance(300)
        node = stage.node("n")
        scope = CountingScope(**vars(stage.scope(node)))
        closer = IntervalCloser(scope)
        hold = closer.seal(sink, LotId.parse(lot), "t")
        AttemptPublisher(scope).list_parts(hold, [f"p{n}" for n in range(size)])
        closer.commit(hold, new_lot(sink, lot, attempt="t", rows=size * 10**9, size=size * 10**12))
        sizes.append([(name, writes) for name, writes in scope.writes if name != "publish.parts"])
        closer.sweep()
        while stage.page():
            assert stage.writes <= 3 * wakes.PAGE + 4
        assert max(writes for _, writes in scope.writes) <= 402
    assert sizes[0] == sizes[1]


def subscribe_all(tx: Tx, names: list[str], terms: Terms) -> None:
    for name in names:
        subscriptions.subscribe(tx, KEYS.triggers, KEYS.lots, name, terms)


@dataclass(frozen=True, kw_only=True)
class CountingScope(Scope):
    """A scope that notes how much every step wrote."""

    writes: list[tuple[str, int]] = field(default_factory=list)

    def step(self, name, fn):
        answer, writes = super().step(name, lambda tx: (fn(tx), tx.writes))
        self.writes.append((name, writes))
        return answer


def test_a_repeated_append_gets_its_receipt_and_the_slower_of_two_tries_is_abandoned():
    stage = Stage()
    orders, publisher = stage.dataset(), AttemptPublisher(stage.scope(stage.node("n")))
    append = Identity("till", 1, "digest")
    first, second = (publisher.begin_append(orders, name, append) for name in ("t1", "t2"))
    receipt = publisher.commit_append(second, rows_for(second)[0], append)
    assert receipt == Receipt(
        dataset=orders, lot=second.draft.lot, position=1, visible_at=int(stage.clock.wall() * 1e6)
    )
    stage.clock.advance(5)
    assert publisher.commit_append(first, rows_for(first)[0], append) == receipt
    assert publisher.begin_append(orders, "t3", append) == receipt
    assert [attempt.draft.id for attempt in left_over(stage)] == ["t1"]
    with pytest.raises(ProducerConflict):
        publisher.begin_append(orders, "t4", Identity("till", 1, "other"))
    assert len(stage.events(orders)) == 1
    stage.check()


@pytest.mark.rule("LOT-42")
def test_of_two_closers_of_an_interval_one_publishes_it():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    scope = stage.scope(stage.node("n", 10**12))
    publisher = AttemptPublisher(scope)
    hold = publisher.begin_append(orders, "t0", None)
    lot = LotId.parse(publisher.commit_append(hold, rows_for(hold)[0], None).lot)
    assert not left_over(stage), "what is staged is not given up"
    stage.clock.advance(300)
    closer = IntervalCloser(scope)
    first, other = (closer.seal(orders, lot, name) for name in ("t1", "t2"))
    assert closer.commit(first, rows_for(first)[0]) == 1
    with pytest.raises((LotConflict, IntervalConflict)):
        closer.commit(other, rows_for(other)[0])
    closer.sweep()
    stage.clock.advance(300)
    after = closer.seal(orders, lot.next(), "t3")
    row = msgspec.structs.replace(rows_for(after)[0], state=LotState.EMPTY)
    assert closer.commit(after, row) == 2
    stage.check()


@pytest.mark.rule("LOT-42")
def test_the_lot_of_an_interval_has_its_appends_from_all_pages(monkeypatch):
    monkeypatch.setattr(intervals, "PAGE", 2)
    stage = Stage()
    clicks = stage.dataset(unit=FIVE_MINUTES)
    appends = [Staged(uri=f"m{number}", digest="d", rows=1, size=10) for number in range(5)]
    for append in appends:
        stage.run(staging.stage, stage.lots, clicks, append)
    stage.clock.advance(600)
    scope = stage.scope(stage.node("n", 10**12))
    assert IntervalCloser(scope).close_due() >= 1
    lot = stage.rows_of(clicks)[0]
    root = manifest.decode(scope.objects.get(lot.manifest)[0])
    assert (lot.rows, root.parts) == (5, [append.uri for append in appends])


@pytest.mark.rule("LOT-33", "HEAP-2")
def test_the_quarantine_of_an_append_that_waits_is_published_at_once_and_wakes_its_subscribers():
    stage = Stage()
    orders, bad = stage.dataset(unit=FIVE_MINUTES), stage.dataset("orders_quarantine")
    stage.subscribe("report", bad)
    publisher = AttemptPublisher(stage.scope(stage.node("n", 10**12)))
    hold = publisher.begin_append(orders, "t0", None, bad)
    row, dropped = rows_for(hold)
    assert publisher.commit_append(hold, row, None, dropped).position is None
    assert (len(stage.events(orders)), len(stage.events(bad))) == (0, 1)
    while stage.run(wakes.page_wakes, stage.triggers, stage.lots):
        pass
    assert isinstance(stage.row("report"), Scheduled)


def left_over(stage: Stage) -> list[Abandoned]:
    ended = stage.run(attempts.to_sweep, KEYS)
    return [attempt for attempt in ended if isinstance(attempt, Abandoned)]


def test_an_optional_sink_may_be_left_out_and_no_other():
    stage = Stage()
    clean, bad = stage.dataset("clean"), stage.dataset("clean_quarantine")
    publisher = AttemptPublisher(stage.scope(stage.node("n")))
    targets = (Target(bad, LOT, optional=True), Target(clean, LOT))
    hold = publisher.open(Draft(id="t1", author="source", lot=LOT, targets=targets))
    both = rows_for(hold)
    for rows in ([both[0]], [], [*both, new_lot(stage.dataset("other"), LOT, attempt="t1")]):
        with pytest.raises(UsageError):
            publisher.publish(hold, rows)
    moves = []
    published = publisher.publish(hold, [both[1]], move=lambda tx, positions: moves.append(dict(positions)))
    assert moves == [{targets[1]: 1}]
    assert (published.positions, published.manifests) == ((0, 1), ("", both[1].manifest))
    assert stage.events(bad) == []
    second = "A00000000000000002"
    hold = publisher.open(
        Draft(
            id="t2",
            author="source",
            lot=second,
            targets=(Target(bad, second, optional=True), Target(clean, second)),
        )
    )
    assert publisher.publish(hold, rows_for(hold)).positions == (1, 2)
    with pytest.raises(UsageError):
        publisher.open(
            Draft(id="t3", author="source", lot=LOT, targets=(Target(bad, LOT, 1, optional=True),))
        )
    again = (Target(bad, LOT, optional=True), Target(bad, LOT))
    with pytest.raises(UsageError):  # one lot, twice
        publisher.open(Draft(id="t3", author="source", lot=LOT, targets=again))
    stage.check()


# --- crashes


class Scene:
    """An append, then an arc with parts and two sinks, then an interval: run until nothing is left to do."""

    def __init__(self) -> None:
        self.stage = Stage(scan=False)
        self.source = self.stage.dataset("source")
        self.sinks = [self.stage.dataset("a"), self.stage.dataset("b")]
        self.timed = self.stage.dataset("timed", unit=FIVE_MINUTES)
        self.lot = LotId.parse(self.stage.run(staging.begin, KEYS.lots, self.timed).lot)
        self.stage.subscribe("arc", self.source)
        dead = self.stage.node("dead", 1)
        left = Draft(id="left", author="other", lot=LOT, targets=(Target(self.source, LOT),))
        self.stage.run(attempts.begin, KEYS, dead, left)  # something to abandon and forget
        self.stage.clock.monotonic_s += 1
        self.lives = count()
        self.ids = count()

    def live(self) -> None:
        """One life of a process: it knows nothing of the ones before but what the store says."""
        stage = self.stage
        try:
            self._work(stage.node(f"n{next(self.lives)}"))
        finally:
            stage.clock.monotonic_s += 20  # until its entry has run out

    def _work(self, node: Node) -> None:
        stage, scope = self.stage, self.stage.scope(node)
        publisher, closer = AttemptPublisher(scope), IntervalCloser(scope)
        append = Identity("p", 1, "d")
        hold = publisher.begin_append(self.source, self.id(), append)
        if isinstance(hold, Hold):
            publisher.commit_append(hold, rows_for(hold)[0], append)
        stage.page_all()
        for due in stage.due():
            self._run(publisher, node, due)
        hold = publisher.begin_append(self.timed, self.id(), append)
        if isinstance(hold, Hold):
            publisher.commit_append(hold, rows_for(hold)[0], append)
        turn = stage.run(staging.read, KEYS.lots, self.timed)
        if turn.lot == str(self.lot):
            stage.clock.wall_s += 300 if stage.run(staging.due, KEYS.lots) == [] else 0
            hold = closer.seal(self.timed, self.lot, self.id())
            staged = stage.run(staging.page, KEYS.lots, self.timed, self.lot)
            closer.commit(hold, msgspec.structs.replace(rows_for(hold)[0], rows=len(staged)))
        closer.sweep()
        for attempt in stage.run(attempts.open_ids, KEYS):
            publisher.abandon_lost(attempt, 0)
        for gone in left_over(stage):
            publisher.forget(gone.draft.id)

    def _run(self, publisher: AttemptPublisher, node: Node, due) -> None:
        stage = self.stage
        if due.running:
            assert stage.look(due.name)
        ticket = stage.start(node, due.name)
        (event,) = stage.events(self.source, ticket.progress[self.source])
        inputs = (stage.input_lot(self.source, event.lot),)
        open_attempts = [
            attempt
            for attempt in stage.run(attempts.attempts_at, KEYS, "arc", event.lot, 0)
            if isinstance(attempt, Open)
        ]
        hold = publisher.adopt(open_attempts[0], inputs, "code") if open_attempts else None
        if hold is None:
            targets = tuple(Target(sink, event.lot) for sink in self.sinks)
            draft = Draft(
                id=self.id(), author="arc", lot=event.lot, targets=targets, inputs=inputs, code="code"
            )
            hold = publisher.open(draft)
        if stage.run(attempts.read, KEYS, hold.draft.id).parts is None:
            publisher.list_parts(hold, ["x", "y"])
        publisher.publish(hold, rows_for(hold), ending=Ending(ticket, ticket.heads))

    def id(self) -> str:
        return f"t{next(self.ids)}"

    def told(self) -> dict[str, list]:
        """What consumers see, whichever attempt it was."""
        stage = self.stage
        stage.check()
        tables = [self.source, *self.sinks, self.timed]
        left = [stage.run(attempts.open_ids, KEYS), left_over(stage)]
        return {
            "events": [
                [(e.position, e.generation, e.state) for e in stage.events(table)] for table in tables
            ],
            "rows": [[row.rows for row in stage.rows_of(table)] for table in tables],
            "arc": [stage.row("arc").tally.progress, stage.row("arc").state],
            "left": left,
            "staged": stage.store.run(lambda tx: tx.range(*KEYS.lots.staged.all())),
        }


STEPS = [
    "append-open",
    "append-commit",
    "open",
    "parts",
    "adopt",
    "commit",
    "abandon",
    "forget",
    "seal",
    "close",
    "sweep",
]
POINTS = [f"publish.{step}.{side}" for step in STEPS for side in ("before", "after")]


def test_every_durable_step_has_a_crash_point_before_and_after_it():
    with crash.recorded() as points:
        scene = Scene()
        with crash.armed("publish.commit.before"), pytest.raises(crash.Crashed):
            scene.live()
        scene.live()
    assert points == {*POINTS}


@pytest.mark.parametrize("first", ["", "publish.commit.before"])
@pytest.mark.parametrize("point", POINTS)
def test_after_a_crash_at_any_point_the_next_process_reaches_the_same_end(point, first):
    """Also after a second crash, when the first one left an attempt to go on with."""
    calm = Scene()
    calm.live()
    scene = Scene()
    points = [name for name in (first, point) if name]
    for name in points:
        with crash.armed(name):
            try:
                scene.live()
            except crash.Crashed:
                scene.stage.check()  # at no moment an event without its lot, or a lot without its event
            else:  # a life that had no such step to do: nothing to adopt, or all of it was done before
                assert name == point
                assert first or "adopt" in name
    scene.live()
    assert scene.told() == calm.told()


def test_after_a_crash_between_parts_and_commit_the_attempt_is_resumed():
    scene = Scene()
    with crash.armed("publish.commit.before"), pytest.raises(crash.Crashed):
        scene.live()
    attempt = scene.stage.run(attempts.open_ids, KEYS)[-1]
    with crash.recorded() as points:
        scene.live()
    assert "publish.adopt.after" in points
    assert {event.attempt for sink in scene.sinks for event in scene.stage.events(sink)} == {attempt}


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_of_two_adopters_and_a_cleaner_that_race_one_wins(backend, tmp_path):
    with MemoryStore() if backend == "memory" else open_store(f"sqlite:///{tmp_path}/s.db") as store:
        stage = Stage(store, scan=False)
        sink = stage.dataset("sink")
        for turn in range(10):
            dead = stage.node(f"dead{turn}")
            lot = f"A{turn + 1:017}"
            opened(stage, dead, f"t{turn}", Target(sink, lot))
            stage.kill(dead)
            expected = stage.run(attempts.read, KEYS, f"t{turn}")

            def adopter(name: str, expected=expected) -> str:
                node = stage.node(name)
                publisher = AttemptPublisher(stage.scope(node))
                hold = publisher.adopt(expected, (), "")
                if hold is None:
                    return ""
                try:
                    publisher.publish(hold, rows_for(hold))
                except (TidemillError, LeaseLost):
                    return ""
                return name

            def cleaner(turn=turn) -> str:
                publisher = AttemptPublisher(stage.scope(stage.node("cleaner")))
                return "cleaner" if publisher.abandon_lost(f"t{turn}", 0) else ""

            won = together(lambda: adopter("one"), lambda: adopter("other"), cleaner)
            assert len([winner for winner in won if winner]) == 1
            state = stage.run(attempts.read, KEYS, f"t{turn}").state
            assert (state.value == "abandoned") == ("cleaner" in won)
            assert (lot in {event.lot for event in stage.events(sink)}) == ("cleaner" not in won)
        stage.check()


@pytest.mark.rule("LOT-5")
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_concurrent_publishers_of_several_sinks_leave_no_gap_and_wake_everybody(backend, tmp_path):
    with MemoryStore() if backend == "memory" else open_store(f"sqlite:///{tmp_path}/s.db") as store:
        stage = Stage(store, scan=False)
        sinks = [stage.dataset(name) for name in "abc"]
        for sink in sinks:
            stage.subscribe(f"of {sink.name}", sink)

        def publisher(number: int) -> int:
            node = stage.node(f"n{number}", 10**12)
            publisher = AttemptPublisher(stage.scope(node))
            for turn in range(8):
                lot = f"A{number * 100 + turn + 1:017}"
                targets = tuple(Target(sink, lot) for sink in (sinks[number % 3], sinks[(number + turn) % 3]))
                draft = Draft(
                    id=f"t{number}-{turn}", author="arc", lot=lot, targets=tuple(dict.fromkeys(targets))
                )
                hold = publisher.open(draft)
                publisher.publish(hold, rows_for(hold))
            return 8

        def scheduler() -> int:
            for _ in range(40):
                store.run(lambda tx: wakes.page_wakes(tx, KEYS.triggers, KEYS.lots))
            return 0

        together(*(lambda n=n: publisher(n) for n in range(3)), scheduler)
        stage.check()
        stage.page_all()
        for sink in sinks:
            assert isinstance(stage.row(f"of {sink.name}"), Scheduled)
