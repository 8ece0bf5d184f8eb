"""Define `tidemill clock`: show whether the wall clock has jumped, and accept a jump."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline import clock_status
from tidemill.pipeline.clock_status import clock_of
from tidemill.pipeline.pipeline_file import find

_FORM = "%Y-%m-%d %H:%M:%S UTC"


@click.command("clock")
@click.option(
    "--accept", is_flag=True, help="Accept the current wall clock time. Use this only if it is correct."
)
@click.option("--rewind", metavar="DATASET", help="Move the current interval of DATASET back to the present.")
@pipeline_option
@json_option
def clock_command(output: CommandOutput, file: str | None, *, accept: bool, rewind: str | None) -> int:
    """Show whether the wall clock has jumped.

    If the clock jumps by more than five minutes, Tidemill does not use the new time for ten minutes.
    Intervals, schedules and now() in views continue as if the clock had not jumped. So a clock that is wrong
    for a moment does no harm. If the clock still shows the new time after ten minutes, Tidemill accepts it.
    If you know that the new time is correct, use --accept: Tidemill then uses it at once.

    If Tidemill accepted a wrong time, it may already have closed future intervals of a dataset. New appends
    to this dataset then stay hidden until the clock reaches those intervals. To repair this, correct
    the clock, and use --rewind. The exit code is 1 if a jump has not been accepted yet, or if a dataset has
    already closed an interval that lies in the future.
    """
    with find(file) as pipeline:
        clock = clock_of(pipeline, accept=accept)
        if rewind is not None:
            clock = clock_status.rewind(pipeline, rewind)
    output.result(clock)
    output.people.print(Text(f"wall clock: {clock.wall_at:{_FORM}}"))
    if clock.jump:
        output.people.print(
            Text(
                f"{clock.jump}; Tidemill still uses {clock.followed_at:{_FORM}} as the current time",
                style="red",
            )
        )
        output.people.print(
            Text(
                f"hint: correct the clock; or, if it is right, run `tidemill clock --accept` or wait"
                f" {clock.accepted_in_s / 60:.0f} minutes",
                style="dim",
            )
        )
    for dataset in clock.ahead:
        output.people.print(
            Text(
                f"{dataset.name}: the current interval is {dataset.interval}; appends become visible at"
                f" {dataset.visible_at:{_FORM}}",
                style="red",
            )
        )
        output.people.print(
            Text(f"hint: if the clock is right, run `tidemill clock --rewind {dataset.name}`", style="dim")
        )
    return 1 if clock.jump or clock.ahead else 0
