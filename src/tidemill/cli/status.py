"""`tidemill status` and `tidemill ls`: how a pipeline stands, and which tables it has."""

from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.output import Output, json_option
from tidemill.cli.pipeline import find, pipeline_option
from tidemill.pipeline import status as overview
from tidemill.pipeline.status import RunInfo

STATES = {"waiting": "green", "scheduled": "yellow", "running": "cyan", "new": "dim"}
WORDS = {"waiting": "caught up", "scheduled": "has work", "running": "running", "new": "never run"}


@click.command("status")
@pipeline_option
@json_option
def status_command(output: Output, file: str | None) -> int:
    """Show what every source, arc and view group is at. Exit code 1 when something is in trouble."""
    with find(file) as pipeline:
        status = overview.status_of(pipeline)
    troubled = any(one.troubled for one in status.runs)
    output.result(
        {"pipeline": status.pipeline, "ok": status.ok, "runs": status.runs, "tables": status.tables}
    )
    if not output.json:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("", "state", "behind", "node", "trouble"):
            table.add_column(name, overflow="fold")
        for one in status.runs:
            table.add_row(
                Text.assemble((f"{one.kind} ", "dim"), (one.name, "bold")),
                Text("paused", style="magenta") if one.paused else Text(WORDS[one.state], STATES[one.state]),
                Text(str(one.behind) if one.behind else ""),
                Text(one.node),
                Text(_trouble(one), style="red"),
            )
        output.people.print(table if status.runs else Text(f"{status.pipeline} has nothing that runs"))
        for one in status.runs:
            if one.address:
                output.people.print(Text.assemble((f"{one.name}: ", "bold"), f"POST {one.address}"))
            for note in one.notes:
                output.people.print(Text.assemble((f"{one.name}: ", "bold"), (note, "red")))
            for note in one.awaits:
                output.people.print(Text.assemble((f"{one.name}: ", "bold"), (note, "yellow")))
        if any(one.partial or one.missing or one.dead for one in status.runs):
            output.people.print(Text("hint: mend the cause, then `tidemill retry`", style="dim"))
    return 1 if troubled else 0


def _trouble(one: RunInfo) -> str:
    words = [f"{one.partial} partial"] if one.partial else []
    words += [f"{one.missing} missing"] if one.missing else []
    words += [f"failed {one.failures} times"] if one.failures else []
    words += ["not run any more"] if one.dead else []
    return ", ".join(words)


@click.command("ls")
@pipeline_option
@json_option
def ls_command(output: Output, file: str | None) -> None:
    """List the tables of a pipeline."""
    with find(file) as pipeline:
        tables = overview.tables_of(pipeline)
    output.result({"pipeline": pipeline.name, "tables": tables})
    if output.json:
        return
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("table", "kind", "position", "last lot", "columns"):
        shown.add_column(name, overflow="fold")
    for one in tables:
        at = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d %H:%M:%S") if one.at else ""
        shown.add_row(Text(one.name, style="bold"), one.kind, str(one.position), at, Text(one.schema))
    output.people.print(shown if tables else Text(f"{pipeline.name} has no tables"))
