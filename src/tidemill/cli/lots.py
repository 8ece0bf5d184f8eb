"""Define `tidemill lots`: draw or list the lots of a table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import BadLotId
from tidemill.lots.ids import LotId
from tidemill.pipeline.lot_info import LotInfo
from tidemill.pipeline.pipeline_file import find

MARKS = {
    "complete": ("█", "green"),
    "empty": ("░", "green"),
    "running": ("▓", "cyan"),
    "partial": ("▒", "yellow"),
    "missing": ("×", "red"),
    "removed": ("-", "dim"),
    "waiting": ("·", "dim"),
}
WORDS = {"partial": "failed (finished parts are kept)", "missing": "failed"}
"""What people read for states that they would not expect under their names."""

WIDTH = 60


@click.command("lots")
@click.argument("table")
@pipeline_option
@click.option("--list", "listed", is_flag=True, help="List the lots instead of drawing them.")
@json_option
def lots_command(output: CommandOutput, table: str, file: str | None, listed: bool) -> None:
    """Draw the lots of a table with their states."""
    with find(file) as pipeline:
        lots = pipeline[table].lots()
    output.result({"table": table, "lots": lots})
    if output.json:
        return
    if not lots:
        output.people.print(Text(f"{table} has no lots yet"))
        return
    if listed:
        output.people.print(_list(lots))
        return
    for line in drawn(lots):
        output.people.print(line)
    for lot in lots:
        if lot.state in ("partial", "missing"):
            output.people.print(Text.assemble((f"{lot.lot} ", "bold"), (lot.note, "red")))


def drawn(lots: Sequence[LotInfo]) -> Iterator[Text]:
    """Yield the lines of the drawing: one line for each day, or for every 60 appends; then a legend."""
    for label, row in _rows(lots):
        line = Text(f"{label:>22} ", style="dim")
        for lot in row:
            mark, style = MARKS["waiting"] if lot is None else MARKS[lot.state]
            line.append(" " if lot is None else mark, style=style)
        yield line
    counts: Counter[str] = Counter(lot.state for lot in lots)
    legend = Text(" " * 23)
    for state, (mark, style) in MARKS.items():
        if counts[state]:
            legend.append(f"{mark} {WORDS.get(state, state)}: {counts[state]}   ", style=style)
    yield legend


def _rows(lots: Sequence[LotInfo]) -> Iterator[tuple[str, list[LotInfo | None]]]:
    try:
        ids = [LotId.parse(lot.lot) for lot in lots]
    except BadLotId:
        for first in range(0, len(lots), WIDTH):
            page = lots[first : first + WIDTH]
            yield page[0].lot[-22:], list(page)
        return
    days: dict[str, list[LotInfo | None]] = {}
    for id_, lot in zip(ids, lots, strict=True):
        day = id_.start.strftime("%Y-%m-%d")
        row = days.setdefault(day, [])
        missing = id_.ordinal - len(row) if len(days) > 1 else 0
        row += [None] * max(0, missing)
        row.append(lot)
    for day, row in days.items():
        for first in range(0, len(row), WIDTH):
            yield day if not first else "", row[first : first + WIDTH]


def _list(lots: Sequence[LotInfo]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("lot", "state", "generation", "position", "rows", "bytes", "published", ""):
        table.add_column(name, overflow="fold")
    for lot in lots:
        at = datetime.fromtimestamp(lot.at, UTC).strftime("%Y-%m-%d %H:%M:%S") if lot.at else ""
        table.add_row(
            Text(lot.lot),
            Text(WORDS.get(lot.state, lot.state), style=MARKS[lot.state][1]),
            str(lot.generation) if lot.generation else "",
            str(lot.position or ""),
            f"{lot.rows:,}",
            f"{lot.size:,}",
            at,
            Text(lot.note, style="red"),
        )
    return table
