"""The operations of the API: for each its path, its parameters, its answer, and the function that reads it.

The API, its OpenAPI document and the Python client all come from this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from tidemill.obs.event_log import EventFilter
from tidemill.obs.lines import Severity
from tidemill.ui.model import (
    answers,
    cluster,
    futures,
    graph,
    grid,
    health,
    log,
    overview,
    rows,
    run,
    table,
    views,
)
from tidemill.ui.model.catalog import ViewEntry
from tidemill.ui.model.reader import StoreReader

Limit = Annotated[int, msgspec.Meta(ge=1, le=500, description="How many items to return at most.")]
FewRows = Annotated[int, msgspec.Meta(ge=1, le=100, description="How many rows to return at most.")]
Cursor = Annotated[str, msgspec.Meta(max_length=4096, description="The `next` of the page before.")]
Number = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{0,15}$", description="The `next` of the page before.")]
Hex = Annotated[
    str, msgspec.Meta(pattern=r"^([0-9a-f]{2}){0,2048}$", description="The `next` of the page before.")
]
Name = Annotated[str, msgspec.Meta(max_length=1024)]


class NoParameters(msgspec.Struct, frozen=True, kw_only=True):
    """An operation without parameters."""


class ListParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of a list."""

    after: Number = ""
    limit: Limit = 50


class RunsParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of the runs."""

    after: Hex = ""
    limit: Limit = 50


class TableParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which table; the newest version by default."""

    name: Name
    version: Name = ""


class LotsParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of a table's lots."""

    table: Name
    version: Name = ""
    before: Cursor = ""
    limit: Limit = 100


class RunParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which run: the id of an arc like `arc:shop/clean`, a lot, and a generation; the newest by default."""

    arc: Name
    lot: Name
    generation: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] | None = None


class ViewParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which view; the pipeline may be omitted if its name is unique."""

    name: Name
    pipeline: Name = ""


class StepsParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of a view's steps."""

    view: Name
    pipeline: Name = ""
    before: Number = ""
    limit: Limit = 50


class SampleParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which table or view; of a table the newest version by default."""

    table: Name
    version: Name = ""
    pipeline: Name = ""
    limit: FewRows = 20


class ViewRowsParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which view."""

    view: Name
    pipeline: Name = ""
    limit: FewRows = 20


class ChangesParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which step of a view; 0 for the last step that changed it."""

    view: Name
    pipeline: Name = ""
    step: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 0
    limit: FewRows = 50


class RecordsParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The quarantine of which table."""

    table: Name
    version: Name = ""
    limit: FewRows = 50


class TriggersParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of subscriptions; `name` is a part of their names."""

    name: Name = ""
    after: Cursor = ""
    limit: Limit = 100


class EventsParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of events.

    - severity: this severity or a worse one.
    - about, kind, lot, pipeline: exactly this.
    - text: a part of the text.
    """

    severity: Literal["", "detail", "normal", "good", "warning", "error"] | None = None
    about: Name = ""
    kind: Name = ""
    lot: Name = ""
    pipeline: Name = ""
    text: Name = ""
    before: Hex = ""
    limit: Limit = 100

    @property
    def filter(self) -> EventFilter:
        return EventFilter(
            severity=Severity(self.severity) if self.severity else None,
            about=self.about,
            kind=self.kind,
            lot=self.lot,
            pipeline=self.pipeline,
            text=self.text,
        )


class FuturesParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of futures; `name` is a part of the function's name."""

    state: Name = ""
    name: Name = ""
    before: Hex = ""
    limit: Limit = 100


class FutureParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Which future: its id, or the beginning of its id."""

    id: Name


@dataclass(frozen=True)
class Operation:
    """One operation that reads.

    Args:
        path: its path below `/api/v1`.
        summary: what it returns, for the OpenAPI document.
        parameters: the class of its query parameters.
        answer: the class of its answer.
        read: reads the answer.
        rows: whether the answer has rows of tables. If the page has a token, they need it.
    """

    path: str
    summary: str
    parameters: type[Any]
    answer: type[Any]
    read: Callable[[StoreReader, Any], Any]
    rows: bool = False

    def convert(self, query: Mapping[str, str]) -> Any:
        """Return the parameters of a request; raise `msgspec.ValidationError` if they are not valid."""
        return msgspec.convert(dict(query), self.parameters, strict=False)


def tables(reader: StoreReader, parameters: ListParameters) -> answers.TablePage:
    """Return a page of all tables, without their lots."""
    catalog = reader.catalog()
    entries = grid.tables_page(catalog)
    first = int(parameters.after or 0)
    page = entries[first : first + parameters.limit]
    lines = [
        grid.view_line(reader, entry)
        if isinstance(entry, ViewEntry)
        else grid.table_line(reader, catalog, entry)
        for entry in page
    ]
    return answers.TablePage(items=tuple(lines), next=_next(first, parameters.limit, len(entries)))


def lot_grid(reader: StoreReader, parameters: ListParameters) -> answers.GridPage:
    """Return a page of the lot grid. Quarantines have no row: their tables show which lots they have."""
    catalog = reader.catalog()
    entries = [each for each in grid.tables_page(catalog) if each not in catalog.quarantines]
    first = int(parameters.after or 0)
    rows = grid.rows_of(reader, catalog, entries[first : first + parameters.limit])
    return answers.GridPage(items=tuple(rows), next=_next(first, parameters.limit, len(entries)))


def _next(first: int, limit: int, total: int) -> str:
    return str(first + limit) if first + limit < total else ""


OPERATIONS = (
    Operation(
        "summary",
        "Problems with their root causes, and what runs now",
        NoParameters,
        answers.Summary,
        lambda reader, _: overview.summary(reader),
    ),
    Operation("grid", "The last lots of each table", ListParameters, answers.GridPage, lot_grid),
    Operation("tables", "All tables", ListParameters, answers.TablePage, tables),
    Operation(
        "table",
        "One table",
        TableParameters,
        answers.TableDetail,
        lambda reader, which: table.detail(reader, which.name, which.version),
    ),
    Operation(
        "lots",
        "The lots of a table, newest first",
        LotsParameters,
        answers.LotPage,
        lambda reader, which: table.lot_page(reader, which.table, which.version, which.before, which.limit),
    ),
    Operation(
        "sample",
        "Some rows of a table or a view",
        SampleParameters,
        answers.RowPage,
        lambda reader, which: rows.sample(reader, which.table, which.version, which.pipeline, which.limit),
        rows=True,
    ),
    Operation(
        "records",
        "Records in the quarantine of a table",
        RecordsParameters,
        answers.RecordPage,
        lambda reader, which: rows.records(reader, which.table, which.version, which.limit),
        rows=True,
    ),
    Operation(
        "runs",
        "Lots that are running or failed",
        RunsParameters,
        answers.RunPage,
        lambda reader, which: overview.runs(reader, which.after, which.limit),
    ),
    Operation(
        "run",
        "One run, with its attempts and parts",
        RunParameters,
        answers.RunDetail,
        lambda reader, which: run.detail(reader, which.arc, which.lot, which.generation),
    ),
    Operation(
        "views",
        "All views",
        ListParameters,
        answers.ViewPage,
        lambda reader, which: views.page(reader, which.after, which.limit),
    ),
    Operation(
        "view",
        "One view",
        ViewParameters,
        answers.ViewDetail,
        lambda reader, which: views.detail(reader, which.name, which.pipeline),
    ),
    Operation(
        "steps",
        "The steps of a view, newest first",
        StepsParameters,
        answers.StepPage,
        lambda reader, which: views.steps(reader, which.view, which.pipeline, which.before, which.limit),
    ),
    Operation(
        "changes",
        "Rows that a step of a view inserted and deleted",
        ChangesParameters,
        answers.RowPage,
        lambda reader, which: rows.changes(reader, which.view, which.pipeline, which.step, which.limit),
        rows=True,
    ),
    Operation(
        "columns",
        "The columns of a view, and the columns that each is computed from",
        ViewParameters,
        answers.ColumnPage,
        lambda reader, which: views.columns(reader, which.name, which.pipeline),
    ),
    Operation(
        "health",
        "Steps, changed rows, latency and state over time",
        NoParameters,
        answers.HealthPage,
        lambda reader, _: health.read(reader),
    ),
    Operation(
        "cluster",
        "Nodes, leases, the heap and schedules",
        NoParameters,
        answers.ClusterDetail,
        lambda reader, _: cluster.detail(reader),
    ),
    Operation(
        "triggers",
        "The subscriptions of arcs and view groups",
        TriggersParameters,
        answers.TriggerPage,
        lambda reader, which: cluster.triggers(reader, which.name, which.after, which.limit),
    ),
    Operation(
        "events",
        "The event log, newest first",
        EventsParameters,
        answers.EventPage,
        lambda reader, which: log.page(reader, which.filter, which.before, which.limit),
    ),
    Operation(
        "futures",
        "Futures, newest first",
        FuturesParameters,
        answers.FutureList,
        lambda reader, which: futures.page(reader, which.state, which.name, which.before, which.limit),
    ),
    Operation(
        "future",
        "One future, with its last failure and its lineage",
        FutureParameters,
        answers.FutureDetail,
        lambda reader, which: futures.detail(reader, which.id),
    ),
    Operation(
        "lineage",
        "The lineage of all tables",
        NoParameters,
        answers.Graph,
        lambda reader, _: graph.lineage(reader),
    ),
)
