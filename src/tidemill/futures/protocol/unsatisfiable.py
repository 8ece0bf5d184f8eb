"""Find futures that no live worker can run (FUT-27): refuse them at submission, or set them aside.

A future that is set aside fails when its grace period is over. In a cluster without live workers, futures
wait for the first worker. A whole lane is checked by the bounds of its class. If the bounds do not decide,
each future is checked by its exact needs.
"""

from collections.abc import Mapping, Sequence

from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import UnsatisfiableError
from tidemill.futures.protocol import depend, edges, lanes, retries, rows
from tidemill.futures.protocol.claim import read_lanes
from tidemill.futures.protocol.keys import FutureKeys, ids_in
from tidemill.futures.protocol.lanes import Capacity, Lane
from tidemill.futures.protocol.reap import ReapPage
from tidemill.futures.protocol.rows import AnyRow, Failed, Failure, Needs, Unclaimed, Unsatisfiable
from tidemill.futures.protocol.states import FutureEdge
from tidemill.store import Tx, unpack

PAGE = 100


# --- at submission


def check(tx: Tx, cluster: ClusterKeys, names: Mapping[Needs, str]) -> None:
    """Raise `UnsatisfiableError` if no live worker could ever run a future with one of these needs.

    `names` maps each of the needs to the name of a function, for the message.
    """
    names = {needs: name for needs, name in names.items() if needs != Needs()}
    if not names:
        return
    totals = retries.totals(tx, cluster)
    for needs, name in names.items():
        if totals and not _fits_any(needs, totals):
            raise UnsatisfiableError(f"{name} needs {describe(needs)}, but {_describe_most(totals)}")


def describe(needs: Needs) -> str:
    """Return needs as text."""
    parts = [f"cpu {needs.cpu:g}"] if needs.cpu else []
    parts += [f"ram {format_bytes(needs.ram)}"] if needs.ram else []
    parts += [f"gpu {needs.gpu:g}"] if needs.gpu else []
    return ", ".join([*parts, *needs.named]) or "nothing"


def format_bytes(size: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _describe_most(totals: Sequence[Capacity]) -> str:
    names = {name for total in totals for name in total.named if not name.startswith("node:")}
    most = Needs(
        max(total.cpu for total in totals),
        max(total.ram for total in totals),
        max(total.gpu for total in totals),
        tuple(sorted(names)),
    )
    workers = "the only live worker has" if len(totals) == 1 else f"{len(totals)} live workers have at most"
    return f"{workers} {describe(most)}"


# --- later


def _fits_any(needs: Needs, totals: Sequence[Capacity]) -> bool:
    return any(lanes.fits(needs, total) for total in totals)


def is_safe(lane: Lane, totals: Sequence[Capacity]) -> bool:
    """Return whether some worker can run everything in this lane.

    Lanes for runners are always safe: their futures wait for a runner, as other futures wait for the first
    worker.
    """
    most = lanes.bounds_of(lane.label)[1]
    return not totals or lanes.for_runners(most) or _fits_any(most, totals)


def lanes_to_check(tx: Tx, keys: FutureKeys, cluster: ClusterKeys) -> list[Lane]:
    """Return the lanes that may contain futures which no worker can run."""
    totals = retries.totals(tx, cluster)
    return [lane for lane in read_lanes(tx, keys) if not is_safe(lane, totals)]


def strand_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, lane: Lane, *, after: bytes = b"", limit: int = PAGE
) -> tuple[ReapPage, bytes]:
    """Read a page of a lane, and set aside the futures that no worker can run.

    Return the page, and where the next one begins.
    """
    totals = retries.totals(tx, cluster)
    if is_safe(lane, totals):
        return ReapPage(), after
    lo, hi = keys.ready[lane.key] + b"\x00", keys.ready[lane.key] + b"\xff"
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    misfits = [row for row in page if not _fits_any(rows.decode_lane_entry(row.value).needs, totals)]
    ids = [part for row in misfits if isinstance(part := unpack(row.key)[-1], bytes)]
    moved: list[tuple[bytes, AnyRow]] = []
    specs = edges.read_specs(tx, keys, ids)
    for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        spec = specs.get(future_id)
        if spec is None or not isinstance(row, Unclaimed) or row.assigned:
            continue
        if not _fits_any(edges.needs_of(spec, row.tally), totals):
            new = Unsatisfiable(tally=edges.bump(row.tally), since=tx.now())
            edges.move(tx, keys, spec, row, FutureEdge.MARK_UNSATISFIABLE, new)
            moved.append((future_id, new))
    return ReapPage(moved, len(page) == limit), page[-1].key if page else after


def satisfy_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, *, after: bytes = b"", limit: int = PAGE // 2
) -> tuple[ReapPage, bytes]:
    """Check a page of the futures that were set aside.

    Release those that a worker can run now, and fail those whose grace period is over. Return the page, and
    where the next one begins.
    """
    totals = retries.totals(tx, cluster)
    lo, hi = keys.stranded.all()
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    ids = ids_in(keys.stranded, page)
    moved: list[tuple[bytes, AnyRow]] = []
    count = 0
    for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if isinstance(row, Unsatisfiable):
            new = _check_again(tx, keys, future_id, row, totals)
            if new is not None:
                moved.append((future_id, new))
        count += 1
        if tx.writes > 600:
            break
    more = len(page) == limit or count < len(page)
    return ReapPage(moved, more), page[count - 1].key if count else after


def _check_again(
    tx: Tx, keys: FutureKeys, future_id: bytes, row: Unsatisfiable, totals: Sequence[Capacity]
) -> AnyRow | None:
    spec = edges.must_read_spec(tx, keys, future_id)
    needs = edges.needs_of(spec, row.tally)
    if _fits_any(needs, totals):
        new = depend.recompute(tx, keys, spec, row, (FutureEdge.SATISFY,), edges.bump(row.tally))
        if not isinstance(new, Failure):
            return new
        failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind=new.kind)
        return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, new)
    grace_us = int(spec.unsatisfiable_grace_s * 1_000_000)
    if grace_us < 0 or row.since + grace_us > tx.now():
        return None
    message = f"no live worker has {describe(needs)}"
    failure = Failure(kind="unsatisfiable", type="UnsatisfiableError", message=message, at=tx.now())
    failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="unsatisfiable")
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)
