"""Futures that no live node can ever run (FUT-27): set aside, looked at again, and failed after their grace.

Only live workers count, and only when there is one: an empty cluster is one that has not started yet. Whole
lanes are judged by the bounds of their class; where those do not decide, each row by its exact needs.
"""

from collections.abc import Sequence

from tidemill.cluster.keys import ClusterKeys
from tidemill.futures.protocol import depend, edges, lanes, retries, rows, satisfy
from tidemill.futures.protocol.claim import read_lanes
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity, Lane
from tidemill.futures.protocol.reap import ReapPage
from tidemill.futures.protocol.rows import AnyRow, Failed, Failure, Needs, Unclaimed, Unsatisfiable
from tidemill.futures.protocol.states import FutureEdge
from tidemill.store import Tx, unpack

PAGE = 100


def _fits_one(needs: Needs, totals: Sequence[Capacity]) -> bool:
    return any(lanes.fits(needs, total) for total in totals)


def is_safe(lane: Lane, totals: Sequence[Capacity]) -> bool:
    """Can some worker run everything in this lane? What is for runners is not judged by what workers have:
    it waits for a runner as all futures wait for the first worker.
    """
    most = lanes.bounds_of(lane.label)[1]
    return not totals or lanes.for_runners(most) or _fits_one(most, totals)


def unsafe(tx: Tx, keys: FutureKeys, cluster: ClusterKeys) -> list[Lane]:
    """The lanes that may hold something nobody can run."""
    totals = retries.totals(tx, cluster)
    return [lane for lane in read_lanes(tx, keys) if not is_safe(lane, totals)]


def strand_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, lane: Lane, *, after: bytes = b"", limit: int = PAGE
) -> tuple[ReapPage, bytes]:
    """Set aside what nobody can run in a page of a lane; returns the page, and where the next one begins."""
    totals = retries.totals(tx, cluster)
    if is_safe(lane, totals):
        return ReapPage(), after
    lo, hi = keys.ready[lane.key] + b"\x00", keys.ready[lane.key] + b"\xff"
    found = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    ids = [
        one
        for row in found
        if not _fits_one(rows.decode_ask(row.value).needs, totals)
        and isinstance(one := unpack(row.key)[-1], bytes)
    ]
    moved: list[tuple[bytes, AnyRow]] = []
    specs = edges.read_specs(tx, keys, ids)
    for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        spec = specs.get(future_id)
        if spec is None or not isinstance(row, Unclaimed) or row.assigned:
            continue
        if not _fits_one(edges.needs_of(spec, row.tally), totals):
            new = Unsatisfiable(tally=edges.bump(row.tally), since=tx.now())
            edges.move(tx, keys, spec, row, FutureEdge.STRAND, new)
            moved.append((future_id, new))
    return ReapPage(moved, len(found) == limit), found[-1].key if found else after


def satisfy_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, *, after: bytes = b"", limit: int = PAGE // 2
) -> tuple[ReapPage, bytes]:
    """Look at a page of those set aside: a node has joined that can run them, or their grace is over."""
    totals = retries.totals(tx, cluster)
    lo, hi = keys.stranded.all()
    found = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    ids = [one for row in found if isinstance(one := keys.stranded.unpack(row.key)[0], bytes)]
    moved: list[tuple[bytes, AnyRow]] = []
    done = 0
    for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if isinstance(row, Unsatisfiable):
            new = _look(tx, keys, future_id, row, totals)
            if new is not None:
                moved.append((future_id, new))
        done += 1
        if tx.writes > 600:
            break
    return ReapPage(moved, len(found) == limit or done < len(found)), found[done - 1].key if done else after


def _look(
    tx: Tx, keys: FutureKeys, future_id: bytes, row: Unsatisfiable, totals: Sequence[Capacity]
) -> AnyRow | None:
    spec = edges.must_read_spec(tx, keys, future_id)
    needs = edges.needs_of(spec, row.tally)
    if _fits_one(needs, totals):
        again = depend.again(tx, keys, spec, row, (FutureEdge.SATISFY,), edges.bump(row.tally))
        if not isinstance(again, Failure):
            return again
        failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind=again.kind)
        return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, again)
    grace_us = int(spec.unsatisfiable_grace_s * 1_000_000)
    if grace_us < 0 or row.since + grace_us > tx.now():
        return None
    message = f"no live worker has {satisfy.said(needs)}"
    failure = Failure(kind="unsatisfiable", type="UnsatisfiableError", message=message, at=tx.now())
    failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="unsatisfiable")
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)
