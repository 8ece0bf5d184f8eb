"""`tidemill pause` and `tidemill resume`: arcs and view groups that are not to run for a while."""

import click
from rich.text import Text

from tidemill.cli.output import Output, json_option
from tidemill.cli.pipeline import find, pipeline_option
from tidemill.pipeline.pace import CatchUpWord
from tidemill.triggers.terms import CatchUp


@click.command("pause")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@pipeline_option
@json_option
def pause_command(output: Output, names: tuple[str, ...], file: str | None) -> None:
    """Run arcs or views no more. What is published meanwhile waits for them; a lot under way is finished."""
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
    help="What is processed of that which was published meanwhile; as declared if left out.",
)
@pipeline_option
@json_option
def resume_command(
    output: Output, names: tuple[str, ...], catch_up: CatchUpWord | None, file: str | None
) -> None:
    """Run paused arcs or views again."""
    with find(file) as pipeline:
        resumed = pipeline.resume(*names, catch_up=catch_up)
    output.result({"resumed": resumed})
    for name in resumed:
        output.people.print(Text(f"{name} is run again"))
