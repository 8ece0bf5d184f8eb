"""Define `tidemill upgrade`: move the state of running views to another format."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.upgrades import UpgradedGroup, upgrade
from tidemill.views.trace.version import FORMAT


@click.command("upgrade")
@pipeline_option
@click.option(
    "--to",
    default=FORMAT,
    show_default=True,
    type=click.IntRange(1, FORMAT),
    help="The format of state. An earlier one is the way back to the release before.",
)
@click.option(
    "--wait",
    "wait_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0),
    help="How many seconds to wait for steps with enough input.",
)
@click.option("--dry-run", is_flag=True, help="Repeat steps and compare them, but change nothing.")
@json_option
def upgrade_command(
    output: CommandOutput, file: str | None, to: int, wait_s: float, *, dry_run: bool
) -> None:
    """Move the state of views to the format of this release, while runners work.

    While runners compute steps, this command repeats them on a copy of the state, with the code of this
    release. Only if all of them give the same rows, the groups of views stop at one step and continue with
    the copy. Otherwise nothing changes. With little new input, the views are compared with plain Spark on
    generated data. First install the new release on all nodes.
    """
    with find(file) as pipeline:
        report = upgrade(
            pipeline, to=to, wait_s=wait_s, dry_run=dry_run, say=lambda text: output.people.print(Text(text))
        )
    output.result({"groups": report.groups, "step": report.step, "changed": report.changed})
    for group in report.groups:
        output.people.print(Text(_described(group, to)))
    if not report.groups:
        output.people.print(Text("the pipeline has no views with state"))


def _described(group: UpgradedGroup, to: int) -> str:
    if group.before in (0, to):
        state = f"has format {to}" if group.before else "has no state"
        return f"group {group.group}: {state}; nothing to do"
    repeated = f"{group.steps:,} steps with {group.rows:,} changed rows gave the same digests"
    if group.compared:
        repeated += f", and {group.compared:,} views the rows of plain Spark"
    if not group.changed:
        return f"group {group.group}: {repeated}; nothing was changed (format {group.before})"
    return f"group {group.group}: format {group.before} -> {group.format}; {repeated}"
