"""Define `tidemill clock`: show whether the wall clock has jumped, and accept it."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline import clock_status
from tidemill.pipeline.clock_status import clock_of
from tidemill.pipeline.pipeline_file import find

_FORM = "%Y-%m-%d %H:%M:%S UTC"


@click.command("clock")
@click.option("--accept", is_flag=True, help="Accept the wall clock as it is now, because it is right.")
@click.option("--rewind", metavar="DATASET", help="Move the current interval of DATASET back to the present.")
@pipeline_option
@json_option
def clock_command(output: CommandOutput, file: str | None, *, accept: bool, rewind: str | None) -> int:
    """Show whether the wall clock has jumped.

    If the clock jumps by more than five minutes, intervals, schedules and now() in views do not follow it
    until the jump has lasted for ten minutes. So a clock that is wrong for a moment does no harm. If the
    clock is right, --accept makes them follow it at once.

    If a wrong clock was accepted, a dataset may have closed intervals of the future, and hide appends until
    then. Correct the clock, and use --rewind. The exit code is 1 while a jump is not accepted, or while a
    dataset has closed intervals of the future.
    """
    with find(file) as pipeline:
        clock = clock_of(pipeline, accept=accept)
        if rewind is not None:
            clock = clock_status.rewind(pipeline, rewind)
    output.result(clock)
    output.people.print(Text(f"wall clock: {clock.wall_at:{_FORM}}"))
    if clock.jump:
        output.people.print(Text(f"{clock.jump}; intervals follow {clock.followed_at:{_FORM}}", style="red"))
        output.people.print(
            Text(
                f"hint: correct the clock; or, if it is right, run `tidemill clock --accept`, or wait"
                f" {clock.accepted_in_s / 60:.0f} minutes",
                style="dim",
            )
        )
    for dataset in clock.ahead:
        output.people.print(
            Text(
                f"{dataset.name}: its current interval is {dataset.interval}; appends become visible at"
                f" {dataset.visible_at:{_FORM}}",
                style="red",
            )
        )
        output.people.print(
            Text(f"hint: if the clock is right, run `tidemill clock --rewind {dataset.name}`", style="dim")
        )
    return 1 if clock.jump or clock.ahead else 0
