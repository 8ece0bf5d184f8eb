"""What a process does to observe a pipeline: write the event log, send alerts, and read both."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.cluster.keeper import Keeper
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.events import Emit, ignore
from tidemill.lots.checks import Check
from tidemill.obs import declared_checks, event_log, freshness
from tidemill.obs.alerts import Alerts, in_thread
from tidemill.obs.event_log import EventFilter, EventLog, LogRow, all_of
from tidemill.obs.freshness import Age, Freshness
from tidemill.obs.keys import ObservationKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.pipeline.pipeline import Pipeline

SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("severity", pa.string()),
        ("kind", pa.string()),
        ("about", pa.string()),
        ("text", pa.string()),
        ("lot", pa.string()),
        ("pipeline", pa.string()),
        ("node", pa.string()),
        ("details", pa.string()),
    ]
)


@contextlib.contextmanager
def observed(
    pipeline: "Pipeline", node: str, emit: Emit, timing: LeaseTiming = DEFAULT_TIMING
) -> Iterator[Emit]:
    """Write the events of a run to the log, and send alerts, until the end of the block.

    Yield the receiver of events, which also passes them to `emit`.
    """
    context = pipeline.context
    declare_tables(pipeline)
    log = EventLog(
        context.store,
        ObservationKeys(context.place.cluster),
        pipeline=pipeline.name,
        node=node,
        keep_s=pipeline.keep_events_s,
        clock=context.clock,
    )
    with log, sending(pipeline, f"{node} alerts", log, timing):
        yield all_of(emit, log)


@contextlib.contextmanager
def sending(
    pipeline: "Pipeline", holder: str, emit: Emit = ignore, timing: LeaseTiming = DEFAULT_TIMING
) -> Iterator[None]:
    """Send the alerts of a pipeline until the end of the block, if it has hooks."""
    if not any(pipeline.hooks.values()):
        yield
        return
    context = pipeline.context
    keeper = Keeper(context.store, holder, clock=context.clock, chance=context.chance, timing=timing)
    keeper.start()
    end = in_thread(alerts_of(pipeline, keeper, emit))
    try:
        yield
    finally:
        end()
        keeper.stop()


def alerts_of(pipeline: "Pipeline", keeper: Keeper, emit: Emit = ignore) -> Alerts:
    """Return the sender of a pipeline's alerts."""
    context = pipeline.context
    return Alerts(
        context.store,
        context.place.cluster,
        pipeline.name,
        hooks=pipeline.hooks,
        keeper=keeper,
        clock=context.clock,
        chance=context.chance,
        emit=emit,
    )


def declare_tables(pipeline: "Pipeline") -> None:
    """Store how old the tables of a pipeline may become, and the checks of their rows."""
    context = pipeline.context
    now = context.clock.wall()
    wanted = {}
    for table, within_s in pipeline.fresh_within.items():
        group = pipeline.views[table].group if table in pipeline.views else ""
        version = pipeline.datasets[table].id.version if table in pipeline.datasets else "1"
        wanted[table] = Freshness(within_s=within_s, since=now, group=group, version=version)
    keys = ObservationKeys(context.place.cluster)
    context.store.run(partial(freshness.declare, keys=keys, pipeline=pipeline.name, wanted=wanted))
    checks: dict[str, tuple[Check, ...]] = {name: decl.checks for name, decl in pipeline.datasets.items()}
    checks |= {decl.dataset: decl.checks for decl in pipeline.sources.values()}
    for arc in pipeline.all_arcs().values():
        checks |= {sink.name: sink.checks for sink in arc.sinks}
    checks |= {name: decl.checks for name, decl in pipeline.views.items()}
    context.store.run(partial(declared_checks.declare, keys=keys, pipeline=pipeline.name, wanted=checks))


def ages(pipeline: "Pipeline") -> list[Age]:
    """Return the age of each table that has a limit."""
    context = pipeline.context
    keys = ObservationKeys(context.place.cluster)
    return context.store.run(
        lambda tx: freshness.ages(tx, keys, context.keys, pipeline.name, context.clock.wall())
    )


def log_rows(pipeline: "Pipeline", wanted: EventFilter, limit: int) -> list[LogRow]:
    """Return matching events of the cluster, newest first."""
    context = pipeline.context
    keys = ObservationKeys(context.place.cluster)
    rows, _ = event_log.search(context.store, keys, wanted, limit=limit, most_read=event_log.MOST_EVENTS)
    return rows


def events_of(pipeline: "Pipeline", limit: int) -> "DataFrame":
    """Return the newest events as a Spark DataFrame."""
    events = [row.event for row in log_rows(pipeline, EventFilter(), limit)]
    columns: dict[str, list[object]] = {
        name: [getattr(each, name) for each in events] for name in SCHEMA.names
    }
    columns["at"] = [datetime.fromtimestamp(each.at, UTC) for each in events]
    columns["severity"] = [each.severity.value for each in events]
    with pipeline.context.spark() as spark:
        return spark.createDataFrame(pa.table(columns, schema=SCHEMA))
