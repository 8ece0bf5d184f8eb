"""`tidemill lots`: the map of a table's lots."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.output import CommandOutput, json_option
from tidemill.cli.pipeline import find, pipeline_option
from tidemill.errors import BadLotId
from tidemill.lots.ids import LotId
from tidemill.pipeline.lot_info import LotInfo

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
def lots_command(output: CommandOutput, table: str, file: str | None, listed: bool) -> None:
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


def drawn(found: Sequence[LotInfo]) -> Iterator[Text]:
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


def _rows(found: Sequence[LotInfo]) -> Iterator[tuple[str, list[LotInfo | None]]]:
    try:
        ids = [LotId.parse(one.lot) for one in found]
    except BadLotId:
        for first in range(0, len(found), WIDTH):
            page = found[first : first + WIDTH]
            yield page[0].lot[-22:], list(page)
        return
    days: dict[str, list[LotInfo | None]] = {}
    for lot, one in zip(ids, found, strict=True):
        day = lot.start.strftime("%Y-%m-%d")
        row = days.setdefault(day, [])
        missing = lot.ordinal - len(row) if len(days) > 1 else 0
        row += [None] * max(0, missing)
        row.append(one)
    for day, row in days.items():
        for first in range(0, len(row), WIDTH):
            yield day if not first else "", row[first : first + WIDTH]


def _list(found: Sequence[LotInfo]) -> Table:
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
