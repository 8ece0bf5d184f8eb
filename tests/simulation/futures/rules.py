"""Check what every commit does to futures, from the stored rows alone."""

from typing import TYPE_CHECKING

import msgspec

from tests.futures_invariants import judge, scan_rows
from tests.futures_mirror import Mirror
from tests.simulation.futures.plan import PlannedCall
from tests.simulation.store import RecordedCommit
from tests.simulation.world import Act, Rule, Violation
from tidemill.cluster import nodes
from tidemill.futures.protocol.results import MOST_REBUILDS
from tidemill.futures.protocol.retries import MOST_CRASHES, MOST_REAPS
from tidemill.futures.protocol.rows import (
    AnyRow,
    Cancelled,
    Claimed,
    Failed,
    Quarantined,
    Realized,
    decode_row,
)
from tidemill.futures.protocol.states import ENDED

if TYPE_CHECKING:
    from tests.simulation.futures.scenario import FutureWork

BROKEN = (Failed, Cancelled, Quarantined)


class FutureRules(Rule):
    """Check the invariants of futures, the fences of claims, the values and the planned ends."""

    def __init__(self, work: "FutureWork") -> None:
        self.work = work
        self.mirror = Mirror(work.keys)
        self.prefixes = tuple(self.mirror._followed)
        self.values = work.plan.values()
        self.ids: dict[str, bytes] = {}
        self.ended: set[str] = set()
        self._made: set[tuple[bytes, int]] = set()  # (id, generation)
        self._future = work.keys.future.prefix
        self._spec = work.keys.spec.prefix

    def commit(self, commit: RecordedCommit) -> None:
        before = {
            change.key: decode_row(change.old)
            for change in commit.changes
            if change.old is not None and change.key.startswith(self._future)
        }
        touched = self.mirror.apply((change.key, change.new) for change in commit.changes)
        for change in commit.changes:
            if change.key.startswith(self._spec):
                self._judge_spec(change.key)
        for change in commit.changes:
            if change.key.startswith(self._future):
                self._judge_step(commit, change.key, before.get(change.key))
        wrong = judge(self.mirror, touched)
        if wrong:
            raise Violation("; ".join(wrong))

    def _judge_spec(self, key: bytes) -> None:
        (future_id,) = self.work.keys.spec.unpack(key)
        assert isinstance(future_id, bytes)
        spec = self.mirror.specs.get(future_id)
        if spec is None:
            raise Violation(f"{future_id.hex()} was deleted while its clients want it")
        if self.ids.setdefault(spec.name, future_id) != future_id:
            raise Violation(f"{spec.name} has a second id (FUT-14)")

    def _judge_step(self, commit: RecordedCommit, key: bytes, old: AnyRow | None) -> None:
        (future_id,) = self.work.keys.future.unpack(key)
        assert isinstance(future_id, bytes)
        new = self.mirror.futures.get(future_id)
        spec = self.mirror.specs.get(future_id)
        if new is None or spec is None:
            raise Violation(f"{future_id.hex()} has lost its rows")
        if new.state in ENDED:
            self.ended.add(spec.name)
        else:
            self.ended.discard(spec.name)
        if isinstance(new, Claimed) and not isinstance(old, Claimed):
            self._judge_claimant(commit, spec.name, new, "claimed")
        elif isinstance(old, Claimed) and not isinstance(new, Claimed):
            has_verdict = (new.tally.exceptions, new.tally.crashes) != (
                old.tally.exceptions,
                old.tally.crashes,
            )
            if isinstance(new, Realized) or has_verdict:
                self._judge_claimant(commit, spec.name, old, new.state.value)
            else:
                self._judge_return(commit, spec.name, old)
        elif isinstance(old, Realized) and not isinstance(new, Realized):
            self._judge_loss(commit, spec.name, old)
        if isinstance(new, Realized):
            self._judge_result(future_id, spec.name, old, new)

    def _judge_claimant(self, commit: RecordedCommit, name: str, claim: Claimed, outcome: str) -> None:
        """Check that only the holder, under the epoch of its claim, reports an outcome (FUT-55)."""
        if commit.node is None or claim.holder not in commit.node.tokens:
            raise Violation(f"{name} was {outcome} by one who does not hold it (FUT-13)")
        raw = commit.before(self.work.cluster.node[claim.holder])
        entry = nodes.decode(raw) if raw is not None else None
        if entry is None or entry.epoch != claim.node_epoch or entry.expires_at <= commit.now_us:
            raise Violation(f"{name} was {outcome} by {commit.node.name} in a life that is over (FUT-55)")

    def _judge_return(self, commit: RecordedCommit, name: str, claim: Claimed) -> None:
        """Check that a claim without outcome was ended by its holder, or after the holder died (FUT-17)."""
        if commit.node is not None and claim.holder in commit.node.tokens:
            return
        raw = commit.before(self.work.cluster.node[claim.holder])
        entry = nodes.decode(raw) if raw is not None else None
        if entry is None or entry.epoch != claim.node_epoch or entry.expires_at <= commit.now_us:
            return
        if commit.node is None or entry.address != f"m{commit.node.machine}":
            raise Violation(f"{name} was taken from a node whose lease runs (FUT-17)")

    def _judge_loss(self, commit: RecordedCommit, name: str, old: Realized) -> None:
        """Check that a result is computed again only if it was lost with its process or node (FUT-63)."""
        raw = commit.before(self.work.cluster.node[old.result.location.node])
        alive = raw is not None and nodes.decode(raw).expires_at > commit.now_us
        if alive and not self.work.is_lost(old.result):
            raise Violation(f"the result of {name} is computed again, and it is there (FUT-63)")

    def _judge_result(self, future_id: bytes, name: str, old: AnyRow | None, new: Realized) -> None:
        value = msgspec.msgpack.decode(new.result.head, type=int)
        if value != self.values[name]:
            raise Violation(f"{name} is {value}, not {self.values[name]}")
        if isinstance(old, Realized):
            return
        if not isinstance(old, Claimed) or new.result.version != old.tally.epoch:
            raise Violation(f"{name} was realised under epoch {new.result.version}, not its claim's (FUT-13)")
        generation = future_id, new.tally.rebuilds
        if generation in self._made:
            raise Violation(f"{name} was realised twice in generation {new.tally.rebuilds}")
        self._made.add(generation)

    def act(self, act: Act) -> None:
        """Do nothing: futures have no acts."""

    # --- the end

    def end(self, rows: dict[bytes, bytes]) -> None:
        wrong = judge(self.mirror) + scan_rows(rows, self.work.keys)
        calls = self.work.calls
        wrong += [f"{name} was never submitted" for name in calls if name not in self.ids]
        for name, future_id in self.ids.items():
            row = self.mirror.futures[future_id]
            if not self._is_planned(calls[name], row):
                kind = self.mirror.errors.get(future_id, "")
                wrong.append(f"{name} is {row.state.value} {kind}, which was not planned")
        if wrong:
            raise Violation("; ".join(wrong))

    def _is_planned(self, call: PlannedCall, row: AnyRow) -> bool:
        fails = call.raises > call.max_retries
        match row:
            case Realized():
                return not fails and call.crashes < MOST_CRASHES and call.kills < MOST_REAPS
            case Cancelled():
                return call.cancel_after_s >= 0
            case Quarantined():
                return call.crashes >= MOST_CRASHES or row.tally.reaps >= MOST_REAPS
            case Failed(kind="exception"):
                return fails
            case Failed(kind="deadline"):
                return call.deadline_s > 0
            case Failed(kind="upstream"):
                return self._has_broken_input(call)
            case Failed(kind="lost"):
                return row.tally.rebuilds > MOST_REBUILDS or self._has_broken_input(call)
        return False

    def _has_broken_input(self, call: PlannedCall) -> bool:
        return any(isinstance(self.mirror.futures[self.ids[name]], BROKEN) for name in call.inputs)
