"""The values that the page and the API return. These classes are also the schema of the API (`openapi`).

Times are seconds since 1970, durations are seconds. A page of a list has `next`: the argument for the next
page, empty after the last page.

The file is long because it lists all of these classes in one place. It contains no logic.
"""

from typing import Annotated, Literal

import msgspec

CellState = Literal["complete", "empty", "removed", "running", "partial", "missing", "dead", "absent"]
TableKind = Literal["dataset", "arc", "view", "quarantine"]


class LotCell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One lot of a table, published or expected; for a view, one step.

    - quarantined: how many records of the lot are in quarantine.
    - why: why the lot is not published.
    - cause: the table where the problem began, if it is another table.
    """

    lot: str
    state: CellState
    rows: int = 0
    size: int = 0
    generation: int = 0
    position: int = 0
    quarantined: int = 0
    why: str = ""
    cause: str = ""


class TableLine(msgspec.Struct, frozen=True, kw_only=True):
    """A table in a list.

    - pipelines: the pipelines that declare the table.
    - position: the position of the newest lot; for a view, its step.
    - published_at: when the newest lot was published; 0 before the first.
    - unit: the length of the intervals that form lots, like `PT5M`; empty if each append is a lot.
    - maker: the arc that writes the table, or the group of the view.
    """

    name: str
    version: str
    kind: TableKind
    pipelines: tuple[str, ...]
    position: int
    published_at: float
    unit: str = ""
    maker: str = ""
    retired: bool = False


class GridRow(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the lot grid, with its last lots, oldest first."""

    table: TableLine
    cells: tuple[LotCell, ...]


class LotTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The lots of a table by state, and their rows and bytes; `at` is when they were counted."""

    states: dict[str, int]
    rows: int
    size: int
    at: float


class Action(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action that a user can take.

    - pipeline: the pipeline that it changes; empty for the pipeline of the server.
    - target: an arc, a table, a view group or a source; for `requeue`, the id of a future; for `reingest` and
      `discard`, the table whose quarantine has the records.
    - lots: only these lots.
    - first, last: for `backfill` and `replay`, a range of lots instead: lot ids, days or times.
    """

    name: Literal["retry", "pause", "resume", "backfill", "replay", "reingest", "discard", "requeue"]
    pipeline: str = ""
    target: str = ""
    lots: Annotated[tuple[str, ...], msgspec.Meta(max_length=10_000)] = ()
    first: str = ""
    last: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention, its root cause, and the action that fixes it.

    - lots: the first lots that have this problem; `count` is the number of all of them.
    """

    kind: Literal["lots", "stopped", "paused", "futures", "node", "quarantine", "source", "view", "stale"]
    name: str
    state: str
    why: str
    count: int = 1
    lots: tuple[str, ...] = ()
    fix: Action | None = None


class RunningLine(msgspec.Struct, frozen=True, kw_only=True):
    """Work that a node does now. `alive` is False if its node is gone; another runner then continues it."""

    kind: Literal["lot", "run"]
    name: str
    lot: str = ""
    generation: int = 0
    node: str = ""
    for_s: float = 0.0
    tries: int = 1
    alive: bool = True


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer of the page: how the pipelines of the cluster are."""

    cluster: str
    pipelines: tuple[str, ...]
    tables: int
    nodes: int
    leader: str
    futures: dict[str, int]
    problems: tuple[Problem, ...]
    running: tuple[RunningLine, ...]


class TablePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tables."""

    items: tuple[TableLine, ...]
    next: str = ""


class GridPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the lot grid."""

    items: tuple[GridRow, ...]
    next: str = ""


class LotPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a table's lots, newest first."""

    items: tuple[LotCell, ...]
    next: str = ""


class SchemaRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a table at one time; the last revision is the current one."""

    revision: int
    schema: str


class RowPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a table, as text; None is NULL.

    - weights: how many times each row was inserted (above 0) or deleted (below 0); empty if rows have none.
    - lot: the lot or the step that the rows are from.
    - more: whether there are more rows.
    - why: why there are no rows.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    weights: tuple[int, ...] = ()
    lot: str = ""
    more: bool = False
    why: str = ""


class RecordLine(msgspec.Struct, frozen=True, kw_only=True):
    """A record in quarantine: its lot, what is wrong, where it was read, and the record as text."""

    lot: str
    error: str
    check: str
    file: str
    line: str
    record: str


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records in the quarantine of a table; `records` is the number of all of them."""

    items: tuple[RecordLine, ...]
    records: int


class ColumnSource(msgspec.Struct, frozen=True, kw_only=True):
    """A column that another one is computed from, and how; `view` if its table is a view."""

    table: str
    column: str
    how: str
    view: bool = False


class ColumnLine(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a view, and the columns that it is computed from."""

    name: str
    sources: tuple[ColumnSource, ...]


class ColumnPage(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a view.

    - known: whether they could be derived from the query.
    - indirect: the columns that decide which rows there are: those that filter, join, group or sort.
    """

    items: tuple[ColumnLine, ...] = ()
    indirect: tuple[ColumnSource, ...] = ()
    known: bool = False


class HealthBucket(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of all views in one span of time, which begins at `at`.

    - latency_s: the mean time from the record of a step to its commit; 0 without steps.
    - state_size: the bytes of the state of all groups at the end of the span.
    """

    at: float
    steps: int = 0
    rows: int = 0
    latency_s: float = 0.0
    state_size: int = 0


class HealthPage(msgspec.Struct, frozen=True, kw_only=True):
    """How the views of a cluster were over time, oldest first; each item covers `every_s` seconds."""

    items: tuple[HealthBucket, ...]
    every_s: float


class TriggerLine(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription of an arc or a view group; see `tidemill triggers`."""

    name: str
    state: str
    why: str
    in_s: float | None
    behind: int
    failures: int
    requested: int


class CheckLine(msgspec.Struct, frozen=True, kw_only=True):
    """A check of the rows of each lot, or of a view; `on_fail` says what happens to rows that fail.

    - failing: how many rows of a view fail; None for other tables.
    """

    name: str
    on_fail: str
    problem: str
    failing: int | None = None


class TableDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One table.

    - totals: None while they are being counted.
    - keep_s: how long lots are kept; None for ever.
    - quarantined: how many records are in quarantine, in how many lots.
    - reads, read_by: the tables upstream and downstream; `read_by_views` are those that are views.
    - trigger: the trigger of the arc that writes the table.
    - source: where the rows come from, if the table has a source.
    - fresh_within_s: how long ago the newest lot may have been published; `stale` if it was before.
    - checks: the declared checks of its rows.
    """

    table: TableLine
    schemas: tuple[SchemaRevision, ...]
    key: tuple[str, ...] = ()
    drift: str = ""
    totals: LotTotals | None = None
    keep_s: float | None = None
    expired: int = 0
    quarantine: str = ""
    quarantined: int = 0
    quarantined_lots: int = 0
    reads: tuple[str, ...] = ()
    read_by: tuple[str, ...] = ()
    read_by_views: tuple[str, ...] = ()
    trigger: TriggerLine | None = None
    source: str = ""
    fresh_within_s: float | None = None
    stale: bool = False
    checks: tuple[CheckLine, ...] = ()


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the event log.

    - kind: the name of the event's class.
    - about: the arc, source, view group or node.
    - details: the fields of the event, as JSON.
    """

    at: float
    severity: Literal["detail", "normal", "good", "warning", "error"]
    kind: str
    about: str
    text: str
    lot: str = ""
    pipeline: str = ""
    node: str = ""
    details: str = ""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events, newest first. A page with a filter may be short although there are more."""

    items: tuple[EventLine, ...]
    next: str = ""


class PartLine(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an attempt; `future` is the id of the future that makes it, if it still exists."""

    name: str
    future: str = ""
    state: str = ""
    node: str = ""
    tries: int = 0
    claimed_s: float = 0.0
    error: str = ""
    traceback: str = ""


class AttemptLine(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a lot; `at` is when it began (open) or ended, in seconds before now."""

    id: str
    state: str
    node: str = ""
    ago_s: float = 0.0
    code: str = ""
    why: str = ""
    parked: bool = False
    inputs: tuple[str, ...] = ()
    parts: tuple[PartLine, ...] = ()
    more_parts: int = 0


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of an arc's lot, with its attempts, newest first."""

    arc: str
    pipeline: str
    name: str
    lot: str
    generation: int
    generations: tuple[int, ...]
    state: str
    why: str = ""
    tries: int = 0
    node: str = ""
    requested: bool = False
    writes: tuple[str, ...] = ()
    attempts: tuple[AttemptLine, ...] = ()


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list: a lot of an arc that is running or failed."""

    arc: str
    pipeline: str
    name: str
    lot: str
    generation: int
    state: str
    why: str = ""
    tries: int = 0
    node: str = ""
    for_s: float = 0.0


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs."""

    items: tuple[RunLine, ...]
    next: str = ""


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a group of views.

    - rows: how many rows of the view changed.
    - latency_s: from the record of the step to its commit.
    - state_size: the bytes of the group's state after the step.
    """

    step: int
    after: int
    at: float
    latency_s: float
    rows: int
    size: int
    attempt: str = ""
    views: tuple[str, ...] = ()
    quarantined: int = 0
    state_size: int = 0


class StepPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of steps, newest first."""

    items: tuple[StepLine, ...]
    next: str = ""


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel did in one step of a group: its rows and its time, summed over all tasks.

    Linear operators of a circuit have no kernel: they are part of what a kernel reads or returns.
    """

    id: str
    kind: str
    received: int
    returned: int
    seconds: float


class OperatorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of a view's circuit: its rung, what it does, and the operators that it reads."""

    id: str
    kind: str
    rung: str
    detail: str = ""
    why: str = ""
    inputs: tuple[str, ...] = ()


class ViewDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One view.

    - sql, circuit, certified, incremental: known after a runner has planned the pipeline with this release.
    - incremental: whether a chain of kernels updates the view; otherwise each step recomputes it.
    - cuts: how many operators of that chain are recomputed from their stored inputs.
    - stale: whether the next step rebuilds the view, because it changed.
    - failed: why the view is set aside; empty if it is not.
    - checks, failures: the checks of its rows, and the view with the rows that fail.
    - timed_step, times, kernels: the last step of the group whose times are in the event log, the seconds of
      its parts, and its kernels.
    """

    name: str
    pipeline: str
    group: str
    step: int
    behind: int
    reads: tuple[str, ...]
    uses: tuple[str, ...]
    stale: bool
    trigger: TriggerLine | None = None
    sql: str = ""
    where: str = ""
    incremental: bool | None = None
    cuts: int = 0
    certified: str = ""
    circuit: tuple[OperatorAnswer, ...] = ()
    notes: tuple[str, ...] = ()
    failed: str = ""
    checks: tuple[CheckLine, ...] = ()
    failures: str = ""
    timed_step: int = 0
    times: dict[str, float] = {}
    kernels: tuple[KernelLine, ...] = ()


class ViewLine(msgspec.Struct, frozen=True, kw_only=True):
    """A view in a list."""

    name: str
    pipeline: str
    group: str
    step: int
    behind: int
    published_at: float
    stale: bool
    incremental: bool | None = None
    cuts: int = 0
    failed: str = ""


class ViewPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of views."""

    items: tuple[ViewLine, ...]
    next: str = ""


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One node; `state` is live, draining or gone. `lease_s` is negative after its lease has ended."""

    id: str
    kind: str
    state: str
    leader: bool
    address: str
    slots: int
    lease_s: float
    claims: int
    total: dict[str, float]
    free: dict[str, float]


class ClusterDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes, the heap and the schedules of a cluster."""

    cluster: str
    leader: str
    nodes: tuple[NodeAnswer, ...]
    heap: str
    heap_lag_s: float
    rebuilding: bool
    templates: tuple[str, ...]
    schedules: tuple[str, ...]


class TriggerPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of subscriptions."""

    items: tuple[TriggerLine, ...]
    next: str = ""


class FutureLine(msgspec.Struct, frozen=True, kw_only=True):
    """A future in a list."""

    id: str
    name: str
    state: str
    age_s: float
    node: str = ""
    tries: int = 0
    queue: str = ""
    detail: str = ""


class FutureList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of futures, newest first. A page with a filter may be short although there are more."""

    items: tuple[FutureLine, ...]
    next: str = ""


class FutureNode(msgspec.Struct, frozen=True, kw_only=True):
    """A future in a lineage, at a depth; `again` if its inputs are shown further up."""

    depth: int
    id: str
    name: str
    state: str
    error: str = ""
    again: bool = False
    more: int = 0


class FutureDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One future: its state, its last failure, and the futures that it was computed from."""

    id: str
    name: str
    state: str
    age_s: float
    owner: str
    node: str
    status: str
    queue: str
    priority: int
    max_retries: int
    key: str
    parent: str
    actor: str
    counts: dict[str, int]
    copies: int
    failure_kind: str = ""
    failure: str = ""
    traceback: str = ""
    failed_on: str = ""
    caused_by: tuple[str, ...] = ()
    lineage: tuple[FutureNode, ...] = ()


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A source, table, arc or view in the lineage; `column` is its distance from the sources."""

    id: str
    kind: Literal["source", "dataset", "arc", "view"]
    name: str
    pipeline: str
    state: str = ""
    detail: str = ""
    column: int = 0


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the lineage that feeds another node."""

    source: str
    target: str


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """The lineage of all tables, left to right."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    left_out: int = 0


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did, as a sentence, and the names or lots that it changed."""

    message: str
    changed: tuple[str, ...] = ()


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An error: its stable code, what happened, and what to do."""

    code: str
    message: str
    hint: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server can read the store."""

    ok: bool
    release: str
    message: str = ""
