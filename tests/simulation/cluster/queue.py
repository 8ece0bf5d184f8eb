"""A queue in take mode: rows are taken and claimed in one transaction, and completed by a fenced swap.

It represents everything that claims work from a pool (STO-3, STO-4). A claim belongs to the node that made
it; when that node has left the list, the leader returns the row to the queue. No row is lost, and none is
processed twice.
"""

from typing import TYPE_CHECKING

import msgspec

from tests.simulation.scheduler import Next, Wait
from tests.simulation.store import RecordedCommit
from tests.simulation.world import Act, Rule, Violation
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Tenure
from tidemill.errors import StoreError
from tidemill.store import Row, Space, Store, Tx
from tidemill.store.memory import MemoryWatch

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process

CLAIM_PAGE = 3
REAP_PAGE = 10


class QueueKeys:
    """The keys of rows: waiting, claimed or done."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.waiting = Space(keys.cluster, "queue", "waiting")
        self.claimed = Space(keys.cluster, "queue", "claimed")
        self.done = Space(keys.cluster, "queue", "done")
        self.bell = Space(keys.cluster, "queue")["bell"]  # changed when rows return to the queue


class QueueClaim(msgspec.Struct, frozen=True, array_like=True):
    """The node that claimed a row; the number identifies the claim."""

    node: str
    number: int


def row_number(place: Space, key: bytes) -> int:
    """Return the number of a row."""
    number = place.unpack(key)[0]
    assert isinstance(number, int)
    return number


def fill(tx: Tx, keys: QueueKeys, count: int) -> None:
    """Add the rows to the queue."""
    for number in range(count):
        tx.set(keys.waiting[number], b"")


def claim(store: Store, keys: QueueKeys, claim: QueueClaim) -> list[int]:
    """Take some rows and claim them in one transaction (STO-4)."""

    def take_and_claim(tx: Tx) -> list[int]:
        return write_claims(tx, keys, claim, tx.take(*keys.waiting.all(), CLAIM_PAGE))

    return store.run(take_and_claim, mode="take")


def write_claims(tx: Tx, keys: QueueKeys, claim: QueueClaim, rows: list[Row]) -> list[int]:
    """Write the claims of taken rows; return their numbers."""
    numbers = [row_number(keys.waiting, row.key) for row in rows]
    for number in numbers:
        tx.set(keys.claimed[number], msgspec.msgpack.encode(claim))
    return numbers


def claims_of(tx: Tx, keys: QueueKeys, node_id: str) -> dict[int, QueueClaim]:
    """Return the claims of a node; completing one checks it again."""
    claims = {
        row_number(keys.claimed, row.key): msgspec.msgpack.decode(row.value, type=QueueClaim)
        for row in tx.range(*keys.claimed.all(), snapshot=True)
    }
    return {number: claim for number, claim in claims.items() if claim.node == node_id}


def complete(tx: Tx, keys: QueueKeys, claim: QueueClaim, number: int) -> bool:
    """Mark a row as done if it is still ours."""
    if not tx.swap(keys.claimed[number], msgspec.msgpack.encode(claim), None):
        return False
    tx.set(keys.done[number], claim.node.encode())
    return True


def put_back(tx: Tx, keys: QueueKeys, cluster: ClusterKeys) -> int:
    """Return the claims of dead nodes to the queue, at most a page."""
    back = 0
    for row in tx.range(*keys.claimed.all(), snapshot=True):
        raw = tx.get(row.key, lock=True)  # claims are made in take mode, so this needs a row lock
        if raw is None:
            continue
        node = nodes.read(tx, cluster, msgspec.msgpack.decode(raw, type=QueueClaim).node)
        if node is None or node.expires_at <= tx.now():
            tx.clear(row.key)
            tx.set(keys.waiting[row_number(keys.claimed, row.key)], b"")
            back += 1
            if back == REAP_PAGE:
                break
    if back:
        tx.add(keys.bell, 1)
    return back


class QueueWorker:
    """A thread that claims a few rows, works, and completes them one by one."""

    def __init__(self, process: "Process", node_id: str) -> None:
        self.keys = QueueKeys(process.keys)
        self._process = process
        self._node_id = node_id
        self._claims = 0
        self._ours: dict[int, QueueClaim] = {}
        watch = process.world.store.watch([self.keys.bell])
        assert isinstance(watch, MemoryWatch)
        self._bell = watch.event
        process.node.at_end.append(watch.close)

    def step(self) -> Next:
        """Run one step of the thread."""
        ttl_s, chance = self._process.ttl_s, self._process.node.chance
        self._bell.clear()
        try:
            if self._ours:
                self._complete_one()
            else:
                self._claim_some()
        except StoreError:
            return ttl_s * chance.uniform(0.02, 0.2)
        if self._ours:
            return ttl_s * chance.uniform(0.01, 0.3)
        return Wait(self._bell, ttl_s * chance.uniform(0.5, 1.0))

    def _claim_some(self) -> None:
        """Continue with our stored claims, or make new ones.

        A claim of unknown outcome may exist, or appear later, and no other node returns it while our node
        is alive. So we read our claims each time before we make more (CLU-8).
        """
        store = self._process.world.store
        self._ours = store.run(lambda tx: claims_of(tx, self.keys, self._node_id))
        if not self._ours:
            self._claims += 1
            new_claim = QueueClaim(self._node_id, self._claims)
            self._ours = dict.fromkeys(claim(store, self.keys, new_claim), new_claim)

    def _complete_one(self) -> None:
        number, claim = next(iter(self._ours.items()))
        self._process.world.store.run(lambda tx: complete(tx, self.keys, claim, number), mode="take")
        del self._ours[number]

    def reap(self, tenure: Tenure) -> float:
        """Return the claims of dead nodes: a duty of the leader."""
        back = tenure.run(lambda tx: put_back(tx, self.keys, self._process.keys))
        return 0.0 if back == REAP_PAGE else self._process.ttl_s / 3


class QueueRules(Rule):
    """Check that each row is in exactly one place, and that done rows stay done."""

    def __init__(self, keys: QueueKeys, count: int) -> None:
        self.keys = keys
        self.prefixes = (keys.waiting.prefix, keys.claimed.prefix, keys.done.prefix)
        self.done = 0
        self._count = count

    def commit(self, commit: RecordedCommit) -> None:
        moved: dict[int, None] = {}
        for change in commit.changes:
            for place in (self.keys.waiting, self.keys.claimed, self.keys.done):
                if change.key.startswith(place.prefix):
                    moved[row_number(place, change.key)] = None
            if change.key.startswith(self.keys.done.prefix):
                if change.old is not None:
                    raise Violation(f"row {row_number(self.keys.done, change.key)} was done twice")
                self.done += 1
        for number in moved:
            where = [
                name
                for name, place in (
                    ("waiting", self.keys.waiting),
                    ("claimed", self.keys.claimed),
                    ("done", self.keys.done),
                )
                if place[number] in commit.rows
            ]
            if len(where) != 1:
                raise Violation(f"row {number} of the queue is {' and '.join(where) or 'nowhere'}")

    def act(self, act: Act) -> None:
        """Do nothing: rows have no acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        if self.done != self._count:
            raise Violation(f"{self.done} of {self._count} rows of the queue are done")
