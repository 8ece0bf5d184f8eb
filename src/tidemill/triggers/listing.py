"""What is due, waiting, paused or dead, and why: for people and programs that look at a cluster."""

from collections.abc import Collection, Iterator
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from tidemill.lots import events
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Store, Tx
from tidemill.triggers import schedules, subscriptions, templates
from tidemill.triggers.due import NEVER
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Waiting
from tidemill.triggers.terms import AfterGrace

PAGE = 200


class Shown(StrEnum):
    """What a subscription is to whoever looks at it."""

    DUE = "due"  # its time has come
    SCHEDULED = "scheduled"  # its time is to come
    RUNNING = "running"
    WAITING = "waiting"  # for something to be published
    PAUSED = "paused"
    DEAD = "dead"  # it failed too often
    UNREADY = "unready"  # its attaching has not come to its end


class Listed(msgspec.Struct, frozen=True):
    """One subscription: its state, why, and how many positions each of its sources is ahead of it."""

    name: str
    state: Shown
    why: str
    in_s: float | None  # until its time; negative: since
    behind: dict[str, int]
    failures: int
    epoch: int
    template: str


class Overview(msgspec.Struct, frozen=True):
    """The heap and what is declared."""

    heap: str  # its form; empty before the first scheduler
    lag_s: float  # how long the oldest that is due has been so
    rebuilding: bool
    templates: list[templates.Template]
    schedules: list[schedules.Entry]


def overview(store: Store, keys: TriggerKeys) -> Overview:
    """The heap and the templates."""

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
    """The age of the oldest that is due and does not run: the metric of HEAP-19, by the rows."""
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
) -> list[Listed]:
    """Subscriptions by name.

    - states: only these.
    - name: only those whose name has this in it; `*` may be used.
    """
    pattern = name if "*" in name else f"*{name}*"
    found: list[Listed] = []
    parked = set(states) == {Shown.DEAD}
    for page in _pages(store, keys, parked=parked):
        wanted = [one for one in page if fnmatchcase(one, pattern)]
        for one in store.run(lambda tx, wanted=wanted: _read(tx, keys, lots, wanted)):  # type: ignore[misc]
            if not states or one.state in states:
                found.append(one)
                if len(found) == limit:
                    return found
    return found


def _pages(store: Store, keys: TriggerKeys, *, parked: bool) -> Iterator[list[str]]:
    """Names, page by page: all of them, or those that never run as they are, which the index has together."""
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


def _read(tx: Tx, keys: TriggerKeys, lots: LotKeys, names: list[str]) -> list[Listed]:
    rows = tx.get_many([keys.subscription[name] for name in names])
    there = [
        (name, subscriptions.decode(raw)) for name, raw in zip(names, rows, strict=True) if raw is not None
    ]
    sources = sorted({source for _, row in there for source in row.tally.terms.sources})
    heads = events.heads(tx, lots, sources) if sources else {}
    found = []
    for name, row in there:
        opens_us = schedules.opens_us(tx, keys, lots, row.tally) if isinstance(row, Waiting) else None
        found.append(shown(name, row, heads, tx.now(), opens_us))
    return found


def shown(
    name: str, row: AnyRow, heads: dict[DatasetId, int], now: int, opens_us: int | None = None
) -> Listed:
    """One subscription as people see it; `opens_us`: how long it is until its schedule opens its gate."""
    tally = row.tally
    behind = {str(one): heads.get(one, 0) - position for one, position in tally.seen.items()}
    state, why = _state(row, behind, now)
    at = row.next_run if isinstance(row, Scheduled) and row.next_run < NEVER else None
    return Listed(
        name=name,
        state=state,
        why=why,
        in_s=(at - now) / 1e6 if at is not None else None if opens_us is None else opens_us / 1e6,
        behind=behind,
        failures=tally.failures,
        epoch=tally.epoch,
        template=tally.template,
    )


def _state(row: AnyRow, behind: dict[str, int], now: int) -> tuple[Shown, str]:
    tally = row.tally
    if isinstance(row, Scheduled) and row.run is not None:
        return Shown.RUNNING, f"on node {row.run.node[:12]}"
    if not tally.ready:
        return Shown.UNREADY, "whoever attached it has not come to the end"
    if tally.dead:
        return Shown.DEAD, f"failed {tally.failures} times in a row; the last said: {tally.why or 'nothing'}"
    if tally.paused:
        return Shown.PAUSED, f"{sum(behind.values())} to see when it is resumed"
    if isinstance(row, Waiting):
        if not any(behind.values()):
            return Shown.WAITING, "all is seen"
        if tally.terms.gate is not None:
            return Shown.WAITING, f"{sum(behind.values())} to see at the next time of its schedule"
        return Shown.WAITING, _at_barrier(row, behind)
    if row.next_run <= now:
        return Shown.DUE, f"{sum(behind.values())} to see"
    return Shown.SCHEDULED, _held(row, behind)


def _at_barrier(row: Waiting, behind: dict[str, int]) -> str:
    missing = ", ".join(source for source, number in behind.items() if not number)
    ever = row.tally.terms.grace_us is None or row.tally.terms.after_grace is AfterGrace.WAIT
    return f"its barrier waits for {missing}" + (", for as long as it takes" if ever else "")


def _held(row: Scheduled, behind: dict[str, int]) -> str:
    tally = row.tally
    if tally.failures:
        return f"tries again after failure {tally.failures}: {tally.why or 'nothing was said'}"
    if row.held:
        missing = ", ".join(source for source, number in behind.items() if not number)
        if tally.terms.barrier and missing:
            return f"its barrier waits for {missing}, until its grace is over"
        return "its sources are not quiet yet"
    if tally.last_start is not None and tally.terms.cadence_us:
        return "its cadence"
    return "its time is to come"
