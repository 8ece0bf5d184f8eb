"""Define `tidemill events`: print the event log of a pipeline's cluster."""

from datetime import UTC, datetime

import click
import msgspec
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.obs.event_log import EventFilter
from tidemill.obs.lines import Severity
from tidemill.pipeline import observing
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.run_reporter import STYLES


@click.command("events")
@click.argument("about", default="")
@pipeline_option
@click.option(
    "--severity",
    type=click.Choice([severity.value for severity in Severity]),
    default=Severity.NORMAL.value,
    show_default=True,
    help="Print events of this severity or a worse one.",
)
@click.option("--kind", default="", help="Print only events of this class, such as ArcLotComplete.")
@click.option("--lot", default="", help="Print only events about this lot or step.")
@click.option("--text", default="", help="Print only events whose text contains this.")
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Maximum number of events.",
)
@json_option
def events_command(
    output: CommandOutput,
    about: str,
    file: str | None,
    severity: str,
    kind: str,
    lot: str,
    text: str,
    limit: int,
) -> None:
    """Print what happened, the newest event last. ABOUT is an arc, a source, a view group or a node."""
    wanted = EventFilter(severity=Severity(severity), about=about, kind=kind, lot=lot, text=text)
    with find(file) as pipeline:
        rows = observing.log_rows(pipeline, wanted, limit)[::-1]
    output.result({"events": [msgspec.to_builtins(row.event) for row in rows]})
    if output.json:
        return
    if not rows:
        output.people.print(Text("no events match; runners write the log while they run"))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        event = row.event
        at = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        style = STYLES[event.severity]
        table.add_row(Text(at, style="dim"), Text(event.about, style="bold"), Text(event.text, style=style))
    output.people.print(table)
