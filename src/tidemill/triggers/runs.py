"""Runs: the lease on a scheduled subscription, from start to finish (HEAP-7, HEAP-8).

A run lives as long as its node's entry in the node list: one write per beat keeps all runs of a node. While
it runs, the subscription stands in the index at the time when its node's entry would run out; whoever finds
it there calls `look`, which moves it on, or ends a run whose node is gone. No leader is needed.
"""

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

MOST_WHY = 500  # characters of what went wrong


class Due(msgspec.Struct, frozen=True):
    """Somebody has to look at a subscription: to start it, or, if it runs, to see whether it still does."""

    name: str
    epoch: int
    running: bool


class Ticket(msgspec.Struct, frozen=True):
    """A run's right to act. It processes what lies behind `progress`, up to `heads` at most."""

    name: str
    epoch: int
    fence: int
    node: Node
    progress: dict[DatasetId, int]
    heads: dict[DatasetId, int]


def due(tx: Tx, keys: TriggerKeys, limit: int = 100) -> list[Due]:
    """Those whose time has come, longest ago first: one short range of the index."""
    return due_page(tx, keys, b"", limit)[0]


def due_page(tx: Tx, keys: TriggerKeys, after: bytes, limit: int) -> tuple[list[Due], bytes]:
    """A page of those whose time has come, and where the next one begins; empty at the end."""
    lo, _ = keys.due.all()
    page = tx.range(after + b"\x00" if after else lo, keys.due[(tx.now() + 1,)], limit=limit, snapshot=True)
    found = []
    for row in page:
        epoch, running = msgspec.msgpack.decode(row.value, type=tuple[int, bool])
        found.append(Due(str(keys.due.unpack(row.key)[1]), epoch, running))
    return found, page[-1].key if len(page) == limit else b""


def start(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, cluster: ClusterKeys, node: Node, name: str, epoch: int
) -> Ticket | None:
    """Begin a run under the next fence; None unless the row is scheduled under this epoch, its time has come,
    and nobody runs it. Others may have been faster: that is no error.

    What there is to do is decided once more, by the heads as they are now. One that has nothing to do goes to
    rest, one whose sources are not quiet yet is postponed (a burst of writes costs one new time, not one for
    each), and a barrier that is to skip moves on: then there is no run either.
    """
    entry = nodes.check(tx, cluster, node)
    row = subscriptions.read(tx, keys, name)
    now = tx.now()
    if not isinstance(row, Scheduled) or not startable(row, epoch, now):
        return None
    heads = events.heads(tx, lots, row.tally.terms.sources)
    following = subscriptions.decide(tx, lots, row.tally, heads, starting=True)
    if not isinstance(following, Now) or _skips(row, heads):
        _put_off(tx, keys, lots, name, row, following, heads)
        return None
    tally = msgspec.structs.replace(row.tally, fence=row.tally.fence + 1, last_start=now)
    run = Run(node.id, node.epoch, entry.expires_at)
    new = Scheduled(tally, row.next_run, run=run)
    subscriptions.enter(tx, keys, name, row, [SubscriptionEdge.START], new)
    return Ticket(name, epoch, tally.fence, node, tally.seen, heads)


def startable(row: Scheduled, epoch: int, now: int) -> bool:
    """The guard of a start (HEAP-7), asked by whoever chooses what to start as well."""
    return (
        row.tally.epoch == epoch
        and row.run is None
        and row.next_run <= now
        and row.tally.ready
        and not row.tally.parked
    )


def _skips(row: Scheduled, heads: Mapping[DatasetId, int]) -> bool:
    """Whether it is a barrier whose grace is over, with a source that has nothing, that is to skip then."""
    terms = row.tally.terms
    if not terms.barrier or terms.after_grace is not AfterGrace.SKIP:
        return False
    return any(heads[source] <= position for source, position in row.tally.seen.items())


def _put_off(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    row: Scheduled,
    following: Next,
    heads: Mapping[DatasetId, int],
) -> None:
    """There is no run now: rest, a later time, or on behind what waited at a barrier; under a new epoch."""
    tally = msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1)
    edges = [SubscriptionEdge.POSTPONE]
    if isinstance(following, Now):
        progress = tuple(max(heads[one], position) for one, position in row.tally.seen.items())
        tally = msgspec.structs.replace(tally, progress=progress, skipped=tally.skipped + 1)
        following, edges = subscriptions.decide(tx, lots, tally, heads), [SubscriptionEdge.SKIP]
    new = subscriptions.settled(tx, tally, following)
    if isinstance(new, Waiting):
        edges.append(SubscriptionEdge.REST)
    subscriptions.enter(tx, keys, name, row, edges, new)


def check(tx: Tx, keys: TriggerKeys, cluster: ClusterKeys, ticket: Ticket) -> Scheduled:
    """The fence: `LeaseLost` unless the run is ours at this moment. Returns the row."""
    nodes.check(tx, cluster, ticket.node)
    row = subscriptions.read(tx, keys, ticket.name)
    if (
        not isinstance(row, Scheduled)
        or row.run is None
        or (row.tally.epoch, row.tally.fence) != (ticket.epoch, ticket.fence)
        or (row.run.node, row.run.node_epoch) != (ticket.node.id, ticket.node.epoch)
    ):
        raise LeaseLost(f"run {ticket.epoch}/{ticket.fence} of {ticket.name} is over")
    return row


def finish(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    cluster: ClusterKeys,
    ticket: Ticket,
    target: Mapping[DatasetId, int],
) -> AnyRow:
    """End a run that processed everything up to `target`: one guarded update (HEAP-8).

    What is next is decided in this transaction, by the heads as it sees them: a publication since the start
    either is seen here, or its waking comes after.
    """
    row = check(tx, keys, cluster, ticket)
    heads = events.heads(tx, lots, row.tally.terms.sources)
    progress = []
    for source, position in row.tally.seen.items():
        reached = target.get(source, position)
        if not position <= reached <= heads[source]:
            raise UsageError(
                f"{ticket.name} cannot go from {position} to {reached} of {source}, at {heads[source]} now",
                hint="progress only grows, up to what was published",
            )
        progress.append(reached)
    _pass_gate(row, ticket, progress)
    tally = msgspec.structs.replace(
        row.tally, epoch=row.tally.epoch + 1, progress=tuple(progress), failures=0, why="", dead=False
    )
    new = subscriptions.settled(tx, tally, subscriptions.decide(tx, lots, tally, heads))
    edge = SubscriptionEdge.REST if isinstance(new, Waiting) else SubscriptionEdge.AGAIN
    return subscriptions.enter(tx, keys, ticket.name, row, [edge], new)


def _pass_gate(row: Scheduled, ticket: Ticket, progress: list[int]) -> None:
    """What opened its gate counts as seen when all is that was there then; a run that ended before that goes
    on at once.
    """
    gate, sources = row.tally.terms.gate, row.tally.terms.sources
    if gate is None:
        return
    reached = dict(zip(sources, progress, strict=True))
    if all(reached[one] >= ticket.heads[one] for one in sources if one != gate):
        at = sources.index(gate)
        progress[at] = max(progress[at], ticket.heads[gate])


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
    """End a run that failed: nothing counts as processed, and it is tried again after the backoff.

    After as many failures as its terms allow it is dead: it stays scheduled, keeps what wakes it, and nobody
    runs it until somebody says `retry` (HEAP-15).

    - backoff_us: how long; by its terms and the number of its failures if left out.
    - counted: no for one that could not begin, because somebody else has the turn.
    - jitter: from 0 to 1, drawn by the caller: half of a backoff by the terms is left to it.
    - why: what went wrong, in a few words.
    """
    row = check(tx, keys, cluster, ticket)
    terms, failures = row.tally.terms, row.tally.failures + counted
    tally = msgspec.structs.replace(
        row.tally,
        epoch=row.tally.epoch + 1,
        failures=failures,
        why=why[:MOST_WHY] if why else row.tally.why,
        dead=row.tally.dead or bool(counted and terms.most_failures and failures >= terms.most_failures),
    )
    wait_us = terms.backoff(max(1, failures), jitter) if backoff_us is None else backoff_us
    new = Scheduled(tally, subscriptions.earliest(tally, tx.now() + wait_us))
    return subscriptions.enter(tx, keys, ticket.name, row, [SubscriptionEdge.FAIL], new)


def look(tx: Tx, keys: TriggerKeys, cluster: ClusterKeys, name: str, epoch: int) -> bool:
    """See whether a run that stands in the index is still alive. True when it was ended: its node is gone."""
    row = subscriptions.read(tx, keys, name)
    if not isinstance(row, Scheduled) or row.run is None or row.tally.epoch != epoch:
        return False
    entry = nodes.read(tx, cluster, row.run.node)
    now = tx.now()
    if entry is not None and entry.epoch == row.run.node_epoch and entry.expires_at > now:
        run = msgspec.structs.replace(row.run, look_at=entry.expires_at)
        subscriptions.place(tx, keys, name, row, msgspec.structs.replace(row, run=run))
        return False
    _lapse(tx, keys, name, row)
    return True


def lapse(
    tx: Tx, keys: TriggerKeys, cluster: ClusterKeys, node: Node, *, after: bytes = b"", limit: int = 100
) -> tuple[list[str], bytes]:
    """End the runs that earlier lives of this node left, of a page of those that are scheduled.

    Whoever joins under a node's id has raised its epoch, so those runs can finish nothing any more; without
    this they would be found when the node's entry would have run out. Returns the names of what was ended and
    where the next page begins, empty after the last.
    """
    nodes.check(tx, cluster, node)
    lo, hi = keys.due.all()
    found = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    ended = []
    for index in found:
        if not msgspec.msgpack.decode(index.value, type=tuple[int, bool])[1]:
            continue
        name = str(keys.due.unpack(index.key)[1])
        row = subscriptions.read(tx, keys, name)
        if not isinstance(row, Scheduled) or row.run is None:
            continue
        if row.run.node == node.id and row.run.node_epoch < node.epoch:
            _lapse(tx, keys, name, row)
            ended.append(name)
    return ended, found[-1].key if len(found) == limit else b""


def _lapse(tx: Tx, keys: TriggerKeys, name: str, row: Scheduled) -> None:
    tally = msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1)
    new = Scheduled(tally, subscriptions.earliest(tally, tx.now()))
    subscriptions.enter(tx, keys, name, row, [SubscriptionEdge.LAPSE], new)
