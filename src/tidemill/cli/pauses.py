"""Define `tidemill pause` and `tidemill resume`."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.pace import CatchUpWord
from tidemill.pipeline.pipeline_file import find
from tidemill.triggers.terms import CatchUp


@click.command("pause")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@pipeline_option
@json_option
def pause_command(output: CommandOutput, names: tuple[str, ...], file: str | None) -> None:
    """Pause arcs or views.

    Lots and steps that are already running still run to the end. When you resume an arc, its declaration
    (catch_up=) decides what happens to lots that were published during the pause: the arc processes all of
    them, only the latest, or none. `resume --catch-up` overrides the declaration. A view never skips lots.
    With `--catch-up none`, the view does not start a step just for these lots; it processes them in its next
    step, which starts when something else changes.
    """
    with find(file) as pipeline:
        paused = pipeline.pause(*names)
    output.result({"paused": paused})
    for name in paused:
        output.people.print(Text(f"{name} is paused"))


@click.command("resume")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--catch-up",
    type=click.Choice([policy.value for policy in CatchUp]),
    help="Which of the lots published during the pause to process. Default: as declared.",
)
@pipeline_option
@json_option
def resume_command(
    output: CommandOutput, names: tuple[str, ...], catch_up: CatchUpWord | None, file: str | None
) -> None:
    """Resume paused arcs or views."""
    with find(file) as pipeline:
        resumed = pipeline.resume(*names, catch_up=catch_up)
    output.result({"resumed": resumed})
    for name in resumed:
        output.people.print(Text(f"{name} is resumed"))
