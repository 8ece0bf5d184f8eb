"""HTML for notebooks: what pipelines, tables, lots, plans, explanations and reports show there."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from tidemill.errors import NothingYet
from tidemill.pipeline.lot_info import LotInfo

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.plan.costs import ViewCost
    from tidemill.pipeline.tables import Table

MOST_ROWS = 20
COLOURS = {
    "complete": "#287a3c",
    "new": "#287a3c",
    "changed": "#9a6700",
    "rebuild": "#9a6700",
    "running": "#0b5cad",
    "waiting": "#0b5cad",
    "partial": "#b42318",
    "missing": "#b42318",
    "removed": "#b42318",
    "refused": "#b42318",
}


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. The words in `COLOURS` have colours; numbers have thousands separators."""
    cells = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"<td style='text-align:right'>{value:,}</td>"
    text = escape(str(value))
    colour = COLOURS.get(str(value))
    return f"<td style='text-align:left{f';color:{colour}' if colour else ''}'>{text}</td>"


def preformatted(text: str) -> str:
    """Return text that keeps its spaces and lines."""
    return f"<pre>{escape(text)}</pre>"


def pipeline_html(pipeline: "Pipeline") -> str:
    """Return the tables of a pipeline. The store is read only if this process has opened it already."""
    head = ["table", "kind", "declared at"]
    arcs = {sink.name: arc.name for arc in pipeline.all_arcs().values() for sink in arc.sinks}
    rows: list[list[object]] = []
    for name in pipeline.names:
        kind = "view" if name in pipeline.views else f"arc {arcs[name]}" if name in arcs else "dataset"
        if pipeline.sources_of(name):
            kind = "dataset with a source"
        ((_, line), *_) = pipeline.declared_at(name)
        rows.append([name, kind, str(line)])
    if pipeline.is_open:
        head.append("position")
        for row in rows:
            row.append(pipeline[str(row[0])].position)
    return f"<b>pipeline {escape(pipeline.name)}</b>{html_table(head, rows)}"


def table_html(table: "Table") -> str:
    """Return the first rows of a table."""
    try:
        frame = table.df().limit(MOST_ROWS)
    except NothingYet as error:
        return f"<b>{escape(table.name)}</b>: {escape(error.message)}"
    rows = html_table(frame.columns, (tuple(row) for row in frame.collect()))
    return f"<b>{escape(table.name)}</b> at position {table.position:,}{rows}"


def plan_html(stages: Sequence[dict[str, str]], costs: Sequence["ViewCost"]) -> str:
    """Return what a plan would change, and what it would rebuild."""
    names = ("status", "what", "name", "detail", "where")
    text = html_table(
        ("", "what", "name", "detail", "declared at"), ([stage[n] for n in names] for stage in stages)
    )
    if not costs:
        return text
    lines = (
        ["rebuild" if cost.rebuilds else "new", cost.view, cost.why, cost.lots, cost.rows, cost.size]
        for cost in costs
    )
    return text + html_table(("", "view", "why", "lots", "rows", "bytes"), lines)


class LotList(list[LotInfo]):
    """A list of lots that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = ([lot.lot, lot.state, lot.generation, lot.rows, lot.size, lot.note] for lot in self)
        return html_table(("lot", "state", "generation", "rows", "bytes", "note"), rows)
