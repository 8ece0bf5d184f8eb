"""A stage for tests of the futures room: one memory store, one fake clock, workers without processes.

Every transaction that a test runs here is followed by a scan of all invariants, and by a look at the step it
made: which edge was followed, and that epochs only grow.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from tests.futures_invariants import judge
from tests.futures_mirror import Mirror
from tidemill.cluster import leases, nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Duty, Tenure
from tidemill.cluster.nodes import Node
from tidemill.events import Event
from tidemill.futures.protocol import claim, depend, edges, finish, results, rows, submit
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.finish import Completion
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.leader_duties import future_duties, reap_one
from tidemill.futures.protocol.rows import AnyRow, Blob, Failure, Location, Realized, Result, Spec
from tidemill.store import Mode, Space, Store, Tx
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock

T = TypeVar("T")

TTL_S = 15.0
SECOND_US = 1_000_000
BIG = Capacity(cpu=64.0, ram=2**40, gpu=8.0, named=frozenset({"spark"}))
INLINE = Location(kind="inline")


class Stage:
    """One store, one time, any number of workers."""

    def __init__(
        self, store: Store | None = None, *, clock: FakeClock | None = None, scan: bool = True
    ) -> None:
        self.clock = clock or FakeClock()
        self.chance = random.Random(7)
        self.store = store or MemoryStore(clock=self.clock, chance=self.chance)
        self.keys = FutureKeys("c")
        self.cluster = ClusterKeys("c")
        self.scan = scan
        self.mirror = Mirror(self.keys)
        self.rows: dict[bytes, bytes] = {}
        self.events: list[Event] = []
        self.writes: list[int] = []  # of each transaction
        self.bytes_written: list[int] = []
        self._run, self.store.run = self.store.run, self._counted  # type: ignore[method-assign]
        self._ids = 0

    # --- transactions

    def run(self, fn: Callable[..., T], *args: Any, mode: Mode = "serial", **named: Any) -> T:
        """`fn(tx, …)` in one transaction, then every invariant."""
        answer = self.store.run(lambda tx: fn(tx, *args, **named), mode=mode)
        if self.scan:
            self.check()
        return answer

    def _counted(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        def counted(tx: Tx) -> tuple[T, int, int]:
            answer = fn(tx)
            return answer, tx.writes, tx.bytes_written

        answer, writes, size = self._run(counted, mode=mode)
        self.writes.append(writes)
        self.bytes_written.append(size)
        return answer

    def here(self, fn: Callable[..., T], *args: Any, mode: Mode = "serial", **named: Any) -> T:
        """`fn(tx, keys, …)`."""
        return self.run(fn, self.keys, *args, mode=mode, **named)

    def there(self, fn: Callable[..., T], *args: Any, mode: Mode = "serial", **named: Any) -> T:
        """`fn(tx, keys, cluster, …)`."""
        return self.run(fn, self.keys, self.cluster, *args, mode=mode, **named)

    def all_rows(self) -> dict[bytes, bytes]:
        stored = self.store.run(lambda tx: tx.range(*Space("c").all(), snapshot=True))
        return {row.key: row.value for row in stored}

    def check(self) -> None:
        """Every invariant, and the step since the last check."""
        now = self.all_rows()
        changed = [
            (key, now.get(key)) for key in now.keys() | self.rows.keys() if now.get(key) != self.rows.get(key)
        ]
        self.rows = now
        self.mirror.apply(changed)
        assert judge(self.mirror) == []

    # --- nodes

    def worker(
        self,
        name: str,
        total: Capacity = BIG,
        *,
        ttl_s: float = TTL_S,
        address: str = "",
        kind: str = "worker",
    ) -> Node:
        node = Node(
            id=name, epoch=0, kind=kind, address=address or name, total=total.to_node(), free=total.to_node()
        )
        return self.store.run(lambda tx: nodes.join(tx, self.cluster, node, int(ttl_s * SECOND_US)))

    def beat(self, node: Node, **changes: Any) -> Node:
        node = msgspec.structs.replace(node, **changes)
        return self.store.run(lambda tx: nodes.beat(tx, self.cluster, node, int(TTL_S * SECOND_US)))

    def kill(self, *dead: Node, alive: Sequence[Node] = ()) -> None:
        """Let the leases of all but these run out."""
        for _ in range(4):
            self.clock.advance(TTL_S / 3)
            for node in alive:
                self.beat(node)

    # --- futures

    def id(self) -> bytes:
        self._ids += 1
        return new_id(int(self.clock.wall() * 1000), self.chance)

    def spec(self, name: str = "f", **fields: Any) -> Spec:
        values = {"id": self.id(), "name": name, "code": b"digest", "args": Blob(b""), **fields}
        return Spec(**values)

    def submit(self, *inputs: bytes, **fields: Any) -> bytes:
        spec = self.spec(inputs=inputs, **fields)
        return self.here(submit.submit, [spec])[0]

    def row(self, future_id: bytes) -> AnyRow:
        row = self.store.run(lambda tx: edges.read(tx, self.keys, future_id))
        assert row is not None
        return row

    def spec_of(self, future_id: bytes) -> Spec:
        return self.store.run(lambda tx: edges.must_read_spec(tx, self.keys, future_id))

    def failure(self, future_id: bytes) -> Failure | None:
        raw = self.store.run(lambda tx: tx.get(self.keys.error[future_id]))
        return None if raw is None else rows.decode_failure(raw)

    def lanes(self) -> list[claim.Lane]:
        return self.store.run(lambda tx: claim.read_lanes(tx, self.keys))

    def claim(self, node: Node, limit: int = 100, free: Capacity = BIG) -> list[Claim]:
        return self.there(claim.claim, node, self.lanes(), free, limit, mode="take")

    def claim_one(self, node: Node, future_id: bytes | None = None) -> Claim:
        """Claim the next future, or this one; return the other claims."""
        claims = self.claim(node, 1 if future_id is None else 100)
        matching = [claimed for claimed in claims if future_id in (None, claimed.id)]
        assert matching, f"nothing to claim for {node.id}"
        rest = [claimed for claimed in claims if claimed is not matching[0]]
        if rest:
            self.there(finish.relinquish, node, rest)
        return matching[0]

    def result(self, claim: Claim, node: Node, *, kind: str = "inline", size: int = 3) -> Result:
        location = (
            INLINE
            if kind == "inline"
            else Location(kind=kind, name=f"seg-{claim.epoch}", node=node.id, node_epoch=node.epoch)
        )
        if kind == "object":
            location = Location(kind=kind, name=f"obj-{claim.id.hex()}-{claim.epoch}")
        return Result(version=claim.epoch, at=0, size=size, location=location, head=b"value")

    def done(self, claim: Claim, node: Node, *, kind: str = "inline") -> Completion:
        return Completion(claim, self.spec_of(claim.id), self.result(claim, node, kind=kind))

    def realize(self, node: Node, claim: Claim, *, kind: str = "inline") -> Realized:
        """By the serial way."""
        return self.there(finish.realize, node, self.done(claim, node, kind=kind))

    def realize_fast(self, node: Node, *claims: Claim, kind: str = "inline") -> list[bool]:
        items = [self.done(claimed, node, kind=kind) for claimed in claims]
        return self.there(finish.realize_many, node, items, mode="take")

    def make(self, node: Node, future_id: bytes, *, kind: str = "inline") -> Realized:
        """Claim this future and realise it."""
        return self.realize(node, self.claim_one(node, future_id), kind=kind)

    def fail(
        self, node: Node, claim: Claim, kind: str = "exception", message: str = "no", **named: Any
    ) -> AnyRow:
        failure = Failure(kind=kind, type="ValueError", message=message)
        return self.there(finish.fail, node, claim, failure, **named)

    def lose(self, future_id: bytes, **named: Any) -> AnyRow | None:
        row = self.row(future_id)
        assert isinstance(row, Realized)
        return self.there(results.lose, future_id, row.result.version, unreachable=True, **named)

    def drain(self) -> int:
        """Tell every dependent; how many transactions it took."""
        pages = 1
        while self.here(depend.notify_pending):
            pages += 1
        return pages

    def reap_one(self, future_id: bytes) -> AnyRow | None:
        """What a client does that waits while there is no leader."""
        row = reap_one(self.store, self.keys, self.cluster, future_id, ttl_s=TTL_S)
        self.check()
        return row

    def ready_ids(self) -> list[bytes]:
        """What is in the pool, in the order of its keys."""
        return [
            key_id for key, _ in sorted(self.all_rows().items()) if (key_id := self._in(self.keys.ready, key))
        ]

    def _in(self, space: Space, key: bytes) -> bytes | None:
        if not key.startswith(space.prefix):
            return None
        last = space.unpack(key)[-1]
        assert isinstance(last, bytes)
        return last

    # --- the leader

    def tenure(self) -> Tenure:
        """A leader's time in office that ends with the next one."""
        self.clock.advance(0.001)
        held = _Office(self)
        return Tenure(self.store, held)  # type: ignore[arg-type]

    def duties(self, **named: Any) -> dict[str, Duty]:
        return future_duties(self.keys, self.cluster, emit=self.events.append, **named)

    def round(self, name: str, **named: Any) -> float:
        """One round of one duty, until it says that there is no more to do."""
        duty, tenure = self.duties(**named)[name], self.tenure()
        wait_s = 0.0
        for _ in range(1000):
            wait_s = duty(tenure)
            if wait_s > 0:
                break
        if self.scan:
            self.check()
        return wait_s


class _Office:
    """A leader's lease that is held, for as long as nobody takes it."""

    def __init__(self, stage: Stage) -> None:
        self.key = stage.cluster.leader
        stage.store.run(lambda tx: tx.clear(self.key))
        lease = stage.store.run(lambda tx: leases.acquire(tx, self.key, "leader", 10_000 * SECOND_US))
        assert isinstance(lease, leases.Lease)
        self.lease = lease
        self.epoch = lease.epoch
        self.lost = False

    def alive(self) -> bool:
        return not self.lost

    def check(self) -> None:
        assert not self.lost

    def fence(self, tx: Tx) -> None:
        leases.check(tx, self.key, self.lease)
