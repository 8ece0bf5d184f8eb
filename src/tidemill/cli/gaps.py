"""`tidemill gaps`: lots that should be there and are not, and where that began."""

from collections.abc import Iterator, Sequence

import click
import msgspec
from rich.table import Table
from rich.text import Text

from tidemill.arcs.gaps import Cause, Coverage, Gap, GapState
from tidemill.cli.output import Output, json_option
from tidemill.cli.pipeline import find, pipeline_option

STYLES = {
    GapState.ABSENT: "yellow",
    GapState.RUNNING: "cyan",
    GapState.PARTIAL: "yellow",
    GapState.MISSING: "red",
    GapState.DEAD: "bold red",
}


class Stretch(msgspec.Struct, frozen=True):
    """Gaps of one table, one after the other among its gaps, of one state and cause."""

    table: str
    first: str
    last: str
    count: int
    state: GapState
    cause: Cause


@click.command("gaps")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@pipeline_option
@click.option("--from", "first", metavar="LOT", help="Look at lots from here on: a lot, a day or a time.")
@click.option("--to", "last", metavar="LOT", help="Look at lots up to here, included.")
@click.option(
    "--limit",
    default=1000,
    show_default=True,
    type=click.IntRange(0),
    help="Tell at most so many, for each table.",
)
@json_option
def gaps_command(
    output: Output,
    tables: tuple[str, ...],
    file: str | None,
    first: str | None,
    last: str | None,
    limit: int,
) -> int:
    """Find lots that should be there and are not: of TABLEs, or of all. Exit code 1 when there are any.

    Each is absent, running, partial, missing or dead; where it began is looked for upstream.
    """
    with find(file) as pipeline:
        report = pipeline.gaps(*tables, first=first, last=last)
    output.result(
        {
            "pipeline": report.pipeline,
            "ok": bool(report),
            "tables": [_told(table, limit) for table in report.tables],
        }
    )
    if not output.json:
        output.people.print(_summary(report.tables))
        stretches = [one for table in report.tables for one in stretches_of(table.gaps[:limit])]
        if stretches:
            output.people.print()
            output.people.print(_table(stretches))
            output.people.print(Text(f"hint: {_hint(stretches)}", style="dim"))
    return 0 if report else 1


def _told(table: Coverage, limit: int) -> dict[str, object]:
    return {
        "table": table.table,
        "expected": table.expected,
        "complete": table.complete,
        "empty": table.empty,
        "gaps": len(table.gaps),
        "counts": table.counts,
        "earliest_gap": table.gaps[0].lot if table.gaps else None,
        "latest_gap": table.gaps[-1].lot if table.gaps else None,
        "lots": table.gaps[:limit],
    }


def stretches_of(gaps: Sequence[Gap]) -> Iterator[Stretch]:
    """Gaps that follow each other with one state and cause, as one."""
    begun: list[Gap] = []
    for gap in gaps:
        if begun and (gap.state, gap.cause) != (begun[-1].state, begun[-1].cause):
            yield _stretch(begun)
            begun = []
        begun.append(gap)
    if begun:
        yield _stretch(begun)


def _stretch(gaps: Sequence[Gap]) -> Stretch:
    first, last = gaps[0], gaps[-1]
    return Stretch(first.table, first.lot, last.lot, len(gaps), first.state, first.cause)


def _summary(tables: Sequence[Coverage]) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column("table")
    for heading in ("expected", "complete", "empty", "gaps"):
        made.add_column(heading, justify="right")
    made.add_column("earliest gap")
    made.add_column("latest gap")
    for one in tables:
        made.add_row(
            Text(one.table, style="bold"),
            f"{one.expected:,}",
            f"{one.complete:,}",
            f"{one.empty:,}",
            Text(f"{len(one.gaps):,}", style="red" if one.gaps else "green"),
            one.gaps[0].lot if one.gaps else "",
            one.gaps[-1].lot if one.gaps else "",
        )
    return made


def _table(stretches: Sequence[Stretch]) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("table", "lots", "", "state", "begins at", "why"):
        made.add_column(
            heading, overflow="fold", no_wrap=heading == "state", justify="right" if not heading else "left"
        )
    for one in stretches:
        upstream = one.cause.table != one.table
        made.add_row(
            Text(one.table, style="bold"),
            Text(one.first if one.count == 1 else f"{one.first} – {one.last}"),
            f"{one.count:,}",
            Text(one.state.value, style=STYLES[one.state]),
            Text(f"{one.cause.table} ({one.cause.state.value})" if upstream else "here"),
            Text(one.cause.why),
        )
    return made


def _hint(stretches: Sequence[Stretch]) -> str:
    states = {one.cause.state for one in stretches}
    if states & {GapState.PARTIAL, GapState.MISSING, GapState.DEAD}:
        return "mend the cause, then `tidemill retry`"
    if any("passed it over" in one.cause.why for one in stretches):
        return "`tidemill backfill` makes what was passed over"
    return "`tidemill run` processes what has arrived"
