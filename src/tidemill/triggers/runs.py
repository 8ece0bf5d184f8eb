"""Runs: the lease on a scheduled subscription, from start to finish (HEAP-7, HEAP-8).

The lease of a run lasts as long as its node is in the node list, so a node renews all its runs with one
write. During a run, the index by time lists the subscription at the time when the node's entry would expire.
At that time, a scheduler calls `end_if_lost`. If the node is gone, this function ends the run; otherwise it
moves the subscription to a later time in the index. No leader is needed.
"""

import zlib
from collections.abc import Mapping

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, UsageError
from tidemill.lots import events
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.due import Next, Now
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionEdge
from tidemill.triggers.subscriptions import AnyRow, Run, Scheduled, Waiting
from tidemill.triggers.terms import AfterGrace

MAX_WHY_CHARS = 500

MOST_DEATHS = 10
"""A subscription is dead after this many runs in a row whose nodes died. A part that kills its nodes is
quarantined after the same number of deaths. Usually this happens before its arc is dead, because the arc
pauses longer after each death."""

LEAST_DEATHS = 3
"""Fewer deaths than this never make a subscription dead: nodes also die for other reasons."""


class Due(msgspec.Struct, frozen=True):
    """A subscription to start, or, if it is running, to check."""

    name: str
    epoch: int
    running: bool


class Ticket(msgspec.Struct, frozen=True):
    """The right to act as a run. The run processes positions after `progress`, at most up to `heads`."""

    name: str
    epoch: int
    fence: int
    node: Node
    progress: dict[DatasetId, int]
    heads: dict[DatasetId, int]


def due_page(tx: Tx, keys: TriggerKeys, after: bytes, limit: int) -> tuple[list[Due], bytes]:
    """Return a page of due subscriptions, oldest first, and where the next page begins.

    The second value is empty after the last page.
    """
    lo, _ = keys.due.all()
    page = tx.range(after + b"\x00" if after else lo, keys.due[(tx.now() + 1,)], limit=limit, snapshot=True)
    due = []
    for row in page:
        epoch, running = msgspec.msgpack.decode(row.value, type=tuple[int, bool])
        due.append(Due(str(keys.due.unpack(row.key)[1]), epoch, running))
    return due, page[-1].key if len(page) == limit else b""


def start(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, cluster: ClusterKeys, node: Node, name: str, epoch: int
) -> Ticket | None:
    """Begin a run under the next fence; return None if it cannot start.

    It cannot start if the row is not scheduled under this epoch, is not due, or is running: another node may
    have been faster, which is not an error.

    This function decides again, with the current heads. If there is nothing to process, the subscription
    waits. If its inputs are not quiet yet, it is postponed; so a burst of writes sets one new time, and not
    one for each write. If its barrier skips, its progress advances. In these three cases no run starts
    either.
    """
    entry = nodes.check(tx, cluster, node)
    row = subscriptions.read(tx, keys, name)
    now = tx.now()
    if not isinstance(row, Scheduled) or not startable(row, epoch, now):
        return None
    heads = events.heads(tx, lots, row.tally.terms.sources)
    following = subscriptions.decide(tx, lots, row.tally, heads, starting=True)
    if not isinstance(following, Now) or _skips(row, heads):
        _postpone(tx, keys, lots, name, row, following, heads)
        return None
    tally = msgspec.structs.replace(row.tally, fence=row.tally.fence + 1, last_start=now)
    run = Run(node.id, node.epoch, entry.expires_at)
    new = Scheduled(tally, row.next_run, run=run)
    subscriptions.transition(tx, keys, name, row, [SubscriptionEdge.START], new)
    return Ticket(name, epoch, tally.fence, node, tally.seen, heads)


def startable(row: Scheduled, epoch: int, now: int) -> bool:
    """Return whether a run can start (HEAP-7)."""
    return (
        row.tally.epoch == epoch
        and row.run is None
        and row.next_run <= now
        and row.tally.ready
        and not row.tally.parked
    )


def _skips(row: Scheduled, heads: Mapping[DatasetId, int]) -> bool:
    """Return whether the barrier skips: its grace period is over, and an input has nothing new."""
    terms = row.tally.terms
    if not terms.barrier or terms.after_grace is not AfterGrace.SKIP:
        return False
    return any(heads[source] <= position for source, position in row.tally.seen.items())


def _postpone(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    row: Scheduled,
    following: Next,
    heads: Mapping[DatasetId, int],
) -> None:
    """Start no run, and write the row under a new epoch.

    The subscription waits, gets a later time, or skips the positions that its barrier held back.
    """
    tally = msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1)
    edges = [SubscriptionEdge.POSTPONE]
    if isinstance(following, Now):
        progress = tuple(max(heads[source], position) for source, position in row.tally.seen.items())
        tally = msgspec.structs.replace(tally, progress=progress, skipped=tally.skipped + 1)
        following, edges = subscriptions.decide(tx, lots, tally, heads), [SubscriptionEdge.SKIP]
    new = subscriptions.next_row(tx, tally, following)
    if isinstance(new, Waiting):
        edges.append(SubscriptionEdge.REST)
    subscriptions.transition(tx, keys, name, row, edges, new)


def check(tx: Tx, keys: TriggerKeys, cluster: ClusterKeys, ticket: Ticket) -> Scheduled:
    """Check the fence and return the row; raise `LeaseLost` unless the ticket is current."""
    nodes.check(tx, cluster, ticket.node)
    row = subscriptions.read(tx, keys, ticket.name)
    if (
        not isinstance(row, Scheduled)
        or row.run is None
        or (row.tally.epoch, row.tally.fence) != (ticket.epoch, ticket.fence)
        or (row.run.node, row.run.node_epoch) != (ticket.node.id, ticket.node.epoch)
    ):
        raise LeaseLost(
            f"this process no longer holds the ticket of {ticket.name}"
            f" (epoch {ticket.epoch}, run {ticket.fence}); another run takes over its work"
        )
    return row


def finish(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    cluster: ClusterKeys,
    ticket: Ticket,
    target: Mapping[DatasetId, int],
) -> AnyRow:
    """End a run that processed everything up to `target`, in one fenced update (HEAP-8).

    This transaction also decides when the next run starts, from the heads that it reads. A publication since
    the start is either seen here, or wakes the subscription afterwards.
    """
    row = check(tx, keys, cluster, ticket)
    heads = events.heads(tx, lots, row.tally.terms.sources)
    progress = []
    for source, position in row.tally.seen.items():
        reached = target.get(source, position)
        if not position <= reached <= heads[source]:
            raise UsageError(
                f"{ticket.name} cannot move from position {position} to {reached} in {source}",
                hint=f"use a position from {position} to {heads[source]}",
            )
        progress.append(reached)
    _pass_gate(row, ticket, progress)
    tally = msgspec.structs.replace(
        row.tally,
        epoch=row.tally.epoch + 1,
        progress=tuple(progress),
        failures=0,
        deaths=0,
        why="",
        dead=False,
    )
    new = subscriptions.next_row(tx, tally, subscriptions.decide(tx, lots, tally, heads))
    edge = SubscriptionEdge.REST if isinstance(new, Waiting) else SubscriptionEdge.AGAIN
    return subscriptions.transition(tx, keys, ticket.name, row, [edge], new)


def _pass_gate(row: Scheduled, ticket: Ticket, progress: list[int]) -> None:
    """Mark the gate as seen if the run processed everything that existed when the run started.

    Otherwise the next run follows at once.
    """
    gate, sources = row.tally.terms.gate, row.tally.terms.sources
    if gate is None:
        return
    reached = dict(zip(sources, progress, strict=True))
    if all(reached[source] >= ticket.heads[source] for source in sources if source != gate):
        index = sources.index(gate)
        progress[index] = max(progress[index], ticket.heads[gate])


def fail(
    tx: Tx,
    keys: TriggerKeys,
    cluster: ClusterKeys,
    ticket: Ticket,
    *,
    backoff_us: int | None = None,
    counted: bool = True,
    jitter: float = 1.0,
    why: str = "",
) -> AnyRow:
    """End a failed run: its progress does not change, and it is retried after the backoff.

    After as many failures as its terms allow, the subscription is dead: it stays scheduled and is still
    woken, but does not run until `retry` (HEAP-15).

    - backoff_us: the backoff; by default it follows from the terms and the number of failures.
    - counted: False for a run that could not begin because other runs occupy its capacity.
    - jitter: a random number from 0 to 1; it decides half of the default backoff.
    - why: a short description of the error.
    """
    row = check(tx, keys, cluster, ticket)
    terms, failures = row.tally.terms, row.tally.failures + counted
    tally = msgspec.structs.replace(
        row.tally,
        epoch=row.tally.epoch + 1,
        failures=failures,
        why=why[:MAX_WHY_CHARS] if why else row.tally.why,
        dead=row.tally.dead or bool(counted and terms.most_failures and failures >= terms.most_failures),
    )
    wait_us = terms.backoff(max(1, failures), jitter) if backoff_us is None else backoff_us
    new = Scheduled(tally, subscriptions.earliest(tally, tx.now() + wait_us))
    return subscriptions.transition(tx, keys, ticket.name, row, [SubscriptionEdge.FAIL], new)


def end_if_lost(tx: Tx, keys: TriggerKeys, cluster: ClusterKeys, name: str, epoch: int) -> Scheduled | None:
    """End a run whose node is gone, and return the new row; otherwise postpone the next check of the run."""
    row = subscriptions.read(tx, keys, name)
    if not isinstance(row, Scheduled) or row.run is None or row.tally.epoch != epoch:
        return None
    entry = nodes.read(tx, cluster, row.run.node)
    now = tx.now()
    if entry is not None and entry.epoch == row.run.node_epoch and entry.expires_at > now:
        run = msgspec.structs.replace(row.run, look_at=entry.expires_at)
        subscriptions.write(tx, keys, name, row, msgspec.structs.replace(row, run=run))
        return None
    return _end_lost(tx, keys, name, row, row.run)


def end_earlier_runs(
    tx: Tx, keys: TriggerKeys, cluster: ClusterKeys, node: Node, *, after: bytes = b"", limit: int = 100
) -> tuple[dict[str, Scheduled], bytes]:
    """End runs that this node began before it was restarted, among one page of scheduled subscriptions.

    A node that starts again has a higher epoch, so its earlier runs cannot finish. Without this function,
    they would end only when the old entry would have expired. Returns the new rows of the ended runs, by
    name, and where the next page begins; empty after the last page.
    """
    nodes.check(tx, cluster, node)
    lo, hi = keys.due.all()
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    ended: dict[str, Scheduled] = {}
    for entry in page:
        if not msgspec.msgpack.decode(entry.value, type=tuple[int, bool])[1]:
            continue
        name = str(keys.due.unpack(entry.key)[1])
        row = subscriptions.read(tx, keys, name)
        if not isinstance(row, Scheduled) or row.run is None:
            continue
        if row.run.node == node.id and row.run.node_epoch < node.epoch:
            ended[name] = _end_lost(tx, keys, name, row, row.run)
    return ended, page[-1].key if len(page) == limit else b""


def _end_lost(tx: Tx, keys: TriggerKeys, name: str, row: Scheduled, run: Run) -> Scheduled:
    """End the run of a dead node. This counts as a failure: the run may have killed the node (HEAP-15).

    The first retry starts at once, since most nodes die for other reasons. Later retries follow after the
    backoff. Runs that died together get different pauses, so that the harmless runs can finish.
    """
    terms, deaths, failures = row.tally.terms, row.tally.deaths + 1, row.tally.failures + 1
    too_often = bool(terms.most_failures) and failures >= terms.most_failures and deaths >= LEAST_DEATHS
    tally = msgspec.structs.replace(
        row.tally,
        epoch=row.tally.epoch + 1,
        failures=failures,
        deaths=deaths,
        why=f"its node {run.node[:40]} died or lost its lease during the run ({deaths} times in a row)",
        dead=row.tally.dead or too_often or deaths >= MOST_DEATHS,
    )
    jitter = zlib.crc32(f"{name} {row.tally.fence}".encode()) / 2**32
    wait_us = terms.backoff(deaths - 1, jitter) if deaths > 1 else 0
    new = Scheduled(tally, subscriptions.earliest(tally, tx.now() + wait_us))
    subscriptions.transition(tx, keys, name, row, [SubscriptionEdge.LAPSE], new)
    return new
