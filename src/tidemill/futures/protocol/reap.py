"""Reaping: what dead nodes leave behind goes on elsewhere (FUT-49, FUT-60).

A node is dead when its lease has run out or its entry is gone; then it can write nothing any more, so taking
over is safe whoever does it and however late. The same holds for claims of an earlier epoch of a node that
lost its entry and came back. Found by skipping through the indices by node: `own` (claims), `assigned`,
`hosted` (actors) and `inbox`; the number of steps is the number of nodes, not of futures.

Why no claim is missed: a claim is committed while its node's entry is locked and its lease runs, and the
rounds repeat; a claim that arrives late, after its node's expiry, is found by the next one.
"""

import msgspec

from tidemill.cluster import leases, nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import actors, depend, edges, finish, inbox, lanes, rows, submit
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.retries import MOST_REAPS
from tidemill.futures.protocol.rows import AnyRow, Claimed, Failed, Failure, Quarantined, Spec, Unclaimed
from tidemill.futures.protocol.states import FutureEdge
from tidemill.store import Space, Tx

PAGE = 50
ROOM_WRITES = 300
"""A page of claims ends early when it has written this much: one that must hang on its inputs again may have
hundreds of them."""


class ReapPage(msgspec.Struct, frozen=True):
    """What one transaction did: the futures it moved and what they became; is there more of the same?"""

    moved: list[tuple[bytes, AnyRow]] = []
    more: bool = False


def holders(tx: Tx, space: Space) -> list[str]:
    """The distinct first parts of a space's keys: nodes, clients or lanes that have something there."""
    found: list[str] = []
    lo, hi = space.all()
    while True:
        first = tx.range(lo, hi, limit=1, snapshot=True)
        if not first:
            return found
        name = str(space.unpack(first[0].key)[0])
        found.append(name)
        lo = space.under(name)[1]


def troubled(tx: Tx, keys: FutureKeys, cluster: ClusterKeys) -> list[str]:
    """Nodes that hold something and are dead, or have been lost and came back under a later epoch."""
    listed = {node.id: node for node in nodes.read_all(tx, cluster)}
    names = {
        name for space in (keys.own, keys.assigned, keys.hosted, keys.inbox) for name in holders(tx, space)
    }
    now = tx.now()
    return sorted(name for name in names if not _stands(listed.get(name), now) or listed[name].epoch > 1)


def _stands(node: Node | None, now_us: int) -> bool:
    return node is not None and node.expires_at > now_us


def reap_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, after: bytes = b"", limit: int = PAGE
) -> tuple[ReapPage, bytes]:
    """Take a page of claims from a dead node, or from an earlier epoch of a live one.

    Returns the page and where the next one begins: a live node's claims are walked through, not removed.
    """
    node = nodes.read(tx, cluster, node_id)
    alive_epoch = node.epoch if node is not None and _stands(node, tx.now()) else 0
    lo, hi = keys.own.under(node_id)
    found = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    ids = [one for row in found if isinstance(one := keys.own.unpack(row.key)[1], bytes)]
    moved: list[tuple[bytes, AnyRow]] = []
    done = 0
    for future_id, state in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if tx.writes > ROOM_WRITES:
            break
        if not isinstance(state, Claimed) or state.holder != node_id:
            tx.clear(keys.own[node_id, future_id])  # it says nothing about anything
        elif state.node_epoch != alive_epoch:
            moved.append((future_id, reap(tx, keys, future_id, state)))
        done += 1
    more = done < len(found) or len(found) == limit
    return ReapPage(moved, more), found[done - 1].key if done else after


def reap(tx: Tx, keys: FutureKeys, future_id: bytes, row: Claimed) -> AnyRow:
    """End a dead node's claim: given back and counted; the tenth time it is quarantined."""
    spec = edges.must_read_spec(tx, keys, future_id)
    if row.cancel:
        return finish.give_back(tx, keys, future_id, row)
    if spec.hard:
        return _fail_bound(tx, keys, spec, row, row.holder)
    tally = edges.bump(row.tally, reaps=row.tally.reaps + 1)
    if tally.reaps >= MOST_REAPS:
        message = f"{tally.reaps} nodes died while they held it"
        failure = Failure(kind="reaped", message=message, node=row.holder, at=tx.now())
        new: AnyRow = Quarantined(tally=tally, at=tx.now())
        return depend.end(tx, keys, spec, row, FutureEdge.QUARANTINE, new, failure)
    back = submit.unclaimed(tx, keys, spec, tally)
    return depend.back(tx, keys, spec, row, FutureEdge.RELINQUISH, back)


def _fail_bound(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow, node_id: str) -> AnyRow:
    """What is bound to a node that is gone can never run (FUT-60)."""
    failure = Failure(kind="actor", message=f"node {node_id} is gone", node=node_id, at=tx.now())
    failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="actor")
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)


def bury_page(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, limit: int = 5) -> ReapPage:
    """The actors of a dead node, or of an earlier epoch of a live one, are dead (FUT-47)."""
    node = nodes.read(tx, cluster, node_id)
    alive_epoch = node.epoch if node is not None and _stands(node, tx.now()) else 0
    found = tx.range(*keys.hosted.under(node_id))
    gone = []
    for row in found:
        actor_id = keys.hosted.unpack(row.key)[1]
        assert isinstance(actor_id, bytes)
        actor = actors.read(tx, keys, actor_id)
        if actor is None or actor.node_epoch != alive_epoch:
            gone.append(actor_id)
    moved: list[tuple[bytes, AnyRow]] = []
    for actor_id in gone[:limit]:
        failure = Failure(kind="actor", message=f"node {node_id} is gone", node=node_id, at=tx.now())
        if not actors.died(tx, keys, actor_id, failure):
            tx.clear(keys.hosted[node_id, actor_id])
        row_now = edges.read(tx, keys, actor_id)
        if row_now is not None:
            moved.append((actor_id, row_now))
    return ReapPage(moved, len(gone) > limit)


def reroute_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, limit: int = PAGE
) -> ReapPage:
    """A dead node's assignments: soft ones to the pool, hard ones fail (FUT-60)."""
    node = nodes.read(tx, cluster, node_id)
    if _stands(node, tx.now()):
        return ReapPage()
    found = tx.range(*keys.assigned.under(node_id), limit=limit)
    inbox.clear(tx, keys, node_id)
    moved = _reroute(tx, keys, [_assigned_id(keys, row.key) for row in found], node_id)
    for row in found:
        tx.clear(row.key)
    return ReapPage(moved, len(found) == limit)


def unstick_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, busy_us: int, *, limit: int = PAGE
) -> ReapPage:
    """A live node's soft assignments that it has not got round to go to the pool (FUT-60).

    At once when the node is leaving, or could never run them.
    """
    node = nodes.read(tx, cluster, node_id)
    if node is None or not _stands(node, tx.now()):
        return ReapPage()
    late = tx.now() - (0 if node.draining else busy_us)
    ids: list[bytes] = []
    lo, hi = keys.assigned.under(node_id, edges.SOFT)
    while len(ids) < limit:
        first = tx.range(lo, hi, limit=1, snapshot=True)  # one step per priority
        if not first:
            break
        priority = keys.assigned.unpack(first[0].key)[2]
        within = keys.assigned[node_id, edges.SOFT, priority]
        until = keys.assigned[node_id, edges.SOFT, priority, late]
        ids += [
            _assigned_id(keys, row.key)
            for row in tx.range(within + b"\x00", until, limit=limit - len(ids), snapshot=True)
        ]
        lo = within + b"\xff"
    return ReapPage(_reroute(tx, keys, ids, node_id), len(ids) == limit)


def misfit_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, after: bytes = b"", limit: int = PAGE
) -> tuple[ReapPage, bytes]:
    """Assignments that are larger than their whole node: bound ones fail, others go to the pool.

    Returns the page and where the next one begins; those that fit stay where they are.
    """
    node = nodes.read(tx, cluster, node_id)
    if node is None or not _stands(node, tx.now()):
        return ReapPage(), after
    total = Capacity.of_node(node.total)
    lo, hi = keys.assigned.under(node_id)
    found = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    ids = [
        _assigned_id(keys, row.key)
        for row in found
        if not lanes.fits(rows.decode_ask(row.value).needs, total)
    ]
    moved: list[tuple[bytes, AnyRow]] = []
    for future_id, state in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if isinstance(state, Unclaimed) and state.assigned == node_id:
            moved.append((future_id, _misfit(tx, keys, future_id, state)))
    return ReapPage(moved, len(found) == limit), found[-1].key if found else after


def _misfit(tx: Tx, keys: FutureKeys, future_id: bytes, row: Unclaimed) -> AnyRow:
    spec = edges.must_read_spec(tx, keys, future_id)
    if not row.hard:
        return _to_pool(tx, keys, spec, row)
    message = f"it is bound to node {row.assigned}, which is smaller than what it needs"
    failure = Failure(kind="unsatisfiable", message=message, node=row.assigned, at=tx.now())
    failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="unsatisfiable")
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)


def _assigned_id(keys: FutureKeys, key: bytes) -> bytes:
    future_id = keys.assigned.unpack(key)[4]
    assert isinstance(future_id, bytes)
    return future_id


def _reroute(tx: Tx, keys: FutureKeys, ids: list[bytes], node_id: str) -> list[tuple[bytes, AnyRow]]:
    moved: list[tuple[bytes, AnyRow]] = []
    for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if isinstance(row, Unclaimed) and row.assigned == node_id:
            spec = edges.must_read_spec(tx, keys, future_id)
            bound = row.hard
            new = _fail_bound(tx, keys, spec, row, node_id) if bound else _to_pool(tx, keys, spec, row)
            moved.append((future_id, new))
    return moved


def _to_pool(tx: Tx, keys: FutureKeys, spec: Spec, row: Unclaimed) -> Unclaimed:
    new = msgspec.structs.replace(row, assigned="", hard=False, ready_at=min(row.ready_at, spec.submitted_at))
    if row.ready_at > tx.now():
        new = msgspec.structs.replace(new, ready_at=row.ready_at)  # a retry still waits out its pause
    edges.rewrite(tx, keys, spec, row, new)
    return new


# --- a restarted worker, and a client without a leader


def reclaim(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, *, limit: int = PAGE) -> ReapPage:
    """A worker that has just joined gives back what earlier boots at its address still hold (FUT-39, FUT-48).

    Only to be called by a worker that serves at its address, so that no other process can: the earlier ones
    are dead, whatever their leases say. Their entries go with the last page. Counts as no attempt.
    """
    nodes.check(tx, cluster, node)
    moved: list[tuple[bytes, AnyRow]] = []
    for old in nodes.read_all(tx, cluster):
        if old.id == node.id or not node.address or old.address != node.address or old.kind != node.kind:
            continue
        left = limit - len(moved)
        found = tx.range(*keys.own.under(old.id), limit=left)
        ids = [one for row in found if isinstance(one := keys.own.unpack(row.key)[1], bytes)]
        for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
            if tx.writes > ROOM_WRITES:
                return ReapPage(moved, more=True)
            if isinstance(row, Claimed) and row.holder == old.id:
                hard = edges.must_read_spec(tx, keys, future_id).hard
                give = reap if hard else finish.give_back
                moved.append((future_id, give(tx, keys, future_id, row)))
            else:
                tx.clear(keys.own[old.id, future_id])
        if len(found) == left:
            return ReapPage(moved, more=True)
        nodes.leave(tx, cluster, old)
    return ReapPage(moved)


def reap_one(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, future_id: bytes, leaderless_us: int
) -> AnyRow | None:
    """A client that waits for one future does for it what the leader would, when there is none (FUT-49).

    Nothing happens while there is a leader, or was one `leaderless_us` ago. Returns the future's row.
    """
    row = edges.read(tx, keys, future_id)
    if row is None or not _leaderless(tx, cluster, leaderless_us):
        return row
    if isinstance(row, Claimed):
        node = nodes.read(tx, cluster, row.holder)
        if not _stands(node, tx.now()) or (node is not None and node.epoch != row.node_epoch):
            return reap(tx, keys, future_id, row)
    if isinstance(row, Unclaimed) and row.assigned and not _is_alive(tx, cluster, row.assigned):
        return _reroute(tx, keys, [future_id], row.assigned)[0][1]
    return row


def _is_alive(tx: Tx, cluster: ClusterKeys, node_id: str) -> bool:
    return _stands(nodes.read(tx, cluster, node_id), tx.now())


def _leaderless(tx: Tx, cluster: ClusterKeys, leaderless_us: int) -> bool:
    lease = leases.read(tx, cluster.leader)
    return lease is None or lease.expires_at + leaderless_us <= tx.now()
