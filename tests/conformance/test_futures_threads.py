"""Futures under real concurrency: threads that submit, claim, finish, lose, cancel and reap at the same time.

Transactions overlap on a real backend, with its locks and conflicts, which the state machine cannot show.
Every future ends as expected, and no invariant is broken during the run or afterwards.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.futures_invariants import judge, scan_rows
from tests.futures_mirror import Mirror
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.futures.protocol import cancel, claim, depend, finish, reap, results, retries, submit
from tidemill.futures.protocol.finish import Completion
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Blob, Failure, Location, Realized, Result, Spec, Unclaimed
from tidemill.futures.protocol.states import ENDED
from tidemill.store import Mode, Space, Store
from tidemill.store.memory import MemoryStore
from tidemill.store.postgres import PostgresStore
from tidemill.store.sqlite import SqliteStore
from tidemill.testing.threads import STUCK_S

KEYS, CLUSTER = FutureKeys("t"), ClusterKeys("t")
FREE = Capacity(cpu=100.0)
HOUR_US = 3600 * 1_000_000


class Crowd:
    """Threads on one store, each with its own random source."""

    def __init__(self, store: Store, seed: int, rounds: int) -> None:
        self.store = store
        self.seed = seed
        self.rounds = rounds
        self.ids: list[bytes] = []
        self.realized: Counter[tuple[bytes, int]] = Counter()
        self.over = threading.Barrier(2, action=self._all_submitted)  # of the two clients
        self.submitted = threading.Event()
        self.errors: list[BaseException] = []

    def _all_submitted(self) -> None:
        self.submitted.set()

    def run(self, fn: Callable[..., Any], *args: Any, mode: Mode = "serial", **options: Any) -> Any:
        return self.store.run(lambda tx: fn(tx, KEYS, *args, **options), mode=mode)

    def there(self, fn: Callable[..., Any], *args: Any, mode: Mode = "serial", **named: Any) -> Any:
        return self.run(fn, CLUSTER, *args, mode=mode, **named)

    def go(self) -> None:
        acts = [self.client, self.client, self.worker, self.worker, self.chaos, self.leader]
        threads = [
            threading.Thread(target=self._guarded, args=(act, random.Random(f"{self.seed}/{number}"), number))
            for number, act in enumerate(acts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, act: Callable[[random.Random, int], None], chance: random.Random, number: int) -> None:
        try:
            act(chance, number)
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            self.errors.append(error)

    # --- the threads

    def client(self, chance: random.Random, number: int) -> None:
        for _ in range(self.rounds):
            existing = self.ids[-12:]
            specs = []
            for _ in range(chance.choice((1, 3))):
                inputs = tuple(chance.sample(existing, min(len(existing), chance.choice((0, 1, 2, 3)))))
                near = inputs[0] if inputs and chance.random() < 0.3 else b""
                future_id = new_id(1_000_000, chance)
                spec = Spec(
                    id=future_id, name="f", code=b"", args=Blob(b""), inputs=inputs, near=near, max_retries=50
                )
                specs.append(spec)
            self.ids += self.run(submit.submit, specs)
            for _ in range(30):  # let the workers keep up, without waiting for what never ends well
                if len(self.ids) - len(self.realized) < 20:
                    break
                self.run(depend.notify_pending)
        self.over.wait(STUCK_S)

    def worker(self, chance: random.Random, number: int) -> None:
        node = self.store.run(lambda tx: nodes.join(tx, CLUSTER, Node(id=f"w{number}", epoch=0), HOUR_US))
        while not self.submitted.is_set():
            node = self.work(node, chance)

    def work(self, node: Node, chance: random.Random) -> Node:
        """One round of a worker: claim a few, end each of them in some way."""
        try:
            lanes = self.run(claim.read_lanes)
            claims = self.there(claim.claim, node, lanes, FREE, chance.choice((1, 4)), mode="take")
            for held in claims:
                spec = self.store.run(lambda tx, held=held: submit.edges.must_read_spec(tx, KEYS, held.id))
                kind = chance.choice(("inline", "segment"))
                location = Location(kind=kind, name="s", node=node.id if kind == "segment" else "")
                completion = Completion(held, spec, Result(held.epoch, 0, 1, location, b"x"))
                match chance.choice(("fast", "fast", "slow", "fail", "back", "block")):
                    case "fast":
                        written = self.there(finish.realize_many, node, [completion], mode="take")[0]
                        if written:
                            self.run(depend.notify, [held.id])
                        else:
                            self.there(finish.realize, node, completion)
                        self.realized[held.id, held.epoch] += 1
                    case "slow":
                        self.there(finish.realize, node, completion)
                        self.realized[held.id, held.epoch] += 1
                    case "fail":
                        self.there(finish.fail, node, held, Failure(kind="exception"), jitter=0.0)
                    case "back":
                        self.there(finish.relinquish, node, [held])
                    case "block":
                        self.there(finish.block, node, held, spec.inputs)
        except LeaseLost:  # the node was removed from the list: it joins again
            node = self.store.run(lambda tx: nodes.join(tx, CLUSTER, node, HOUR_US))
        return node

    def chaos(self, chance: random.Random, number: int) -> None:
        while not self.submitted.is_set():
            future_id = chance.choice(self.ids[-30:] or [b""])
            match chance.choice(("lose", "lose", "lose", "cancel", "die")):
                case "lose":
                    row = self.run(submit.edges.read, future_id) if future_id else None
                    if isinstance(row, Realized):
                        self.there(results.lose, future_id, row.result.version, unreachable=True)
                case "cancel" if future_id and chance.random() < 0.02:
                    self.run(cancel.cancel, future_id)
                case "die" if chance.random() < 0.1:
                    listed = self.store.run(lambda tx: nodes.read_all(tx, CLUSTER))
                    if listed:
                        dead = chance.choice(listed)
                        self.store.run(lambda tx, dead=dead: nodes.leave(tx, CLUSTER, dead))

    def leader(self, chance: random.Random, number: int) -> None:
        while True:
            last = self.submitted.is_set()
            self.lead()
            now = {row.key: row.value for row in self.store.run(self._all)}
            wrong = scan_rows(now, KEYS)
            assert wrong == [], wrong
            if last:
                return

    @staticmethod
    def _all(tx: Any) -> Any:
        return tx.range(*Space("t").all())

    def lead(self) -> None:
        for name in self.there(reap.nodes_to_reap):
            self.there(reap.reap_page, name)
            self.there(reap.reroute_page, name)
        self.run(depend.notify_pending)

    def finish(self) -> Mirror:
        """Continue in one thread until all futures have ended."""
        chance = random.Random(self.seed)
        node = self.store.run(lambda tx: nodes.join(tx, CLUSTER, Node(id="last", epoch=0), HOUR_US))
        for name in ("w2", "w3"):
            dead = self.store.run(lambda tx, name=name: nodes.read(tx, CLUSTER, name))
            if dead is not None:
                self.store.run(lambda tx, dead=dead: nodes.leave(tx, CLUSTER, dead))
        mirror = Mirror(KEYS)
        before: dict[bytes, bytes] = {}
        for _ in range(1000):
            self.lead()
            node = self.work(node, chance)
            now = {row.key: row.value for row in self.store.run(self._all)}
            mirror.apply(
                [(key, now.get(key)) for key in now.keys() | before.keys() if now.get(key) != before.get(key)]
            )
            mirror.steps.clear()  # several transactions happen between two checks
            before = now
            wrong = judge(mirror)
            assert wrong == [], wrong
            if not mirror.cursors and all(row.state in ENDED for row in mirror.futures.values()):
                return mirror
        raise AssertionError([row for row in mirror.futures.values() if row.state not in ENDED])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE_US", 0)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Store]:
    with SqliteStore(tmp_path / "futures.db") as store:
        yield store


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Store]:
    with PostgresStore(postgres_url) as store:
        yield store


def a_crowd(store: Store, rounds: int) -> None:
    crowd = Crowd(store, 1, rounds)
    crowd.go()
    mirror = crowd.finish()
    assert set(mirror.futures) == set(crowd.ids)
    assert len(crowd.ids) > rounds
    assert max(crowd.realized.values()) == 1, "one completion for each claim"
    assert not any(isinstance(row, Unclaimed) for row in mirror.futures.values())
    states = Counter(type(row).__name__ for row in mirror.futures.values())
    assert states["Realized"] > 0


@pytest.mark.rule("FUT-13", "FUT-15", "FUT-16")
def test_a_crowd_in_memory() -> None:
    a_crowd(MemoryStore(), 60)


@pytest.mark.rule("FUT-13", "FUT-15", "FUT-16")
def test_a_crowd_on_sqlite(sqlite: Store) -> None:
    a_crowd(sqlite, 40)


@pytest.mark.rule("FUT-13", "FUT-15", "FUT-16")
def test_a_crowd_on_postgresql(postgres: Store) -> None:
    a_crowd(postgres, 25)
