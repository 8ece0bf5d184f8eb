"""Define `tidemill drop`: delete a table that the pipeline no longer declares."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline import retired
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.tables import RetiredView


@click.command("drop")
@click.argument("table")
@pipeline_option
@json_option
def drop_command(output: CommandOutput, table: str, file: str | None) -> None:
    """Delete a table that the pipeline no longer declares.

    Before you use this command, remove TABLE from the pipeline file and run the pipeline once; `tidemill ls`
    then lists the table as retired. After `tidemill drop`, the rows of the table can no longer be read.
    Runners delete its files a day later, so that queries that have already started can finish. The name and
    version of a dropped dataset cannot be used again.
    """
    with find(file) as pipeline:
        dropped = retired.drop(pipeline, table)
    kind = "view" if isinstance(dropped, RetiredView) else "dataset"
    output.result({"dropped": table, "kind": kind})
    if not output.json:
        output.people.print(Text(f"dropped {table}; runners delete its files after a day"))
