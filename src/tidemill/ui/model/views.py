"""Views: how each is computed, and its steps."""

from functools import partial
from typing import Any

from tidemill.errors import ViewRefused
from tidemill.obs import declared_checks
from tidemill.pipeline import descriptions
from tidemill.pipeline.descriptions import ColumnInput
from tidemill.pipeline.explanation import Explanation
from tidemill.store import Tx
from tidemill.ui.model import grid, log
from tidemill.ui.model.answers import (
    CheckLine,
    ColumnLine,
    ColumnPage,
    ColumnSource,
    KernelLine,
    OperatorAnswer,
    StepLine,
    StepPage,
    ViewDetail,
    ViewLine,
    ViewPage,
)
from tidemill.ui.model.catalog import Declarations, ViewEntry
from tidemill.ui.model.overview import trigger_line
from tidemill.ui.model.reader import StoreReader
from tidemill.views.certify import certificates
from tidemill.views.circuit.explanation import CircuitExplanation
from tidemill.views.circuit.rungs import Rung
from tidemill.views.steps import checked_views, commits, failed_views, records
from tidemill.views.steps.commits import StepRow
from tidemill.views.steps.events import StepTimed
from tidemill.views.steps.failed_views import FailedView
from tidemill.views.steps.keys import group_id

MOST_LATENCIES = 200
"""How many records are read to measure the latency of steps."""


def page(reader: StoreReader, after: str = "", limit: int = 100) -> ViewPage:
    """Return a page of the views of all pipelines. `after` is the number of views before it."""
    entries = list(reader.catalog().views.values())
    first = int(after or 0)
    items = tuple(_line(reader, entry) for entry in entries[first : first + limit])
    more = first + limit < len(entries)
    return ViewPage(items=items, next=str(first + limit) if more else "")


def find(catalog: Declarations, name: str, pipeline: str = "") -> ViewEntry:
    """Return a view; raise `ViewRefused` if there is none."""
    for entry in catalog.views.values():
        if entry.name == name and pipeline in ("", entry.pipeline):
            return entry
    raise ViewRefused(f"there is no view {name!r:.200}", hint="choose a view of the list of views")


def detail(reader: StoreReader, name: str, pipeline: str = "") -> ViewDetail:
    """Describe a view."""
    entry = find(reader.catalog(), name, pipeline)
    timed = log.last_timed(reader, entry.pipeline, entry.group.spec.name)
    return ViewDetail(
        name=entry.name,
        pipeline=entry.pipeline,
        group=entry.group.spec.name,
        step=entry.group.step,
        behind=_behind(reader, entry),
        reads=tuple(read.name for read in entry.spec.reads),
        uses=entry.spec.uses,
        stale=entry.name in entry.group.stale,
        trigger=trigger_line(reader, group_id(entry.pipeline, entry.group.spec.name)),
        timed_step=timed.step if timed else 0,
        times=_times(timed),
        kernels=_kernels(timed),
        **reader.run(partial(_described, reader=reader, entry=entry)),
    )


def columns(reader: StoreReader, name: str, pipeline: str = "") -> ColumnPage:
    """Return the columns of a view, with the columns that each is computed from."""
    catalog = reader.catalog()
    entry = find(catalog, name, pipeline)
    row = reader.run(lambda tx: descriptions.read_view(tx, reader.descriptions, entry.pipeline, entry.name))
    if row is None or not row.columns:
        return ColumnPage()

    def source(each: ColumnInput) -> ColumnSource:
        view = (entry.pipeline, each.table) in catalog.views
        return ColumnSource(table=each.table, column=each.column, how=each.how, view=view)

    lines = (
        ColumnLine(name=name, sources=tuple(map(source, sources))) for name, sources in row.columns.items()
    )
    return ColumnPage(items=tuple(lines), indirect=tuple(map(source, row.indirect)), known=True)


def _times(timed: StepTimed | None) -> dict[str, float]:
    """Return the seconds of the parts of a step."""
    if timed is None:
        return {}
    parts = {"plan": timed.plan_s, "run": timed.job_s, "build state": timed.load_s, "kernels": timed.kernel_s}
    return {name: seconds for name, seconds in parts.items() if seconds}


def _described(tx: Tx, reader: StoreReader, entry: ViewEntry) -> dict[str, Any]:
    """Return what the last run stored about a view for people, and whether the view fails."""
    failing = _failing(tx, reader, entry, entry.name)
    failed = failing.text if failing is not None and failing.is_aside else ""
    row = descriptions.read_view(tx, reader.descriptions, entry.pipeline, entry.name)
    checked = {"failed": failed, **_checks(tx, reader, entry)}
    if row is None:
        return checked
    certificate = certificates.read(tx, reader.cluster, row.certificate) if row.certificate else None
    circuit = None if row.incremental is None else CircuitExplanation({}, {}, {})
    recomputed = _recomputed(tx, reader, entry, entry.name)
    explanation = Explanation(
        entry.name,
        circuit,
        certificate,
        row.declared,
        always_full=row.always_full,
        recomputed=recomputed,
    )
    operators = [
        OperatorAnswer(
            id=each.id,
            kind=each.kind,
            rung=each.rung,
            detail=each.detail,
            why=each.reason,
            inputs=each.inputs,
        )
        for each in row.operators
    ]
    return {
        "sql": row.sql,
        "where": row.where,
        "incremental": None if row.incremental is None else not recomputed,
        "cuts": 0 if recomputed else sum(each.rung == Rung.FULL.value for each in row.operators),
        "certified": explanation.certified,
        "circuit": tuple(operators),
        "notes": row.notes,
        **checked,
    }


def _checks(tx: Tx, reader: StoreReader, entry: ViewEntry) -> dict[str, Any]:
    """Return the checks of a view, how many rows fail each, and the view with these rows."""
    declared = declared_checks.read(tx, reader.observations, entry.pipeline, entry.name)
    if not declared:
        return {}
    counts = checked_views.listed(tx, reader.keys, entry.pipeline, entry.group.spec.name).get(entry.name)
    lines = (
        CheckLine(
            name=each.name,
            on_fail=each.on_fail,
            problem=each.problem,
            failing=None if counts is None else counts.rows.get(each.name, 0),
        )
        for each in declared
    )
    return {"checks": tuple(lines), "failures": "" if counts is None else counts.failures}


def _failing(tx: Tx, reader: StoreReader, entry: ViewEntry, view: str) -> FailedView | None:
    """Return why a view is set aside, or which lots it passes over; None if neither."""
    return failed_views.listed(tx, reader.keys, entry.pipeline, entry.group.spec.name).get(view)


def _recomputed(tx: Tx, reader: StoreReader, entry: ViewEntry, view: str) -> str:
    """Return why each step recomputes a view of a group; empty if a chain computes it.

    The last run has stored which views no chain can compute (`pipeline.plan.decisions`). Certificates may
    have arrived since, and an operator may have let a view pass over lots.
    """
    failing = _failing(tx, reader, entry, view)
    if failing is not None and failing.passed:
        return f"it passes over {', '.join(map(str, failing.passed))}"
    row = descriptions.read_view(tx, reader.descriptions, entry.pipeline, view)
    if row is None or row.recomputed:
        return "" if row is None else row.recomputed
    certificate = certificates.read(tx, reader.cluster, row.certificate) if row.certificate else None
    if certificate is not None and certificate.refused:
        return "it is not certified"
    (spec,) = (spec for spec in entry.group.spec.views if spec.name == view)
    read = next((name for name in spec.uses if _recomputed(tx, reader, entry, name)), "")
    return f"it reads the view {read}, which is recomputed" if read else ""


def _kernels(timed: StepTimed | None) -> tuple[KernelLine, ...]:
    """Return what the kernels of a step did, the slowest first."""
    operators = {} if timed is None else timed.operators
    lines = [
        KernelLine(id=id_, kind=kind, received=received, returned=returned, seconds=seconds)
        for id_, (kind, received, returned, seconds) in operators.items()
    ]
    return tuple(sorted(lines, key=lambda line: -line.seconds))


def steps(reader: StoreReader, name: str, pipeline: str = "", before: str = "", limit: int = 50) -> StepPage:
    """Return a page of a view's steps, newest first."""
    entry = find(reader.catalog(), name, pipeline)
    to = int(before) - 1 if before else 1 << 60
    group = entry.group.spec.name

    def read(tx: Tx) -> tuple[list[StepRow], dict[int, int]]:
        rows = commits.before(tx, reader.keys, entry.pipeline, group, to, limit)
        if not rows:
            return rows, {}
        limit_records = min(MOST_LATENCIES, rows[0].step - rows[-1].after)
        began = records.read(tx, reader.keys, entry.pipeline, rows[0].step - limit_records, limit_records)
        return rows, {record.number: record.now for record in began}

    rows, began = reader.run(read)
    items = tuple(_step(row, entry.name, began.get(row.step, 0)) for row in rows)
    return StepPage(items=items, next=str(rows[-1].step) if len(rows) == limit else "")


def _step(row: StepRow, view: str, began_us: int) -> StepLine:
    output = next((out for out in row.outputs if out.view == view and out.changes), None)
    return StepLine(
        step=row.step,
        after=row.after,
        at=row.wall_at / 1e6,
        latency_s=max(0, row.wall_at - began_us) / 1e6 if began_us else 0.0,
        rows=output.rows if output else 0,
        size=output.size if output else 0,
        attempt=row.attempt,
        views=tuple(out.view for out in row.outputs if out.changes),
        state_size=row.state_bytes,
        quarantined=0 if row.quarantined is None else sum(row.quarantined.rows.values()),
    )


def _behind(reader: StoreReader, entry: ViewEntry) -> int:
    last = reader.run(partial(records.last, keys=reader.keys, pipeline=entry.pipeline))
    return max(0, last.number - entry.group.step)


def _line(reader: StoreReader, entry: ViewEntry) -> ViewLine:
    described = reader.run(partial(_described, reader=reader, entry=entry))
    return ViewLine(
        name=entry.name,
        pipeline=entry.pipeline,
        group=entry.group.spec.name,
        step=entry.group.step,
        behind=_behind(reader, entry),
        published_at=grid.view_line(reader, entry).published_at,
        stale=entry.name in entry.group.stale,
        incremental=described.get("incremental"),
        cuts=described.get("cuts", 0),
        failed=described["failed"],
    )
