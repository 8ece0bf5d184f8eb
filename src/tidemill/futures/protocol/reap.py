"""Release the claims, assignments and actors of dead nodes (FUT-49, FUT-60).

A node is dead if its lease has expired or its entry is gone. Then the store refuses all writes of the node,
so any process may take over its work at any time. The same holds for claims from an earlier epoch of a node
that lost its entry and joined again. Four indices list the rows of each node: `own` (claims), `assigned`,
`hosted` (actors) and `inbox`. The time to find dead nodes depends on the number of nodes, not on the number
of futures.

Why no claim is missed: a claim is committed while its node's entry is locked and the node's lease is valid.
If a claim becomes visible only after the lease has expired, the leader finds it in its next round.
"""

import msgspec

from tidemill.cluster import leases, nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import actors, depend, edges, finish, inbox, lanes, rows, submit
from tidemill.futures.protocol.keys import FutureKeys, ids_in
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.retries import MOST_REAPS
from tidemill.futures.protocol.rows import AnyRow, Claimed, Failed, Failure, Quarantined, Spec, Unclaimed
from tidemill.futures.protocol.states import FutureEdge
from tidemill.store import Space, Tx

PAGE = 50
ID_PART = 4  # the position of the id in the keys of assignments
ROOM_WRITES = 300
"""A page of claims ends early after this many writes: a future that is blocked again may have hundreds of
inputs."""


class ReapPage(msgspec.Struct, frozen=True):
    """The outcome of one transaction: the futures it moved, their new rows, and whether more are left."""

    moved: list[tuple[bytes, AnyRow]] = []
    more: bool = False


def holders(tx: Tx, space: Space) -> list[str]:
    """Return the distinct first parts of a space's keys: the nodes or clients that have rows there."""
    names: list[str] = []
    lo, hi = space.all()
    while True:
        first = tx.range(lo, hi, limit=1, snapshot=True)
        if not first:
            return names
        name = str(space.unpack(first[0].key)[0])
        names.append(name)
        lo = space.under(name)[1]


def nodes_to_reap(tx: Tx, keys: FutureKeys, cluster: ClusterKeys) -> list[str]:
    """Return the nodes that have rows and are dead, or have joined again under a later epoch."""
    listed = {node.id: node for node in nodes.read_all(tx, cluster)}
    names = {
        name for space in (keys.own, keys.assigned, keys.hosted, keys.inbox) for name in holders(tx, space)
    }
    now = tx.now()
    return sorted(name for name in names if not _has_lease(listed.get(name), now) or listed[name].epoch > 1)


def _has_lease(node: Node | None, now_us: int) -> bool:
    return node is not None and node.expires_at > now_us


def reap_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, after: bytes = b"", limit: int = PAGE
) -> tuple[ReapPage, bytes]:
    """Release a page of claims of a dead node, or of an earlier epoch of a live node.

    Return the page, and where the next one begins. The valid claims of a live node stay.
    """
    node = nodes.read(tx, cluster, node_id)
    alive_epoch = node.epoch if node is not None and _has_lease(node, tx.now()) else 0
    lo, hi = keys.own.under(node_id)
    owned = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    ids = ids_in(keys.own, owned, 1)
    moved: list[tuple[bytes, AnyRow]] = []
    count = 0
    for future_id, state in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if tx.writes > ROOM_WRITES:
            break
        if not isinstance(state, Claimed) or state.holder != node_id:
            tx.clear(keys.own[node_id, future_id])  # an orphaned index row
        elif state.node_epoch != alive_epoch:
            moved.append((future_id, reap(tx, keys, future_id, state)))
        count += 1
    more = count < len(owned) or len(owned) == limit
    return ReapPage(moved, more), owned[count - 1].key if count else after


def reap(tx: Tx, keys: FutureKeys, future_id: bytes, row: Claimed) -> AnyRow:
    """End the claim of a dead node: return the future to the pool, or quarantine it after ten dead nodes."""
    spec = edges.must_read_spec(tx, keys, future_id)
    if row.cancel:
        return finish.give_back(tx, keys, future_id, row)
    if spec.hard:
        return _fail_bound(tx, keys, spec, row, row.holder)
    tally = edges.bump(row.tally, reaps=row.tally.reaps + 1)
    if tally.reaps >= MOST_REAPS:
        message = f"{tally.reaps} nodes died while they held the claim"
        failure = Failure(kind="reaped", message=message, node=row.holder, at=tx.now())
        new: AnyRow = Quarantined(tally=tally, at=tx.now())
        return depend.end(tx, keys, spec, row, FutureEdge.QUARANTINE, new, failure)
    unclaimed = submit.unclaimed(tx, keys, spec, tally)
    return depend.unclaim(tx, keys, spec, row, FutureEdge.RELINQUISH, unclaimed)


def _fail_bound(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow, node_id: str) -> AnyRow:
    """Fail a future that is bound to a dead node: it can never run (FUT-60)."""
    failure = Failure(kind="actor", message=f"node {node_id} is dead", node=node_id, at=tx.now())
    failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="actor")
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)


def reap_actors_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, limit: int = 5
) -> ReapPage:
    """Record the death of the actors of a dead node, or of an earlier epoch of a live node (FUT-47)."""
    node = nodes.read(tx, cluster, node_id)
    alive_epoch = node.epoch if node is not None and _has_lease(node, tx.now()) else 0
    dead = []
    for actor_id in ids_in(keys.hosted, tx.range(*keys.hosted.under(node_id)), 1):
        actor = actors.read(tx, keys, actor_id)
        if actor is None or actor.node_epoch != alive_epoch:
            dead.append(actor_id)
    moved: list[tuple[bytes, AnyRow]] = []
    for actor_id in dead[:limit]:
        failure = Failure(kind="actor", message=f"node {node_id} is dead", node=node_id, at=tx.now())
        if not actors.died(tx, keys, actor_id, failure):
            tx.clear(keys.hosted[node_id, actor_id])
        row = edges.read(tx, keys, actor_id)
        if row is not None:
            moved.append((actor_id, row))
    return ReapPage(moved, len(dead) > limit)


def reroute_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, limit: int = PAGE
) -> ReapPage:
    """Move the soft assignments of a dead node to the pool, and fail the hard ones (FUT-60)."""
    node = nodes.read(tx, cluster, node_id)
    if _has_lease(node, tx.now()):
        return ReapPage()
    assigned = tx.range(*keys.assigned.under(node_id), limit=limit)
    inbox.clear(tx, keys, node_id)
    moved = _reroute(tx, keys, ids_in(keys.assigned, assigned, ID_PART), node_id)
    for row in assigned:
        tx.clear(row.key)
    return ReapPage(moved, len(assigned) == limit)


def release_late_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, busy_us: int, *, limit: int = PAGE
) -> ReapPage:
    """Move soft assignments to the pool if their live node has not claimed them for too long (FUT-60).

    If the node is draining, they are moved at once.
    """
    node = nodes.read(tx, cluster, node_id)
    if node is None or not _has_lease(node, tx.now()):
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
        late_rows = tx.range(within + b"\x00", until, limit=limit - len(ids), snapshot=True)
        ids += ids_in(keys.assigned, late_rows, ID_PART)
        lo = within + b"\xff"
    return ReapPage(_reroute(tx, keys, ids, node_id), len(ids) == limit)


def reroute_misfits_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node_id: str, *, after: bytes = b"", limit: int = PAGE
) -> tuple[ReapPage, bytes]:
    """Handle a page of a node's assignments that need more than the node has.

    Futures that are bound to the node fail; the others move to the pool. Assignments that fit stay. Return
    the page, and where the next one begins.
    """
    node = nodes.read(tx, cluster, node_id)
    if node is None or not _has_lease(node, tx.now()):
        return ReapPage(), after
    total = Capacity.of_node(node.total)
    lo, hi = keys.assigned.under(node_id)
    assigned = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    misfits = [row for row in assigned if not lanes.fits(rows.decode_lane_entry(row.value).needs, total)]
    ids = ids_in(keys.assigned, misfits, ID_PART)
    moved: list[tuple[bytes, AnyRow]] = []
    for future_id, state in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if isinstance(state, Unclaimed) and state.assigned == node_id:
            moved.append((future_id, _reroute_misfit(tx, keys, future_id, state)))
    return ReapPage(moved, len(assigned) == limit), assigned[-1].key if assigned else after


def _reroute_misfit(tx: Tx, keys: FutureKeys, future_id: bytes, row: Unclaimed) -> AnyRow:
    spec = edges.must_read_spec(tx, keys, future_id)
    if not row.hard:
        return _to_pool(tx, keys, spec, row)
    message = f"it can run only on node {row.assigned}, which has less capacity than it needs"
    failure = Failure(kind="unsatisfiable", message=message, node=row.assigned, at=tx.now())
    failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="unsatisfiable")
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)


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
        new = msgspec.structs.replace(new, ready_at=row.ready_at)  # a retry still waits for its delay
    edges.rewrite(tx, keys, spec, row, new)
    return new


# --- a restarted worker, and a client without a leader


def reclaim(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, *, limit: int = PAGE) -> ReapPage:
    """Reap the claims of earlier workers that had the address of a new worker (FUT-39, FUT-48).

    Only a worker that holds its address exclusively may call this. So the earlier workers are dead, even if
    their leases are still valid. The last page removes their entries. Each claim counts as one more death, as
    if the leader had reaped it: a task may kill its whole worker (FUT-53).
    """
    nodes.check(tx, cluster, node)
    moved: list[tuple[bytes, AnyRow]] = []
    for old in nodes.read_all(tx, cluster):
        if old.id == node.id or not node.address or old.address != node.address or old.kind != node.kind:
            continue
        left = limit - len(moved)
        owned = tx.range(*keys.own.under(old.id), limit=left)
        ids = ids_in(keys.own, owned, 1)
        for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
            if tx.writes > ROOM_WRITES:
                return ReapPage(moved, more=True)
            if isinstance(row, Claimed) and row.holder == old.id:
                moved.append((future_id, reap(tx, keys, future_id, row)))
            else:
                tx.clear(keys.own[old.id, future_id])
        if len(owned) == left:
            return ReapPage(moved, more=True)
        nodes.leave(tx, cluster, old)
    return ReapPage(moved)


def reap_one(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, future_id: bytes, leaderless_us: int
) -> AnyRow | None:
    """Do the leader's work for one future that a client waits for, if there is no leader (FUT-49).

    Do nothing if there was a leader within the last `leaderless_us`. Return the future's row.
    """
    row = edges.read(tx, keys, future_id)
    if row is None or not _leaderless(tx, cluster, leaderless_us):
        return row
    if isinstance(row, Claimed):
        node = nodes.read(tx, cluster, row.holder)
        if not _has_lease(node, tx.now()) or (node is not None and node.epoch != row.node_epoch):
            return reap(tx, keys, future_id, row)
    if isinstance(row, Unclaimed) and row.assigned and not _is_alive(tx, cluster, row.assigned):
        return _reroute(tx, keys, [future_id], row.assigned)[0][1]
    return row


def _is_alive(tx: Tx, cluster: ClusterKeys, node_id: str) -> bool:
    return _has_lease(nodes.read(tx, cluster, node_id), tx.now())


def _leaderless(tx: Tx, cluster: ClusterKeys, leaderless_us: int) -> bool:
    lease = leases.read(tx, cluster.leader)
    return lease is None or lease.expires_at + leaderless_us <= tx.now()
