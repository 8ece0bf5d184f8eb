"""`tidemill lots`: the map of a table's lots; `tidemill retry`: what failed is tried again."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import click
from rich.table import Table
from rich.text import Text

from tidemill.arcs import asks
from tidemill.arcs import lots as arc_lots
from tidemill.arcs.keys import ArcKeys
from tidemill.cli.output import Output, json_option
from tidemill.cli.pipeline import find, pipeline_option
from tidemill.errors import BadLotId, UsageError
from tidemill.lots.ids import LotId
from tidemill.pipeline.overview import LotShown

MARKS = {
    "complete": ("█", "green"),
    "empty": ("░", "green"),
    "running": ("▓", "cyan"),
    "partial": ("▒", "yellow"),
    "missing": ("×", "red"),
    "removed": ("-", "dim"),
    "waiting": ("·", "dim"),
}
WIDTH = 60


@click.command("lots")
@click.argument("table")
@pipeline_option
@click.option("--list", "listed", is_flag=True, help="List every lot instead of drawing them.")
@json_option
def lots_command(output: Output, table: str, file: str | None, listed: bool) -> None:
    """Draw the lots of a table: what is complete, empty, running, partial, missing."""
    with find(file) as pipeline:
        found = pipeline[table].lots()
    output.result({"table": table, "lots": found})
    if output.json:
        return
    if not found:
        output.people.print(Text(f"{table} has no lots yet"))
        return
    if listed:
        output.people.print(_list(found))
        return
    for line in drawn(found):
        output.people.print(line)
    for one in found:
        if one.state in ("partial", "missing"):
            output.people.print(Text.assemble((f"{one.lot} ", "bold"), (one.note, "red")))


def drawn(found: Sequence[LotShown]) -> Iterator[Text]:
    """The map: a line for each day of intervals, or for so many appends; then what the marks mean."""
    for label, row in _rows(found):
        line = Text(f"{label:>22} ", style="dim")
        for one in row:
            mark, style = MARKS["waiting"] if one is None else MARKS[one.state]
            line.append(" " if one is None else mark, style=style)
        yield line
    counts: Counter[str] = Counter(one.state for one in found)
    legend = Text(" " * 23)
    for state, (mark, style) in MARKS.items():
        if counts[state]:
            legend.append(f"{mark} {state} {counts[state]}   ", style=style)
    yield legend


def _rows(found: Sequence[LotShown]) -> Iterator[tuple[str, list[LotShown | None]]]:
    try:
        ids = [LotId.parse(one.lot) for one in found]
    except BadLotId:
        for first in range(0, len(found), WIDTH):
            page = found[first : first + WIDTH]
            yield page[0].lot[-22:], list(page)
        return
    days: dict[str, list[LotShown | None]] = {}
    for lot, one in zip(ids, found, strict=True):
        day = lot.start.strftime("%Y-%m-%d")
        row = days.setdefault(day, [])
        missing = lot.ordinal - len(row) if len(days) > 1 else 0
        row += [None] * max(0, missing)
        row.append(one)
    for day, row in days.items():
        for first in range(0, len(row), WIDTH):
            yield day if not first else "", row[first : first + WIDTH]


def _list(found: Sequence[LotShown]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("lot", "state", "gen", "position", "rows", "bytes", "published", ""):
        table.add_column(name, overflow="fold")
    for one in found:
        at = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d %H:%M:%S") if one.at else ""
        table.add_row(
            Text(one.lot),
            Text(one.state, style=MARKS[one.state][1]),
            str(one.generation) if one.generation else "",
            str(one.position or ""),
            f"{one.rows:,}",
            f"{one.size:,}",
            at,
            Text(one.note, style="red"),
        )
    return table


@click.command("retry")
@click.argument("arc", required=False)
@click.argument("lots", nargs=-1)
@pipeline_option
@json_option
def retry_command(output: Output, arc: str | None, lots: tuple[str, ...], file: str | None) -> int:
    """Ask for another try at lots that are partial or missing: of one ARC, or of all.

    The next run does it, with only the parts that failed, unless the arc's code has changed.
    """
    with find(file) as pipeline:
        if arc is not None and arc not in pipeline.arcs:
            raise UsageError(
                f"{pipeline.name} has no arc {arc}", hint=f"it has {', '.join(pipeline.arcs) or 'none'}"
            )
        keys = ArcKeys(pipeline.site.place.cluster)
        asked = []
        for name in [arc] if arc is not None else list(pipeline.arcs):
            id_ = f"arc:{pipeline.name}/{name}"
            store = pipeline.site.store
            troubled = store.run(partial(arc_lots.troubled, keys=keys, arc=id_, limit=1000))
            for lot in lots or [one.lot for one in troubled]:
                store.run(partial(asks.ask, keys=keys, arc=id_, lot=lot))
                asked.append({"arc": name, "lot": lot})
    output.result({"asked": asked})
    for one in asked:
        output.people.print(Text(f"{one['arc']}: lot {one['lot']} is tried again by the next run"))
    if not asked:
        output.people.print(Text("nothing is partial or missing"))
    return 0
