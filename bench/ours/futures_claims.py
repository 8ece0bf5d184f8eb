"""Measure only the claim of futures: the cost of a worker's claim transaction for a queue of some length.

One node claims batches in `take` transactions, as a supervisor does, and realizes the claimed futures;
only the claims are timed. Then it submits as many again, so that the queue keeps its length.
"""

import random
import sqlite3
import time
from pathlib import Path

import tidemill
from bench.answering import Command, answer
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import claim, finish, submit
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.finish import Completion
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Blob, Location, Result, Spec
from tidemill.store.sqlite import SqliteStore

LEASE_US = 3_600_000_000
FREE = Capacity(cpu=2.0, ram=1 << 30)
ARGUMENTS = bytes(60)
RESULT = Result(1, 0, 20, Location("inline"), bytes(20), bytes(32))


def _spec(future_id: bytes) -> Spec:
    return Spec(id=future_id, name="noop", code=bytes(32), args=Blob(ARGUMENTS), signature=bytes(32))


class Claims:
    def open(self, path: str) -> None:
        self._store = SqliteStore(Path(path))
        self._keys, self._cluster = FutureKeys("bench"), ClusterKeys("bench")
        self._chance = random.Random(1)
        node = Node(id="bench", epoch=0, total=FREE.to_node())
        self._node = self._store.run(lambda tx: nodes.join(tx, self._cluster, node, LEASE_US))

    def fill(self, count: int) -> None:
        """Submit this many futures."""
        specs = [_spec(new_id(time.time_ns() // 1_000_000, self._chance)) for _ in range(count)]
        for page in submit.pages(specs):
            self._store.run(lambda tx, page=page: submit.submit(tx, self._keys, page))  # type: ignore[misc]

    def work(self, count: int, batch: int) -> float:
        """Claim this many futures; return the seconds that the claims took."""
        seconds = 0.0
        for _ in range(count // batch):
            began = time.perf_counter()
            claims = self._store.run(lambda tx: self._claim(tx, batch), mode="take")
            seconds += time.perf_counter() - began
            assert len(claims) == batch
            done = [Completion(claimed, _spec(claimed.id), RESULT) for claimed in claims]
            made = self._store.run(
                lambda tx, done=done: finish.realize_many(tx, self._keys, self._cluster, self._node, done),  # type: ignore[misc]
                mode="take",
            )
            assert all(made)
        return seconds

    def _claim(self, tx: tidemill.store.Tx, batch: int) -> list[Claim]:
        lanes = claim.read_lanes(tx, self._keys)
        return claim.claim(tx, self._keys, self._cluster, self._node, lanes, FREE, batch)


if __name__ == "__main__":
    claims = Claims()
    commands: dict[str, Command] = {"open": claims.open, "fill": claims.fill, "work": claims.work}
    answer(commands, versions={"tidemill": tidemill.__version__, "sqlite": sqlite3.sqlite_version})
