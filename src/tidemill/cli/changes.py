"""Define `tidemill changes`: show the rows that were inserted and deleted after a position."""

import click

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.cli.query import plain, show_rows
from tidemill.pipeline import reader
from tidemill.pipeline.pipeline_file import find


@click.command("changes")
@click.argument("table")
@click.option(
    "--after",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    metavar="POSITION",
    help="Show only changes after this position.",
)
@pipeline_option
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of rows to print."
)
@json_option
def changes_command(output: CommandOutput, table: str, after: int, file: str | None, limit: int) -> None:
    """Show the rows of TABLE that were inserted and deleted after a position.

    The column _weight says how many times a row was inserted (above 0) or deleted (below 0). The column
    _position has the position of the change. `tidemill ls` shows the current position of each table.
    """
    with find(file) as pipeline:
        position = pipeline[table].position
        # Later changes are left out, so that `--after` this position continues where the output ends.
        frame = pipeline[table].changes(after).where(f"_position <= {position}").orderBy("_position")
        names, rows = reader.first_rows(pipeline, frame, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    output.result(
        {
            "table": table,
            "position": position,
            "columns": names,
            "rows": [[plain(value) for value in row] for row in rows],
            "more": more,
        }
    )
    if not output.json:
        show_rows(output, names, rows, limit=limit, more=more)
