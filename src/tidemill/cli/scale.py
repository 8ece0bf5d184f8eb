"""Define `tidemill scale`: change the number of ranges of a pipeline's steps while it runs."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.scaling import scale


@click.command("scale")
@pipeline_option
@click.option(
    "--ranges",
    required=True,
    type=click.IntRange(0, 256),
    help="How many tasks each layer of a step has at least; 0 lets the size of each step decide.",
)
@click.option(
    "--wait",
    "wait_s",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0),
    help="How many seconds to wait for steps that are being computed.",
)
@json_option
def scale_command(output: CommandOutput, file: str | None, ranges: int, wait_s: float) -> None:
    """Change into how many ranges the steps of views are divided, while runners work.

    All groups of views finish their step, stop at the same step, and continue with the new number. No state
    is rewritten, and the results stay the same. Use it after you add or remove workers of a Spark cluster.
    """
    with find(file) as pipeline:
        scaled = scale(pipeline, ranges, wait_s)
    output.result(scaled)
    count = f"at least {scaled.ranges:,} ranges" if scaled.ranges else "as many ranges as its size needs"
    output.people.print(Text(f"all groups stopped at step {scaled.step:,}; each later step has {count}"))
