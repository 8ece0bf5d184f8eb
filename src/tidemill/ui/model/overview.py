"""The overview: the problems of a cluster with their root causes, and what runs now."""

import re
from collections.abc import Iterator
from functools import partial

from tidemill.arcs import lot_requests, lot_status, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import MissingLot, PartialLot, RunningLot
from tidemill.cluster import node_list
from tidemill.futures.protocol.states import FutureState
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.obs import freshness
from tidemill.obs.lines import counted
from tidemill.store import Tx
from tidemill.triggers import listing
from tidemill.triggers.listing import TriggerInfo, TriggerState
from tidemill.ui.model.answers import Action, Problem, RunLine, RunningLine, RunPage, Summary, TriggerLine
from tidemill.ui.model.catalog import Declarations
from tidemill.ui.model.reader import StoreReader

MOST_FAILED = 500
"""How many failed lots of an arc are read to group them by their error."""

_PART = re.compile(r"^part \S+: (exception: )?")
"""Parts have random names, so an error is the same without them."""

MOST_NAMED = 20
MOST_RUNNING = 200
MOST_TRIGGERS = 2_000


def summary(reader: StoreReader) -> Summary:
    """Return the state of the cluster: problems first, then what runs now."""
    catalog = reader.catalog()
    nodes = reader.run(partial(node_list.read, keys=reader.keys.cluster))
    triggers = all_triggers(reader)
    live = [node for node in nodes if node.state != "gone" and node.kind != "client"]
    return Summary(
        cluster=reader.cluster,
        pipelines=catalog.pipelines,
        tables=len(catalog.datasets) + len(catalog.views),
        nodes=len(live),
        leader=next((node.id for node in nodes if node.leader), ""),
        futures=reader.count_futures(),
        problems=tuple(problems(reader, catalog, triggers)),
        running=tuple(running(reader, triggers)),
    )


def all_triggers(reader: StoreReader, name: str = "", limit: int = MOST_TRIGGERS) -> list[TriggerInfo]:
    """Return the subscriptions of the cluster, with the lots that users requested."""
    return listing.listed(
        reader.store,
        reader.keys.triggers,
        reader.keys.lots,
        name=name,
        limit=limit,
        requested=partial(_requested, reader.arcs),
    )


def trigger_line(reader: StoreReader, name: str) -> TriggerLine | None:
    """Describe the subscription of an arc or a view group; None before its first run."""
    info = reader.run(lambda tx: listing.read(tx, reader.keys.triggers, reader.keys.lots, name))
    return None if info is None else describe_trigger(info)


def describe_trigger(info: TriggerInfo) -> TriggerLine:
    """Describe a subscription."""
    return TriggerLine(
        name=info.name,
        state=info.state.value,
        why=info.why,
        in_s=info.in_s,
        behind=sum(info.behind.values()),
        failures=info.failures,
        requested=info.requested,
    )


def _requested(keys: ArcKeys, tx: Tx, names: "list[str]") -> dict[str, int]:
    return dict(lot_requests.count_unfinished(tx, keys, names))


# --- problems


def problems(reader: StoreReader, catalog: Declarations, triggers: list[TriggerInfo]) -> Iterator[Problem]:
    """Yield what needs attention: the worst first, equal causes together."""
    for trigger in triggers:
        kind, _, rest = trigger.name.partition(":")
        pipeline, _, name = rest.partition("/")
        if trigger.state is TriggerState.DEAD:
            fix = Action(name="retry", pipeline=pipeline, target=name)
            yield Problem(kind="stopped", name=_label(kind, name), state="stopped", why=trigger.why, fix=fix)
    for spec in catalog.arcs.values():
        yield from _failed_lots(reader, spec)
    yield from _stale(reader, catalog)
    for quarantine, owner in catalog.quarantines.items():
        held = [row for row in _newest(reader, quarantine) if row.rows]
        if held:
            records = sum(row.rows for row in held)
            yield Problem(
                kind="quarantine",
                name=owner.name,
                state="quarantined",
                why=f"{records:,} records do not fit the table, or fail a check.",
                count=records,
                lots=tuple(row.lot for row in held[:MOST_NAMED]),
            )
    futures = reader.count_futures()
    for state in (FutureState.QUARANTINED.value, FutureState.FAILED.value, FutureState.UNSATISFIABLE.value):
        if futures.get(state):
            why = {"quarantined": "They crashed their worker too often.", "failed": "Their function failed."}
            yield Problem(
                kind="futures",
                name="futures",
                state=state,
                why=why.get(state, "No live node can run them."),
                count=futures[state],
            )
    for trigger in triggers:
        kind, _, rest = trigger.name.partition(":")
        pipeline, _, name = rest.partition("/")
        if trigger.state is TriggerState.PAUSED:
            fix = Action(name="resume", pipeline=pipeline, target=name)
            yield Problem(kind="paused", name=_label(kind, name), state="paused", why=trigger.why, fix=fix)


def _stale(reader: StoreReader, catalog: Declarations) -> Iterator[Problem]:
    """Yield the tables that are older than their `fresh_within`."""
    for pipeline in catalog.pipelines:
        for age in ages(reader, pipeline):
            if age.is_stale:
                limit, minutes = (counted(round(s / 60), "minute") for s in (age.within_s, age.age_s))
                newest = f"The newest lot was published {minutes} ago"
                never = f"Nothing was published for {minutes}"
                why = f"{newest if age.published_at else never}; the limit is {limit}."
                yield Problem(kind="view" if age.is_view else "stale", name=age.table, state="stale", why=why)


def ages(reader: StoreReader, pipeline: str) -> list[freshness.Age]:
    """Return the age of each table of a pipeline that has a limit."""
    now = reader.clock.wall()
    return reader.run(lambda tx: freshness.ages(tx, reader.observations, reader.keys, pipeline, now))


def _label(kind: str, name: str) -> str:
    return f"{'view group' if kind == 'views' else kind} {name}"


def _newest(reader: StoreReader, table: DatasetId) -> list[LotRow]:
    return reader.run(partial(lots.newest, keys=reader.keys.lots, dataset=table, limit=MOST_FAILED))


def _failed_lots(reader: StoreReader, spec: ArcSpec) -> Iterator[Problem]:
    """Yield one problem for each error of an arc, with the lots that have it."""
    failed = reader.run(partial(lot_status.failed, keys=reader.arcs, arc=spec.id, limit=MOST_FAILED))
    by_error: dict[tuple[str, str], list[str]] = {}
    for lot in failed:
        if isinstance(lot.row, PartialLot | MissingLot):
            by_error.setdefault((lot.state.value, _PART.sub("", lot.row.error)), []).append(lot.lot)
    for (state, error), named in by_error.items():
        yield Problem(
            kind="lots",
            name=f"arc {spec.name}",
            state=state,
            why=error or "no reason was recorded",
            count=len(named),
            lots=tuple(named[:MOST_NAMED]),
            fix=Action(
                name="retry", pipeline=spec.pipeline, target=spec.name, lots=tuple(named[:MOST_NAMED])
            ),
        )


# --- what runs now


def running(reader: StoreReader, triggers: list[TriggerInfo]) -> Iterator[RunningLine]:
    """Yield the lots that nodes make now, then the runs of view groups."""
    for line in running_lots(reader, MOST_RUNNING):
        yield RunningLine(
            kind="lot",
            name=line.arc,
            lot=line.lot,
            generation=line.generation,
            node=line.node,
            for_s=line.for_s,
            tries=line.tries,
            alive=line.state == "running",
        )
    for trigger in triggers:
        if trigger.state is TriggerState.RUNNING and trigger.name.startswith("views:"):
            yield RunningLine(kind="run", name=trigger.name, node=trigger.why.removeprefix("on node "))


def running_lots(reader: StoreReader, limit: int, after: bytes = b"") -> list[RunLine]:
    """Return lots that nodes make now. The state is `lost` if the node is gone."""
    keys = reader.arcs

    def read(tx: Tx) -> list[RunLine]:
        lo, hi = keys.running.all()
        page = tx.range(after + b"\x00" if after else lo, hi, limit=limit, snapshot=True)
        lines = []
        for row in page:
            arc, lot, generation = keys.running.unpack(row.key)
            assert isinstance(generation, int)
            state = rows.read(tx, keys, str(arc), str(lot), generation)
            if isinstance(state, RunningLot):
                alive = rows.is_held(tx, keys, state)
                lines.append(
                    run_line(
                        str(arc),
                        str(lot),
                        generation,
                        state="running" if alive else "lost",
                        why="" if alive else "its node is gone; the next runner continues",
                        node=state.node,
                        tries=state.tries,
                        for_s=max(0, tx.now() - state.since) / 1e6,
                    )
                )
        return lines

    return reader.run(read)


def run_line(arc: str, lot: str, generation: int, **fields: object) -> RunLine:
    """Return a line for a lot of an arc."""
    pipeline, _, name = arc.partition(":")[2].partition("/")
    return RunLine(arc=arc, pipeline=pipeline, name=name, lot=lot, generation=generation, **fields)  # type: ignore[arg-type]


def runs(reader: StoreReader, after: str = "", limit: int = 100) -> RunPage:
    """Return a page of the lots that are running or failed; running lots come first.

    `after` is the `next` of the page before: the space and the key of its last line.
    """
    keys = reader.arcs
    items: list[RunLine] = []
    if not after:
        items += running_lots(reader, limit)

    def read(tx: Tx) -> tuple[list[RunLine], str]:
        lo, hi = keys.trouble.all()
        page = tx.range(bytes.fromhex(after) + b"\x00" if after else lo, hi, limit=limit, snapshot=True)
        lines = []
        for row in page:
            arc, lot, generation = keys.trouble.unpack(row.key)
            assert isinstance(generation, int)
            state = rows.read(tx, keys, str(arc), str(lot), generation)
            if isinstance(state, PartialLot | MissingLot):
                lines.append(
                    run_line(
                        str(arc),
                        str(lot),
                        generation,
                        state=state.state.value,
                        why=state.error,
                        tries=state.tries,
                        for_s=max(0, tx.now() - state.at) / 1e6,
                    )
                )
        return lines, page[-1].key.hex() if len(page) == limit else ""

    failed, cursor = reader.run(read)
    return RunPage(items=(*items, *failed), next=cursor)
