"""Record what holders write under their leases, in the order of the commits, in the store.

A writer appends a `Mark` in the same transaction that it fences. The rule checks each mark against the rows
just before that commit, and does not trust the code under test. A mark also has a number that is new with
every call of `store.run`: the same number twice means that a commit took effect twice, and a number whose
call reported a failure means that a commit which was declared dead took effect.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.store import RecordedCommit
from tests.simulation.world import Act, Rule, Violation
from tidemill.cluster import leases, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.store import Space, Tx

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """One write under a lease."""

    lease: bytes  # the key of the lease or partition that fences it
    epoch: int
    node: str
    call: int  # the number of the call of `store.run`
    subject: str = ""  # the work; marks of one subject are its steps
    step: int = 0
    steps: int = 0  # the number of steps


class HeldRow(msgspec.Struct, frozen=True):
    """The holder of a lease or partition: who may write now, and until when."""

    holder: str
    epoch: int
    expires_at: int


class History(Rule):
    """Check writes and acts: current epochs only, no write twice, steps in order, acts of holders only."""

    def __init__(self, keys: ClusterKeys) -> None:
        self.keys = keys
        self.space = Space(keys.cluster, "history")
        self.prefixes = (self.space.prefix, keys.part.prefix, keys.lease.prefix)
        self.calls = 0
        self.steps: dict[str, int] = {}
        self._marks = 0
        self._made: set[int] = set()
        self._refused: set[int] = set()
        self._acted: dict[bytes, int] = {}
        self._now: dict[bytes, HeldRow] = {}

    # --- for the workloads

    def call(self) -> int:
        """Return the number of a new call of `store.run`."""
        self.calls += 1
        return self.calls

    def append(self, tx: Tx, mark: Mark) -> None:
        tx.set_versioned(self.space.prefix, msgspec.msgpack.encode(mark))

    def refused(self, call: int) -> None:
        """Check that a call which reported a failure wrote nothing, now and later."""
        if call in self._made:
            raise Violation(f"call {call} got a failure, but its commit took effect")
        self._refused.add(call)

    def kept(self, call: int) -> None:
        """Check that a call which reported success took effect."""
        if call not in self._made:
            raise Violation(f"call {call} got a success, but its commit did not take effect")

    # --- checking

    def _standing(self, key: bytes, raw: bytes) -> HeldRow:
        """Decode the holder from the row of a lease or partition."""
        if key.startswith(self.keys.part.prefix):
            part = partitions.decode(raw)
            return HeldRow(part.holder, part.epoch, part.expires_at)
        lease = leases.decode(raw)
        return HeldRow(lease.holder, lease.epoch, lease.expires_at)

    def commit(self, commit: RecordedCommit) -> None:
        calls = set()
        for change in commit.changes:
            if change.new is None:
                self._now.pop(change.key, None)
            elif change.key.startswith(self.space.prefix):
                mark = msgspec.msgpack.decode(change.new, type=Mark)
                self._marks += 1
                calls.add(mark.call)
                self._judge(mark, commit)
            elif change.key.startswith(self.prefixes):
                self._now[change.key] = self._standing(change.key, change.new)
        if calls & self._made:
            raise Violation(f"call {calls & self._made} is committed twice")
        if calls & self._refused:
            raise Violation(f"call {calls & self._refused} took effect although its caller got a failure")
        self._made |= calls

    def _judge(self, mark: Mark, commit: RecordedCommit) -> None:
        raw = commit.before(mark.lease)
        lease = self._standing(mark.lease, raw) if raw is not None else None
        name = self.keys.part.unpack(mark.lease) if mark.lease.startswith(self.keys.part.prefix) else "lease"
        if lease is None or lease.epoch != mark.epoch:
            now = lease.epoch if lease else None
            raise Violation(f"{mark.node} wrote under epoch {mark.epoch} of {name}, which is at {now}")
        if commit.node is None or lease.holder not in commit.node.tokens:
            raise Violation(f"{mark.node} wrote under epoch {mark.epoch} of {name}, which another holds")
        if lease.expires_at <= commit.now_us:
            raise Violation(f"{mark.node} wrote under epoch {mark.epoch} of {name} after its expiry")
        if mark.subject:
            last = self.steps.get(mark.subject, 0)
            if mark.step != last + 1 or mark.step > mark.steps:
                raise Violation(f"step {mark.step} of {mark.steps} of {mark.subject} came after step {last}")
            self.steps[mark.subject] = mark.step

    def act(self, act: Act) -> None:
        """Check that a node that acts holds the lease at that moment, by the store's time."""
        last = self._acted.get(act.key, 0)
        if act.epoch < last:
            raise Violation(f"{act.node.name} acted under epoch {act.epoch} after an act under epoch {last}")
        self._acted[act.key] = act.epoch
        self.judge_holder(act, "acts")

    def judge_holder(self, act: Act, does: str) -> None:
        """Check that the node is the holder now."""
        lease = self._now.get(act.key)
        if lease is None or lease.epoch != act.epoch or lease.holder not in act.node.tokens:
            raise Violation(f"{act.node.name} {does} under epoch {act.epoch} of a lease that is {lease}")
        if lease.expires_at <= act.now_us:
            late_ms = (act.now_us - lease.expires_at) / 1000
            raise Violation(f"{act.node.name} {does} {late_ms:.1f} ms after its lease expired")

    def end(self, rows: dict[bytes, bytes]) -> None:
        """Check that the store has exactly the committed marks."""
        stored = sum(key.startswith(self.space.prefix) for key in rows)
        if stored != self._marks:
            raise Violation(f"{self._marks} marks were committed, {stored} are in the store")


class Beliefs:
    """Check, each time a process continues, what `check()` would return to its threads now."""

    def __init__(self, history: History) -> None:
        self._history = history

    def judge(self, process: "Process") -> None:
        if process.started:
            now_us = process.world.now_us
            for key, epoch in _beliefs(process):
                self._history.judge_holder(Act(process.node, key, epoch, now_us), "believes to hold")


def _beliefs(process: "Process") -> Iterator[tuple[bytes, int]]:
    for held in process.holdings.held.values():
        if held.alive() and not held.ending:
            yield process.part_keys[held.part.group, held.part.id], held.part.epoch
    tenure = process.member.tenure
    if tenure is not None and tenure.alive():
        yield process.keys.leader, tenure.epoch
    for task in process.host.tasks.values():
        if task.permit is not None and task.permit.alive():
            yield task.permit.key, task.permit.epoch
