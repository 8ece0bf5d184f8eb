"""List subscriptions: which of them are due, waiting, paused or dead, and the reasons."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.lots import events
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Store, Tx
from tidemill.triggers import schedules, subscriptions, templates
from tidemill.triggers.due import NEVER
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Waiting
from tidemill.triggers.terms import AfterGrace

PAGE = 200


class TriggerState(StrEnum):
    """The state of a subscription, as shown to users."""

    DUE = "due"
    SCHEDULED = "scheduled"  # due later
    RUNNING = "running"
    WAITING = "waiting"  # for new data
    PAUSED = "paused"
    DEAD = "dead"  # it failed too often
    UNREADY = "unready"  # `attach` has not finished


Requested = Callable[[Tx, Sequence[str]], Mapping[str, int]]
"""Returns for subscriptions how many requested lots are not made yet, such as those of a replay.

Requests belong to arcs. So a package above this one passes the function in.
"""


def _none_requested(_: Tx, __: Sequence[str]) -> Mapping[str, int]:
    return {}


class TriggerInfo(msgspec.Struct, frozen=True):
    """One subscription: its state, the reason, and how many positions each input is ahead of it.

    - requested: how many lots users have requested that are not made yet.
    """

    name: str
    state: TriggerState
    why: str
    in_s: float | None  # seconds until it is due; negative if it is overdue
    behind: dict[str, int]
    failures: int
    epoch: int
    template: str
    requested: int = 0


class Overview(msgspec.Struct, frozen=True):
    """The heap, the templates and the schedules of a cluster."""

    heap: str  # its form; empty before the first scheduler started
    lag_s: float  # how long the oldest due run has been due
    rebuilding: bool
    templates: list[templates.Template]
    schedules: list[schedules.Entry]


def overview(store: Store, keys: TriggerKeys) -> Overview:
    """Read the heap, the templates and the schedules."""

    def read(tx: Tx) -> Overview:
        form = tx.get(keys.heap_form)
        return Overview(
            heap="" if form is None else form.decode(),
            lag_s=_lag_us(tx, keys) / 1_000_000,
            rebuilding=tx.get(keys.heap_rebuild) is not None,
            templates=templates.listed(tx, keys),
            schedules=schedules.listed(tx, keys),
        )

    return store.run(read)


def _lag_us(tx: Tx, keys: TriggerKeys) -> int:
    """Return how long the oldest due run has been due without running (HEAP-19). Do not read the heap."""
    now = tx.now()
    for row in tx.range(keys.due.all()[0], keys.due[(now,)], limit=PAGE, snapshot=True):
        if not msgspec.msgpack.decode(row.value, type=tuple[int, bool])[1]:
            at = keys.due.unpack(row.key)[0]
            assert isinstance(at, int)
            return now - at
    return 0


def listed(
    store: Store,
    keys: TriggerKeys,
    lots: LotKeys,
    *,
    states: Collection[str] = (),
    name: str = "",
    limit: int = 50,
    requested: Requested = _none_requested,
) -> list[TriggerInfo]:
    """List subscriptions, ordered by name.

    - states: only subscriptions in these states.
    - name: only names that contain this text; it may contain `*`.
    - requested: counts requested lots.
    """
    pattern = name if "*" in name else f"*{name}*"
    infos: list[TriggerInfo] = []
    parked = set(states) == {TriggerState.DEAD}
    for page in _pages(store, keys, parked=parked):
        names = [subscription for subscription in page if fnmatchcase(subscription, pattern)]
        read_page = partial(_read, keys=keys, lots=lots, names=names, requested=requested)
        for info in store.run(read_page):
            if not states or info.state in states:
                infos.append(info)
                if len(infos) == limit:
                    return infos
    return infos


def read(tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str) -> TriggerInfo | None:
    """Describe one subscription; None if there is none with this name."""
    infos = _read(tx, keys, lots, [name])
    return infos[0] if infos else None


def _pages(store: Store, keys: TriggerKeys, *, parked: bool) -> Iterator[list[str]]:
    """Yield pages of names: of all subscriptions, or (`parked`) only of those that are paused or dead."""
    space = keys.due if parked else keys.subscription
    lo, hi = space.all()
    if parked:
        lo = keys.due[(NEVER,)]
    while True:
        rows = store.run(lambda tx, lo=lo: tx.range(lo, hi, limit=PAGE, snapshot=True))  # type: ignore[misc]
        yield [str(space.unpack(row.key)[-1]) for row in rows]
        if len(rows) < PAGE:
            return
        lo = rows[-1].key + b"\x00"


def _read(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, names: list[str], requested: Requested = _none_requested
) -> list[TriggerInfo]:
    rows = tx.get_many([keys.subscription[name] for name in names])
    decoded = [
        (name, subscriptions.decode(raw)) for name, raw in zip(names, rows, strict=True) if raw is not None
    ]
    sources = sorted({source for _, row in decoded for source in row.tally.terms.sources})
    heads = events.heads(tx, lots, sources) if sources else {}
    requests = requested(tx, names)
    infos = []
    for name, row in decoded:
        opens_us = schedules.opens_us(tx, keys, lots, row.tally) if isinstance(row, Waiting) else None
        info = _info(name, _without_dead_run(tx, lots.cluster, row), heads, tx.now(), opens_us)
        infos.append(_with_requests(info, requests.get(name, 0)))
    return infos


def _with_requests(info: TriggerInfo, number: int) -> TriggerInfo:
    """Add the requested lots. A subscription that only waits for data is due if it has such lots."""
    if not number:
        return info
    lots = f"{number:,} requested lot{'' if number == 1 else 's'}"
    if info.state is TriggerState.WAITING:
        return msgspec.structs.replace(
            info, requested=number, state=TriggerState.DUE, why=f"{lots} to make", in_s=0.0
        )
    return msgspec.structs.replace(info, requested=number, why=f"{info.why}; {lots} to make")


def _without_dead_run(tx: Tx, cluster: str, row: AnyRow) -> AnyRow:
    """Return the row without its run if the run's node is gone: the next scheduler ends that run."""
    if not isinstance(row, Scheduled) or row.run is None:
        return row
    if nodes.is_alive(tx, ClusterKeys(cluster), row.run.node, row.run.node_epoch):
        return row
    return msgspec.structs.replace(row, run=None, next_run=min(row.next_run, tx.now()))


def _info(name: str, row: AnyRow, heads: dict[DatasetId, int], now: int, opens_us: int | None) -> TriggerInfo:
    """Describe one subscription. `opens_us` is the time until its schedule opens its gate."""
    tally = row.tally
    behind = {str(source): heads.get(source, 0) - position for source, position in tally.seen.items()}
    state, why = _state(row, behind, now)
    at = row.next_run if isinstance(row, Scheduled) and row.next_run < NEVER else None
    return TriggerInfo(
        name=name,
        state=state,
        why=why,
        in_s=(at - now) / 1e6 if at is not None else None if opens_us is None else opens_us / 1e6,
        behind=behind,
        failures=tally.failures,
        epoch=tally.epoch,
        template=tally.template,
    )


def _state(row: AnyRow, behind: dict[str, int], now: int) -> tuple[TriggerState, str]:
    tally = row.tally
    if isinstance(row, Scheduled) and row.run is not None:
        return TriggerState.RUNNING, f"on node {row.run.node[:12]}"
    if not tally.ready:
        return TriggerState.UNREADY, "its creation has not finished"
    if tally.dead:
        times = "once" if tally.failures == 1 else f"{tally.failures} times in a row"
        return TriggerState.DEAD, f"failed {times}, last: {tally.why or 'unknown error'}"
    if tally.paused:
        return TriggerState.PAUSED, f"{_lots(behind)} to process when it is resumed"
    if isinstance(row, Waiting):
        if not any(behind.values()):
            return TriggerState.WAITING, "up to date"
        if tally.terms.gate is not None:
            return TriggerState.WAITING, f"{_lots(behind)} to process at the next time of its schedule"
        return TriggerState.WAITING, _at_barrier(row, behind)
    if row.next_run <= now:
        return TriggerState.DUE, f"{_lots(behind)} to process"
    return TriggerState.SCHEDULED, _why_later(row, behind)


def _lots(behind: dict[str, int]) -> str:
    number = sum(behind.values())
    return f"{number:,} lot{'' if number == 1 else 's'}"


def _at_barrier(row: Waiting, behind: dict[str, int]) -> str:
    missing = ", ".join(source for source, number in behind.items() if not number)
    unlimited = row.tally.terms.grace_us is None or row.tally.terms.after_grace is AfterGrace.WAIT
    return f"its barrier waits for {missing}" + (", without a time limit" if unlimited else "")


def _why_later(row: Scheduled, behind: dict[str, int]) -> str:
    tally = row.tally
    if tally.failures:
        return f"retries after failure {tally.failures}: {tally.why or 'unknown error'}"
    if row.held:
        missing = ", ".join(source for source, number in behind.items() if not number)
        if tally.terms.barrier and missing:
            return f"its barrier waits for {missing}, until its grace period ends"
        return "waits until its inputs are quiet"
    if tally.last_start is not None and tally.terms.cadence_us:
        return "waits for its cadence"
    return "due later"
