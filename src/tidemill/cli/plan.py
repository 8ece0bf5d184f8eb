"""Define `tidemill plan`: show what running a pipeline would change."""

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.pipeline_file import find

STYLES = {"new": "green", "same": "dim", "changed": "yellow", "removed": "red", "refused": "red"}


@click.command("plan")
@pipeline_option
@json_option
def plan_command(output: CommandOutput, file: str | None) -> int:
    """Check the declarations, and show what a run would change.

    The exit code is 1 if a run would refuse a declaration.
    """
    with find(file) as pipeline:
        plan = pipeline.plan()
        stages, refusals = plan.describe(), plan.refusals()
    refused = [{"code": error.code, "message": error.message, "hint": error.hint} for error in refusals]
    output.result({"pipeline": pipeline.name, "stages": stages, "refused": refused})
    if output.json:
        return 1 if refused else 0
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "what", "name", "detail", "declared at"):
        table.add_column(name, overflow="fold")
    for stage in stages:
        status = Text(stage["status"], style=STYLES[stage["status"]])
        where = Text(stage["where"], style="dim")
        table.add_row(status, stage["what"], Text(stage["name"]), Text(stage["detail"]), where)
    output.people.print(table if stages else Text(f"{pipeline.name} declares nothing"))
    for error in refusals:
        output.error(error.code, error.message, error.hint)
    return 1 if refused else 0
