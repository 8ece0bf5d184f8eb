"""Define `tidemill gaps`: list lots that are expected but not published."""

from collections.abc import Iterator, Sequence

import click
import msgspec
from rich.table import Table
from rich.text import Text

from tidemill.arcs.gaps import SKIPPED, Cause, Coverage, Gap, GapState
from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.pipeline_file import find

STYLES = {
    GapState.ABSENT: "yellow",
    GapState.RUNNING: "cyan",
    GapState.PARTIAL: "yellow",
    GapState.MISSING: "red",
    GapState.DEAD: "bold red",
}


class GapRange(msgspec.Struct, frozen=True):
    """Consecutive gaps of one table with the same state and cause."""

    table: str
    first: str
    last: str
    count: int
    state: GapState
    cause: Cause


@click.command("gaps")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@pipeline_option
@click.option("--from", "first", metavar="LOT", help="First lot to check: a lot id, a day or a time.")
@click.option("--to", "last", metavar="LOT", help="Last lot to check.")
@click.option(
    "--limit",
    default=1000,
    show_default=True,
    type=click.IntRange(0),
    help="Maximum number of gaps to list for each table.",
)
@json_option
def gaps_command(
    output: CommandOutput,
    tables: tuple[str, ...],
    file: str | None,
    first: str | None,
    last: str | None,
    limit: int,
) -> int:
    """List expected lots that are not published.

    The command checks the given TABLEs, or all tables. The lot of each gap is in one of these states: absent
    (not started), running, partial (failed; finished parts are kept), missing (failed or skipped; nothing is
    kept) or dead (its arc failed too often, so Tidemill no longer starts the arc). If an upstream table
    caused the gap, the output names that table. The column "requested" counts the lots that a backfill,
    replay or retry has requested; the next run will produce them. The exit code is 1 if there are gaps.
    """
    with find(file) as pipeline:
        report = pipeline.gaps(*tables, first=first, last=last)
    output.result(
        {
            "pipeline": report.pipeline,
            "ok": bool(report),
            "tables": [_result(table, limit) for table in report.tables],
        }
    )
    if not output.json:
        output.people.print(_summary(report.tables))
        ranges = [gap for table in report.tables for gap in ranges_of(table.gaps[:limit])]
        if ranges:
            output.people.print()
            output.people.print(_table(ranges))
            output.people.print(Text(f"hint: {_hint(ranges)}", style="dim"))
        elif any(table.requested for table in report.tables):
            hint = "hint: to make the requested lots, run `tidemill run`"
            output.people.print(Text(hint, style="dim"))
    return 0 if report else 1


def _result(table: Coverage, limit: int) -> dict[str, object]:
    return {
        "table": table.table,
        "expected": table.expected,
        "complete": table.complete,
        "empty": table.empty,
        "requested": table.requested,
        "gaps": len(table.gaps),
        "counts": table.counts,
        "earliest_gap": table.gaps[0].lot if table.gaps else None,
        "latest_gap": table.gaps[-1].lot if table.gaps else None,
        "lots": table.gaps[:limit],
    }


def ranges_of(gaps: Sequence[Gap]) -> Iterator[GapRange]:
    """Merge consecutive gaps with the same state and cause."""
    current: list[Gap] = []
    for gap in gaps:
        if current and (gap.state, gap.cause) != (current[-1].state, current[-1].cause):
            yield _range(current)
            current = []
        current.append(gap)
    if current:
        yield _range(current)


def _range(gaps: Sequence[Gap]) -> GapRange:
    first, last = gaps[0], gaps[-1]
    return GapRange(first.table, first.lot, last.lot, len(gaps), first.state, first.cause)


def _summary(tables: Sequence[Coverage]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("table")
    for heading in ("expected", "complete", "empty", "gaps", "requested"):
        table.add_column(heading, justify="right")
    table.add_column("earliest gap")
    table.add_column("latest gap")
    for coverage in tables:
        gaps = coverage.gaps
        table.add_row(
            Text(coverage.table, style="bold"),
            f"{coverage.expected:,}",
            f"{coverage.complete:,}",
            f"{coverage.empty:,}",
            Text(f"{len(gaps):,}", style="red" if gaps else "green"),
            Text(f"{coverage.requested:,}" if coverage.requested else "", style="yellow"),
            gaps[0].lot if gaps else "",
            gaps[-1].lot if gaps else "",
        )
    return table


def _table(ranges: Sequence[GapRange]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("table", "lots", "", "state", "caused by", "why"):
        table.add_column(
            heading, overflow="fold", no_wrap=heading == "state", justify="right" if not heading else "left"
        )
    for gap in ranges:
        upstream = gap.cause.table != gap.table
        table.add_row(
            Text(gap.table, style="bold"),
            Text(gap.first if gap.count == 1 else f"{gap.first} – {gap.last}"),
            f"{gap.count:,}",
            Text(gap.state.value, style=STYLES[gap.state]),
            Text(f"{gap.cause.table} ({gap.cause.state.value})" if upstream else ""),
            Text(gap.cause.why),
        )
    return table


def _hint(ranges: Sequence[GapRange]) -> str:
    states = {gap.cause.state for gap in ranges}
    if states & {GapState.PARTIAL, GapState.MISSING, GapState.DEAD}:
        return "fix the cause, then run `tidemill retry`"
    if any(gap.cause.why.endswith(SKIPPED) for gap in ranges):
        return "to produce the skipped lots, run `tidemill backfill`"
    return "to process the data that has arrived, run `tidemill run`"
