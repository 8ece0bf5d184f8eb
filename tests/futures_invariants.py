"""Check the invariants of futures after every commit, from the stored rows alone.

`scan_invariants(tx, keys)` reads all futures of a cluster and returns the violations. `judge` does the same
for some futures of a mirror, so that a simulation can check each commit by looking only at the futures it
changed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.futures_mirror import Mirror
from tidemill.futures.protocol import edges, lanes
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.retries import MOST_CRASHES, MOST_OOMS, MOST_REAPS, MOST_STRANGE
from tidemill.futures.protocol.rows import (
    AnyRow,
    Blocked,
    Claimed,
    Failed,
    Quarantined,
    Realized,
    Spec,
    Unclaimed,
    Unsatisfiable,
)
from tidemill.futures.protocol.states import ENDED, ActorState
from tidemill.futures.protocol.submit import SERVED, WAITING
from tidemill.store import Space, Tx, unpack


def scan_invariants(tx: Tx, keys: FutureKeys) -> list[str]:
    """Return all violations in the futures of a cluster; empty if there are none."""
    rows = tx.range(*Space(keys.cluster).all(), snapshot=True)
    return scan_rows({row.key: row.value for row in rows}, keys)


def scan_rows(rows: Mapping[bytes, bytes], keys: FutureKeys) -> list[str]:
    """Return the violations in these rows."""
    mirror = Mirror(keys)
    mirror.apply(rows.items())
    return judge(mirror)


def judge(mirror: Mirror, ids: Iterable[bytes] | None = None) -> list[str]:
    """Return the violations of these futures, or of all, and of the transitions since the last call."""
    wrong, mirror.steps = mirror.steps, []
    judges = InvariantChecker(mirror)
    if ids is None:
        ids = judges.all_ids()
        wrong += judges.shared()
    for future_id in sorted(ids):
        wrong += [f"{future_id.hex()}: {problem}" for problem in judges.future(future_id)]
    return wrong


class InvariantChecker:
    """Checks the invariants, one method each."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.keys = mirror.keys

    def all_ids(self) -> set[bytes]:
        """Return the ids of all futures that have any row."""
        m = self.mirror
        placed = {
            future_id
            for space in (m.ready, m.assigned, m.own, m.copies)
            for future_id in space
            if space[future_id]
        }
        return {*m.futures, *m.specs, *placed, *m.cursors, *m.stranded, *m.loose}

    def future(self, future_id: bytes) -> list[str]:
        row, spec = self.mirror.futures.get(future_id), self.mirror.specs.get(future_id)
        if row is None or spec is None:
            return self._absent(future_id, row, spec)
        wrong = self._indices(future_id, row, spec)
        wrong += self._inputs(future_id, row, spec)
        wrong += self._counts(row, spec)
        wrong += self._result(future_id, row)
        if isinstance(row, Failed | Quarantined) and future_id not in self.mirror.errors:
            wrong.append(f"{row.state.value} without a reason")
        if self.mirror.dependents.get(future_id) and not row.tally.dependents:
            wrong.append("has dependents and does not know it")
        waits = row.state not in ENDED and not (isinstance(row, Claimed) and row.cancel)
        fresh = row.tally.epoch <= 1  # one that was requeued after its deadline has none any more
        if spec.deadline_at and waits and fresh and future_id not in self.mirror.deadlines:
            wrong.append("its deadline is not in the index")
        if spec.key and self.mirror.names.get(spec.key) != future_id:
            wrong.append(f"its idempotency key leads to {self.mirror.names.get(spec.key)!r}")
        return wrong

    def _absent(self, future_id: bytes, row: AnyRow | None, spec: Spec | None) -> list[str]:
        left = [
            name
            for name, exists in (
                ("a state row", row is not None),
                ("a spec", spec is not None),
                ("a place in the pool", bool(self.mirror.ready.get(future_id))),
                ("an assignment", bool(self.mirror.assigned.get(future_id))),
                ("a claim", bool(self.mirror.own.get(future_id))),
                ("copies", bool(self.mirror.copies.get(future_id))),
                ("a stranded row", future_id in self.mirror.stranded),
                ("a loose row", future_id in self.mirror.loose),
            )
            if exists
        ]
        return [f"is gone, but {', '.join(left)} is left"] if left else []

    def _indices(self, future_id: bytes, row: AnyRow, spec: Spec) -> list[str]:
        wrong = []
        places = {**self.mirror.ready.get(future_id, {}), **self.mirror.assigned.get(future_id, {})}
        expected: dict[bytes, bytes] = {}
        if isinstance(row, Unclaimed):
            expected = {edges.ready_key(self.keys, spec, row): edges.ready_value(spec, row.tally)}
            lane = lanes.lane_of(spec.queue, spec.priority, edges.needs_of(spec, row.tally))
            if not row.assigned and self.keys.lane[lane.key] not in self.mirror.lanes:
                wrong.append(f"its lane {lane} is not in the directory")
        if places != expected:
            keys = [unpack(place) for place in places]
            wrong.append(f"is {row.state.value} and its places are {keys} (FUT-15, FUT-16)")
        holders = {row.holder} if isinstance(row, Claimed) else set()
        if self.mirror.own.get(future_id, set()) != holders:
            wrong.append(
                f"is {row.state.value} and owned by {self.mirror.own.get(future_id)}, not {holders} (FUT-16)"
            )
        if (future_id in self.mirror.stranded) != isinstance(row, Unsatisfiable):
            wrong.append(f"is {row.state.value}, and its stranded row says otherwise")
        return wrong

    def _inputs(self, future_id: bytes, row: AnyRow, spec: Spec) -> list[str]:
        if row.state in ENDED:
            return []
        wrong = []
        marks = self.mirror.inputs.get(future_id, {})
        awaited = set(row.extra) - set(spec.inputs) if isinstance(row, Blocked) else set()
        waiting = sum(marks.get(upstream_id) == WAITING for upstream_id in {*spec.inputs, *awaited})
        if isinstance(row, Blocked) and (row.waits_on != waiting or waiting < 1):
            wrong.append(f"waits_on is {row.waits_on}, and {waiting} inputs are marked as missing (FUT-15)")
        if not isinstance(row, Blocked) and waiting:
            wrong.append(f"is {row.state.value} while {waiting} inputs are marked as missing (FUT-15)")
        for upstream in {*spec.inputs, *awaited}:
            wrong += self._input(future_id, row, upstream, marks.get(upstream), upstream in awaited)
        return wrong

    def _input(
        self, future_id: bytes, row: AnyRow, upstream: bytes, mark: bytes | None, awaited: bool
    ) -> list[str]:
        name, state = upstream.hex(), self.mirror.futures.get(upstream)
        if mark is None:
            return [] if awaited else [f"does not hang on its input {name}"]
        if state is None:
            return [] if awaited else [f"its input {name} is gone (FUT-61)"]
        if isinstance(row, Claimed):
            return []  # it runs on the inputs of its claim
        satisfied = state.state in ENDED if awaited else isinstance(state, Realized)
        broken = state.state in ENDED and not satisfied
        in_step = not broken and mark == (SERVED if satisfied else WAITING)
        if awaited or isinstance(row, Unsatisfiable):
            in_step = in_step or mark == SERVED  # checked again when it runs
        position = self.mirror.cursors.get(upstream)
        under_way = position is not None and position < self.keys.dep[upstream, future_id]
        if in_step or under_way:
            return []
        return [f"is {row.state.value} with {mark!r} for {name}, which is {state.state.value} (FUT-15)"]

    def _counts(self, row: AnyRow, spec: Spec) -> list[str]:
        tally = row.tally
        spent = {
            "exception": tally.exceptions >= spec.max_retries + 1,
            "oom": tally.ooms >= MOST_OOMS,
            "deserialize": tally.strange >= MOST_STRANGE,
        }
        kind = row.kind if isinstance(row, Failed) else ""
        wrong = [
            f"is {row.state.value} {kind} with {name}s spent (FUT-8)"
            for name, over in spent.items()
            if over != (name == kind)
        ]
        poisoned = tally.crashes >= MOST_CRASHES or tally.reaps >= MOST_REAPS
        if poisoned != isinstance(row, Quarantined):
            wrong.append(
                f"is {row.state.value} after {tally.crashes} crashes and {tally.reaps} reaps (FUT-53)"
            )
        return wrong

    def _result(self, future_id: bytes, row: AnyRow) -> list[str]:
        copies = self.mirror.copies.get(future_id, {})
        if not isinstance(row, Realized):
            return [f"is {row.state.value} and has copies (FUT-18)"] if copies else []
        location = row.result.location
        wrong = []
        if location.kind in ("segment", "object"):
            if location.node not in copies:
                wrong.append(f"its latest result is at {location.node!r}, its copies at {sorted(copies)}")
            if any(copy.version != row.result.version for copy in copies.values()):
                wrong.append("has a copy of another version (FUT-63)")
        elif copies:
            wrong.append(f"its result is {location.kind}, and it has copies")
        actor = self.mirror.actors.get(future_id)
        if location.kind == "actor" and (
            actor is None
            or actor.state is not ActorState.ALIVE
            or (actor.node, future_id) not in self.mirror.hosted
        ):
            wrong.append("is an actor without a host (FUT-47)")
        return wrong

    def shared(self) -> list[str]:
        """Return violations that concern no single future."""
        counted: dict[str, int] = defaultdict(int)
        for future_id, row in self.mirror.futures.items():
            if isinstance(row, Claimed) and row.limited and future_id in self.mirror.specs:
                counted[self.mirror.specs[future_id].queue] += 1
        wrong = [
            f"queue {queue!r} counts {count} running, and {counted[queue]} are (FUT-57)"
            for queue, count in self.mirror.running.items()
            if count != counted[queue]
        ]
        wrong += [
            f"actor {actor_id.hex()} is hosted by {node} and dead (FUT-47)"
            for node, actor_id in self.mirror.hosted
            if actor_id not in self.mirror.actors
            or self.mirror.actors[actor_id].state is not ActorState.ALIVE
        ]
        return wrong
