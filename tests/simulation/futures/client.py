"""A simulated client: a thread of a node that submits graphs of calls, cancels some, and reads results.

Every client tries to submit every graph. A row that marks the graph as submitted is written in the same
transaction, so one of them wins. Calls with an idempotency key are submitted by all clients, each time under
another id.
"""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.futures.plan import PlannedCall, PlannedSubmit
from tests.simulation.scheduler import SECOND_US, Next, SimNode
from tidemill.errors import StoreError
from tidemill.futures.protocol import cancel, edges, results, submit
from tidemill.futures.protocol.keys import new_id
from tidemill.futures.protocol.rows import Blob, Needs, Realized, Spec
from tidemill.store import Tx

if TYPE_CHECKING:
    from tests.simulation.futures.scenario import FutureWork

Ids = dict[str, bytes]


class SimulatedClient:
    """The client of one node. It knows only what it did itself and what it read from the store."""

    def __init__(self, work: "FutureWork", node: SimNode) -> None:
        self.work = work
        self.node = node
        self.placed: dict[str, Ids] = {}
        self._cancelled: set[str] = set()
        self._seen: set[str] = set()
        self._missed: dict[bytes, int] = {}  # results that could not be read, and their versions
        node.spawn("client", self.step, work.world.swarm.ttl_s * 0.1 * node.chance.random())

    def step(self) -> Next:
        """Do the next thing that is due."""
        ttl_s = self.work.world.swarm.ttl_s
        try:
            did = self._place() or self._cancel() or self._read_results()
        except StoreError:
            return ttl_s * self.node.chance.uniform(0.02, 0.2)
        if did:
            return ttl_s * self.node.chance.uniform(0.001, 0.02)
        return None if self._is_done() else ttl_s * self.node.chance.uniform(0.2, 0.4)

    def _is_done(self) -> bool:
        last_calls = {order.calls[-1].name for order in self.work.plan.orders}
        return last_calls <= self._seen and len(self._cancelled) == self.work.cancels

    # --- submitting

    def _place(self) -> bool:
        for order in self.work.plan.orders:
            if order.name not in self.placed and self.work.now_s() >= order.after_s:
                for call in order.calls:
                    if call.keyed:
                        spec = self._spec(call, {})
                        self.work.store.run(partial(submit.submit_one, keys=self.work.keys, spec=spec))
                fresh = {call.name: self._id() for call in order.calls}
                self.placed[order.name] = self.work.store.run(partial(self._submit, order=order, fresh=fresh))
                return True
        return False

    def _submit(self, tx: Tx, order: PlannedSubmit, fresh: Ids) -> Ids:
        key = self.work.orders[order.name]
        raw = tx.get(key)
        if raw is not None:
            return msgspec.msgpack.decode(raw, type=dict[str, bytes])
        ids: Ids = {}
        for call in order.calls:
            spec = self._spec(call, ids, fresh[call.name], tx.now())
            ids[call.name] = submit.submit_one(tx, self.work.keys, spec)
        tx.set(key, msgspec.msgpack.encode(ids))
        return ids

    def _id(self) -> bytes:
        return new_id(int(self.node.clock.wall() * 1000), self.node.chance)

    def _spec(self, call: PlannedCall, ids: Ids, future_id: bytes = b"", now_us: int = 0) -> Spec:
        return Spec(
            id=future_id or self._id(),
            name=call.name,
            code=b"",
            args=Blob(b""),
            inputs=tuple(ids[name] for name in call.inputs),
            needs=Needs(cpu=1.0),
            priority=call.priority,
            max_retries=call.max_retries,
            key=call.name if call.keyed else "",
            near=ids[call.inputs[0]] if call.near else b"",
            deadline_at=now_us + int(call.deadline_s * SECOND_US) if call.deadline_s and now_us else 0,
        )

    # --- cancelling and reading

    def _cancel(self) -> bool:
        for order in self.work.plan.orders:
            for call in order.calls:
                due = call.cancel_after_s >= 0 and self.work.now_s() >= order.after_s + call.cancel_after_s
                if due and call.name not in self._cancelled and order.name in self.placed:
                    future_id = self.placed[order.name][call.name]
                    self.work.store.run(partial(cancel.cancel, keys=self.work.keys, future_id=future_id))
                    self._cancelled.add(call.name)
                    return True
        return False

    def _read_results(self) -> bool:
        """Read the last result of each submitted graph; request a lost one again (FUT-51)."""
        for order in self.work.plan.orders:
            last_call = order.calls[-1].name
            if order.name in self.placed and last_call not in self._seen:
                future_id = self.placed[order.name][last_call]
                self._read(future_id)
                if last_call in self.work.rules.ended and future_id not in self._missed:
                    self._seen.add(last_call)
        return False

    def _read(self, future_id: bytes) -> None:
        """Read a result; report it as lost if it could not be read twice.

        Another client may have reported it since: the version says which one we mean (FUT-63).
        """
        keys = self.work.keys
        version = self._missed.pop(future_id, None)
        if version is not None:
            lose = partial(results.lose, keys=keys, cluster=self.work.cluster, future_id=future_id)
            self.work.store.run(partial(lose, version=version, unreachable=True))
        row = self.work.store.run(partial(edges.read, keys=keys, future_id=future_id))
        if isinstance(row, Realized) and self.work.is_lost(row.result):
            self._missed[future_id] = row.result.version
