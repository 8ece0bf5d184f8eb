"""Random operations on futures, on every store, compared with a model; each step checks all invariants.

A third of the runs is in `make test`, all of them in `make crash`.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.conformance.futures_model import ExpectedFuture, Model, S
from tests.futures_invariants import judge
from tests.futures_mirror import Mirror
from tests.servers.postgres import PostgresServer
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, UsageError
from tidemill.futures.protocol import (
    cancel,
    claim,
    depend,
    finish,
    reap,
    requeue,
    results,
    retries,
    submit,
    sweep,
    unsatisfiable,
)
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.finish import Completion
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.lanes import Capacity, how_many
from tidemill.futures.protocol.rows import (
    Blob,
    Claimed,
    Failed,
    Failure,
    Location,
    Needs,
    Realized,
    Result,
    Spec,
    Unclaimed,
)
from tidemill.futures.protocol.states import FutureState
from tidemill.store import Mode, Space, Store
from tidemill.store.memory import MemoryStore
from tidemill.store.postgres import PostgresStore
from tidemill.store.sqlite import SqliteStore

T = TypeVar("T")
numbers = itertools.count()
SIZES = {
    "big": Capacity(cpu=8.0, ram=2**34),
    "small": Capacity(cpu=1.0, ram=2**30),
    "other": Capacity(cpu=8.0, ram=2**34),
}
HOUR_US = 3600 * 1_000_000


class Drawn:
    """Choices of Hypothesis, which can replay and shrink a run."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def one(self, among: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(among))

    def some(self, among: Sequence[T], most: int) -> list[T]:
        return self.data.draw(st.lists(st.sampled_from(among), max_size=most, unique=True))


class Thrown:
    """Choices of a seed, for a store with its own clock, where no run can be replayed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, among: Sequence[T]) -> T:
        return self.random.choice(among)

    def some(self, among: Sequence[T], most: int) -> list[T]:
        return self.random.sample(among, self.random.randint(0, min(most, len(among))))


class FutureMachine(RuleBasedStateMachine):
    """Clients, three nodes that join and leave, and a leader, one transaction at a time."""

    store: Store  # set by the test
    dice: Drawn | Thrown

    def __init__(self) -> None:
        super().__init__()
        name = f"machine-{next(numbers)}"
        self.keys, self.cluster = FutureKeys(name), ClusterKeys(name)
        self.chance = random.Random(1)
        self.model = Model()
        self.mirror = Mirror(self.keys)
        self.rows: dict[bytes, bytes] = {}
        self.nodes: dict[str, Node] = {}
        self.holders: dict[bytes, Claim] = {}  # the claims that hold, by future
        self.all_claims: list[Claim] = []

    # --- the stage

    def run(self, fn: Callable[..., Any], *args: Any, mode: Mode = "serial", **options: Any) -> Any:
        return self.store.run(lambda tx: fn(tx, self.keys, *args, **options), mode=mode)

    def there(self, fn: Callable[..., Any], *args: Any, mode: Mode = "serial", **named: Any) -> Any:
        return self.run(fn, self.cluster, *args, mode=mode, **named)

    @initialize()
    def begin(self) -> None:
        for name in SIZES:
            self.join(name)

    def join(self, name: str) -> None:
        total = SIZES[name].to_node()
        node = self.nodes.get(name) or Node(id=name, epoch=0, address=name, total=total, free=total)
        self.nodes[name] = self.store.run(lambda tx: nodes.join(tx, self.cluster, node, HOUR_US))

    def look(self) -> None:
        """Check every invariant of the rows, and of the last step."""
        rows = self.store.run(lambda tx: tx.range(*Space(self.keys.cluster).all(), snapshot=True))
        now = {row.key: row.value for row in rows}
        changed = [
            (key, now.get(key)) for key in now.keys() | self.rows.keys() if now.get(key) != self.rows.get(key)
        ]
        self.rows = now
        self.mirror.apply(changed)
        wrong = judge(self.mirror)
        assert wrong == [], wrong

    @invariant()
    def in_step_with_the_model(self) -> None:
        self.look()
        self.model.settle()
        if any(key.startswith(self.keys.cursor.prefix) for key in self.rows):
            while self.run(depend.notify_pending):
                self.look()
            self.look()
        stored = self.mirror.futures
        assert {future_id: row.state for future_id, row in stored.items()} == {
            future_id: expected.state for future_id, expected in self.model.futures.items()
        }
        for future_id, expected in self.model.futures.items():
            row, tally = stored[future_id], stored[future_id].tally
            assert (
                tally.exceptions,
                tally.crashes,
                tally.ooms,
                tally.strange,
                tally.reaps,
                tally.rebuilds,
            ) == tuple(expected.counts.values())
            if isinstance(row, Failed):
                assert row.kind == expected.why
            if isinstance(row, Realized):
                assert (row.result.location.kind, row.result.version) == (expected.kind, expected.version)
            if isinstance(row, Claimed):
                assert row.cancel == expected.cancel
                assert self.holders[future_id].epoch == row.tally.epoch
        assert {future_id for future_id, row in stored.items() if isinstance(row, Claimed)} == set(
            self.holders
        )

    def known(self, future: bytes) -> ExpectedFuture | None:
        return self.model.futures.get(future)

    def alive(self, name: str) -> bool:
        return self.store.run(lambda tx: nodes.read(tx, self.cluster, name)) is not None

    def usable(self, claim: Claim) -> bool:
        """Return whether this claim still holds."""
        return self.holders.get(claim.id) is claim and self.alive(claim.row.holder)

    def over(self, claim: Claim) -> None:
        self.holders.pop(claim.id, None)

    # --- operations: one rule, so that every run has all of them, in realistic proportions

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.dice = Drawn(data)
        self.act()

    def act(self) -> None:
        self.dice.one(ACTS)(self)

    def one_future(self) -> bytes | None:
        return self.dice.one(sorted(self.model.futures)) if self.model.futures else None

    def one_claim(self) -> Claim | None:
        """Return a claim: mostly one that holds, sometimes one that is over."""
        held = list(self.holders.values())
        old = [
            old_claim for old_claim in self.all_claims[-8:] if self.holders.get(old_claim.id) is not old_claim
        ]
        candidates = [*held, *held, *held, *old]
        return self.dice.one(candidates) if candidates else None

    # --- clients

    def submit(self) -> None:
        if len(self.model.futures) > 8:
            return
        existing = sorted(self.model.futures)
        inputs = self.dice.some(existing, 3) if existing else []
        near = bool(inputs) and self.dice.one((False, True))
        spec = Spec(
            id=new_id(1000 + next(numbers), self.chance),
            name="f",
            code=b"",
            args=Blob(b""),
            inputs=tuple(inputs),
            needs=Needs(cpu=self.dice.one((0.0, 0.0, 1.0, 4.0, 32.0))),
            max_retries=self.dice.one((0, 1, 2)),
            reconstruct=self.dice.one((True, True, True, False)),
            near=inputs[0] if near else b"",
            hard=near and self.dice.one((False, False, True)),
            queue=self.dice.one(("", "", "q")),
        )
        self.run(submit.submit, [spec])
        expected = ExpectedFuture(spec.inputs, spec.max_retries, spec.needs.cpu, spec.reconstruct, spec.hard)
        self.model.add(spec.id, expected)

    def cancel(self) -> None:
        future = self.one_future()
        if future is None:
            return
        why = self.dice.one(("cancelled", "deadline"))
        if why == "cancelled":
            self.run(cancel.cancel, future)
        else:
            self.store.run(lambda tx: tx.set(self.keys.deadline[1, future], b""))
            self.run(cancel.deadline_page)
        self.model.cancel(self.model.futures[future], why)

    def requeue(self) -> None:
        ended = sorted(
            future_id
            for future_id, expected in self.model.futures.items()
            if expected.state in (S.FAILED, S.QUARANTINED)
        )
        if not ended:
            return
        future = self.dice.one(ended)
        if self.model.requeue(self.model.futures[future]):
            self.run(requeue.requeue, future)
        else:
            with pytest.raises(UsageError):
                self.run(requeue.requeue, future)

    def realized(self) -> bytes | None:
        realized = sorted(
            future_id for future_id, expected in self.model.futures.items() if expected.state is S.REALIZED
        )
        return self.dice.one(realized) if realized else None

    def lose(self) -> None:
        future = self.realized()
        if future is None:
            return
        expected, old = self.model.futures[future], self.dice.one((0, 0, 1))
        self.there(results.lose, future, expected.version - old, unreachable=True)
        if not old and expected.kind != "inline":
            self.model.lose(expected)

    def delete_results(self) -> None:
        future = self.realized()
        if future is not None:
            self.run(results.delete_results, [future])
            self.model.futures[future].kind = "freed"

    # --- nodes

    def claim(self) -> None:
        name, limit = self.dice.one(sorted(SIZES)), self.dice.one((1, 2, 10))
        node, free = self.nodes[name], SIZES[name]
        lanes = self.run(claim.read_lanes)
        if not self.alive(name):
            with pytest.raises(LeaseLost):
                self.there(claim.claim, node, lanes, free, limit, mode="take")
            return
        could = {
            key: self.model.futures[key].cpu
            for key, row in self.mirror.futures.items()
            if isinstance(row, Unclaimed) and row.assigned in ("", name)
        }
        claims = self.there(claim.claim, node, lanes, free, limit, mode="take")
        assert {taken.id for taken in claims} <= set(could)
        for taken in claims:
            free = free.minus(Needs(cpu=could.pop(taken.id)))
            self.model.futures[taken.id].state = S.CLAIMED
            self.holders[taken.id] = taken
        self.all_claims += claims
        assert free.cpu >= 0
        if len(claims) < limit:
            assert not any(how_many(Needs(cpu=cpu), free) for cpu in could.values())

    def realize(self) -> None:
        held = self.one_claim()
        spec = self.mirror.specs.get(held.id) if held is not None else None
        if held is None or spec is None:
            return
        node, kind = self.nodes[held.row.holder], self.dice.one(("inline", "segment", "object"))
        location = {
            "inline": Location(kind="inline"),
            "segment": Location(kind="segment", name="s", node=node.id, node_epoch=node.epoch),
            "object": Location(kind="object", name=f"o{next(numbers)}"),
        }[kind]
        completion = Completion(held, spec, Result(held.epoch, 0, 1, location, b"x"))
        if not self.usable(held):
            self.refused(lambda: self.there(finish.realize, node, completion))
            self.refused(lambda: self.there(finish.realize_many, node, [completion], mode="take"))
            return
        fast = self.dice.one((False, True))
        written = fast and self.there(finish.realize_many, node, [completion], mode="take")[0]
        if not written:
            self.there(finish.realize, node, completion)
        self.model.realize(self.model.futures[held.id], kind, held.epoch)
        self.over(held)

    def fail(self) -> None:
        held = self.one_claim()
        if held is None:
            return
        node = self.nodes[held.row.holder]
        kind = self.dice.one(("exception", "exception", "crash", "crash", "oom", "deserialize"))
        failure = Failure(kind=kind, message="no")
        if not self.usable(held):
            self.refused(lambda: self.there(finish.fail, node, held, failure))
            return
        self.there(finish.fail, node, held, failure, jitter=0.0)
        self.model.fail(self.model.futures[held.id], kind)
        self.over(held)

    def give_up(self) -> None:
        """Give a claim back, as a drain does, or end it as its row requests."""
        held = self.one_claim()
        if held is None:
            return
        node, requested = self.nodes[held.row.holder], self.dice.one((False, True))

        def write() -> Any:
            if requested:
                return self.there(finish.cancelled, node, held)
            return self.there(finish.relinquish, node, [held])

        if not self.usable(held):
            self.refused(write)
            return
        write()
        self.model.give_back(self.model.futures[held.id])
        self.over(held)

    def block(self) -> None:
        """Report missing inputs and block the task, in one transaction."""
        held = self.one_claim()
        if held is None:
            return
        node, expected = self.nodes[held.row.holder], self.model.futures.get(held.id)
        if not self.usable(held) or expected is None:
            self.refused(lambda: self.there(finish.block, node, held, []))
            return
        lost = self.dice.one((False, True))
        gone = [
            upstream
            for upstream in expected.inputs
            if lost
            and self.model.futures[upstream].state is S.REALIZED
            and self.model.futures[upstream].kind != "inline"
        ]

        def both(tx: Any) -> None:
            for upstream in gone:
                version = self.model.futures[upstream].version
                results.lose(tx, self.keys, self.cluster, upstream, version, unreachable=True)
            finish.block(tx, self.keys, self.cluster, node, held, expected.inputs)

        self.store.run(both)
        for upstream in gone:
            self.model.lose(self.model.futures[upstream])
        self.model.give_back(expected)
        self.over(held)

    def refused(self, write: Callable[[], Any]) -> None:
        """Check that a claimant changes nothing after its claim is over."""
        try:
            answer = write()
        except LeaseLost:
            answer = None
        assert answer in (None, [False], [None])
        before = self.rows
        self.look()
        assert self.rows == before

    # --- death and the leader

    def one_node(self) -> str:
        return self.dice.one(sorted(SIZES))

    def die(self) -> None:
        name = self.one_node()
        self.store.run(lambda tx: nodes.leave(tx, self.cluster, self.nodes[name]))

    def come_back(self) -> None:
        """Let a lost node join under a later epoch: its earlier claims are over."""
        name = self.one_node()
        if not self.alive(name):
            self.join(name)
            self._reaped(name)

    def reap(self) -> None:
        name = self.one_node()
        if not self.alive(name):
            self._reaped(name)
            self.there(reap.reroute_page, name)
            for future_id, row in list(self.mirror.futures.items()):
                if isinstance(row, Unclaimed) and row.assigned == name and row.hard:
                    expected = self.model.futures[future_id]
                    expected.state, expected.why = S.FAILED, "actor"

    def _reaped(self, name: str) -> None:
        page, _ = self.there(reap.reap_page, name)
        held = [claim for claim in self.holders.values() if claim.row.holder == name]
        assert {future_id for future_id, _ in page.moved} == {claim.id for claim in held}
        for lost_claim in held:
            self.model.reap(self.model.futures[lost_claim.id])
            self.over(lost_claim)

    def strand(self) -> None:
        """Set aside futures that no node can run: needs are 32 cpus, or fit some node."""
        live = [SIZES[name] for name in SIZES if self.alive(name)]
        for lane in self.run(claim.read_lanes):
            self.there(unsatisfiable.strand_page, lane)
        for future_id, expected in self.model.futures.items():
            row = self.mirror.futures[future_id]
            in_pool = isinstance(row, Unclaimed) and not row.assigned
            if in_pool and live and not any(how_many(Needs(cpu=expected.cpu), size) for size in live):
                expected.state = S.UNSATISFIABLE

    def satisfy(self) -> None:
        live = [SIZES[name] for name in SIZES if self.alive(name)]
        self.there(unsatisfiable.satisfy_page)
        for expected in self.model.futures.values():
            if expected.state is S.UNSATISFIABLE and any(
                how_many(Needs(cpu=expected.cpu), size) for size in live
            ):
                expected.state = S.BLOCKED

    def sweep(self) -> None:
        if len(self.model.futures) < 6:
            return
        page = self.there(sweep.sweep_page, 0)
        for future_id in page.deleted:
            assert self.model.may_go(future_id)
            del self.model.futures[future_id]


M = FutureMachine
ACTS = [
    *([M.submit] * 5),
    *([M.claim] * 8),
    *([M.realize] * 5),
    *([M.fail] * 5),
    *([M.lose] * 3),
    *([M.block, M.give_up, M.cancel, M.requeue, M.delete_results]),
    *([M.die, M.come_back, M.reap, M.strand, M.satisfy] * 2),
    M.sweep,
]


def runs(in_test: int, in_crash: int) -> pytest.MarkDecorator:
    """How many runs a test makes in `make test`, and in `make crash`."""
    return pytest.mark.parametrize("count", [in_test, pytest.param(in_crash, marks=pytest.mark.crash)])


def lives_of_futures(store: Store, examples: int, steps: int) -> None:
    machine = type("Machine", (FutureMachine,), {"store": store})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
        ),
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without pauses: not every backend lets a test advance the store's time."""
    monkeypatch.setattr(retries, "FIRST_PAUSE_US", 0)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Store]:
    with SqliteStore(tmp_path / "futures.db") as store:
        yield store


@pytest.fixture
def postgres(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Store]:
    with PostgresStore(postgres_url) as store:
        yield store


@pytest.mark.rule("FUT-12", "FUT-13", "FUT-15", "FUT-16")
@runs(40, 120)
def test_random_futures_in_memory(count: int) -> None:
    lives_of_futures(MemoryStore(), count, 40)


@pytest.mark.rule("FUT-12", "FUT-13", "FUT-15", "FUT-16")
@runs(16, 50)
def test_random_futures_on_sqlite(sqlite: Store, count: int) -> None:
    lives_of_futures(sqlite, count, 40)


@pytest.mark.rule("FUT-12", "FUT-13", "FUT-15", "FUT-16")
@runs(12, 40)
def test_random_futures_on_postgresql(postgres: Store, count: int) -> None:
    machine = type("Machine", (FutureMachine,), {"store": postgres})
    for seed in range(count):
        life = machine()
        life.dice = Thrown(seed)
        life.begin()
        for step in range(40):
            try:
                life.act()
                life.in_step_with_the_model()
            except Exception as error:
                error.add_note(f"in step {step} of the run with seed {seed}")
                raise


def test_the_model_knows_every_state() -> None:
    assert {state.value for state in FutureState} == {state.value for state in S}
