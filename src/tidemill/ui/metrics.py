"""Metrics in the format of Prometheus, read from the store when they are requested.

So a page shows the metrics of the whole cluster, and counters survive the restart of a runner. Labels are
names of tables, pipelines and groups; never lots, whose number has no limit.
"""

from collections.abc import Iterator
from functools import partial
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tidemill import __version__
from tidemill.arcs.inventory import Inventory
from tidemill.arcs.states import ArcState
from tidemill.cluster import node_list
from tidemill.lots.keys import DatasetId
from tidemill.ui.model import grid, overview
from tidemill.ui.model.answers import TableLine
from tidemill.ui.model.catalog import Declarations, ViewEntry
from tidemill.ui.model.overview import all_triggers
from tidemill.ui.model.reader import StoreReader
from tidemill.views.steps import commits, records
from tidemill.views.steps.commits import StepRow

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
PAGE = 100


class PageMetrics(Collector):
    """Collects the metrics of a cluster. Several threads may share it."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._steps: dict[tuple[str, str], GroupCounts] = {}
        self._lock = Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type, in the format that the request accepts."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        catalog = self._reader.catalog()
        build = GaugeMetricFamily("tidemill_build_info", "The release of Tidemill.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield from self._lots(catalog)
        yield from self._ages(catalog)
        yield from self._views(catalog)
        yield from self._cluster()

    # --- tables

    def _lots(self, catalog: Declarations) -> Iterator[Metric]:
        lots = GaugeMetricFamily(
            "tidemill_lots", "Lots of a table by state.", labels=["pipeline", "table", "state"]
        )
        rows = GaugeMetricFamily(
            "tidemill_table_rows", "Rows in the lots of a table.", labels=["pipeline", "table"]
        )
        size = GaugeMetricFamily(
            "tidemill_table_bytes", "Bytes in the lots of a table.", labels=["pipeline", "table"]
        )
        published = GaugeMetricFamily(
            "tidemill_last_published_timestamp_seconds",
            "When the newest lot or step of a table was published.",
            labels=["pipeline", "table"],
        )
        inventory = Inventory(self._reader.store, self._reader.arcs, catalog.arcs.values())
        for table in catalog.ordered:
            if catalog.is_retired(table):
                continue
            line = grid.table_line(self._reader, catalog, table)
            labels = [_pipeline(line), _label(table)]
            totals = self._reader.totals.of(table)
            if totals is not None:
                for state, number in totals.states.items():
                    lots.add_metric([*labels, state], number)
                rows.add_metric(labels, totals.rows)
                size.add_metric(labels, totals.size)
            spec = catalog.makers.get(table)
            if spec is not None:
                states = [state for state, _ in inventory.unfinished(spec.id).values()]
                for state in (ArcState.RUNNING, ArcState.PARTIAL, ArcState.MISSING):
                    lots.add_metric([*labels, state.value], states.count(state))
            if line.published_at:
                published.add_metric(labels, line.published_at)
        for entry in catalog.views.values():
            line = grid.view_line(self._reader, entry)
            if line.published_at:
                published.add_metric([entry.pipeline, entry.name], line.published_at)
        yield from (lots, rows, size, published)

    def _ages(self, catalog: Declarations) -> Iterator[Metric]:
        limits = GaugeMetricFamily(
            "tidemill_fresh_within_seconds",
            "How long ago the newest lot or step of a table may have been published.",
            labels=["pipeline", "table"],
        )
        ages = GaugeMetricFamily(
            "tidemill_age_seconds",
            "How long ago the newest lot or step was published, or the limit declared.",
            labels=["pipeline", "table"],
        )
        for pipeline in catalog.pipelines:
            for age in overview.ages(self._reader, pipeline):
                limits.add_metric([pipeline, age.table], age.within_s)
                ages.add_metric([pipeline, age.table], age.age_s)
        yield from (limits, ages)

    # --- steps of views

    def _views(self, catalog: Declarations) -> Iterator[Metric]:
        steps = CounterMetricFamily(
            "tidemill_steps", "Committed steps of a view group.", labels=["pipeline", "group"]
        )
        rows = CounterMetricFamily(
            "tidemill_rows", "Changed rows of a view, in all steps.", labels=["pipeline", "table"]
        )
        durations = HistogramMetricFamily(
            "tidemill_step_duration_seconds",
            "From the record of a step to its commit.",
            labels=["pipeline", "group"],
        )
        state = GaugeMetricFamily(
            "tidemill_state_bytes", "Bytes of the traces of a view group.", labels=["pipeline", "group"]
        )
        for pipeline, group in catalog.groups:
            counts = self._count(pipeline, group.spec.name)
            state.add_metric([pipeline, group.spec.name], counts.state_size)
            steps.add_metric([pipeline, group.spec.name], counts.steps)
            durations.add_metric([pipeline, group.spec.name], counts.buckets(), counts.seconds)
            for view, number in sorted(counts.rows.items()):
                rows.add_metric([pipeline, view], number)
        yield from (steps, rows, durations, state)

    def _count(self, pipeline: str, group: str) -> "GroupCounts":
        """Return the counts of a group, after adding the steps since the last call."""
        with self._lock:
            counts = self._steps.setdefault((pipeline, group), GroupCounts())
            while page := self._reader.run(
                partial(
                    commits.rows,
                    keys=self._reader.keys,
                    pipeline=pipeline,
                    group=group,
                    after=counts.step,
                    to=1 << 60,
                    limit=PAGE,
                )
            ):
                began = self._began(pipeline, page)
                for row in page:
                    counts.add(row, began.get(row.step, 0))
            return counts

    def _began(self, pipeline: str, page: list[StepRow]) -> dict[int, int]:
        first, last = page[0].step - 1, page[-1].step
        rows = self._reader.run(
            partial(records.read, keys=self._reader.keys, pipeline=pipeline, after=first, limit=last - first)
        )
        return {record.number: record.now for record in rows}

    # --- the cluster

    def _cluster(self) -> Iterator[Metric]:
        nodes = GaugeMetricFamily("tidemill_nodes", "Nodes by kind and state.", labels=["kind", "state"])
        counts: dict[tuple[str, str], int] = {}
        for node in self._reader.run(partial(node_list.read, keys=self._reader.keys.cluster)):
            counts[node.kind, node.state] = counts.get((node.kind, node.state), 0) + 1
        for (kind, state), number in sorted(counts.items()):
            nodes.add_metric([kind, state], number)
        futures = GaugeMetricFamily("tidemill_futures", "Futures by state.", labels=["state"])
        for state, number in sorted(self._reader.count_futures().items()):
            futures.add_metric([state], number)
        triggers = GaugeMetricFamily(
            "tidemill_triggers", "Subscriptions of arcs and view groups by state.", labels=["state"]
        )
        states: dict[str, int] = {}
        for info in all_triggers(self._reader):
            states[info.state.value] = states.get(info.state.value, 0) + 1
        for state, number in sorted(states.items()):
            triggers.add_metric([state], number)
        yield from (nodes, futures, triggers)


class GroupCounts:
    """The steps of a group so far: their number, their durations, and the rows of each view."""

    def __init__(self) -> None:
        self.step = 0
        self.steps = 0
        self.seconds = 0.0
        self.rows: dict[str, int] = {}
        self.state_size = 0
        self._buckets = [0] * (len(BUCKETS) + 1)

    def add(self, row: StepRow, began_us: int) -> None:
        """Count a step. A step whose record has expired has no duration."""
        self.step = row.step
        if not row.attempt:
            return
        self.steps += 1
        self.state_size = row.state_bytes or self.state_size
        for output in row.outputs:
            self.rows[output.view] = self.rows.get(output.view, 0) + output.rows
        if began_us:
            seconds = max(0, row.wall_at - began_us) / 1e6
            self.seconds += seconds
            at = next((number for number, most in enumerate(BUCKETS) if seconds <= most), len(BUCKETS))
            self._buckets[at] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative buckets of a histogram."""
        total = 0
        pairs = []
        for most, number in zip([*map(str, BUCKETS), "+Inf"], self._buckets, strict=True):
            total += number
            pairs.append((most, float(total)))
        return pairs


def _pipeline(line: TableLine) -> str:
    return ",".join(line.pipelines)


def _label(table: DatasetId | ViewEntry) -> str:
    if isinstance(table, ViewEntry):
        return table.name
    return table.name if table.version == "1" else str(table)
