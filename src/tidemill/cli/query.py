"""Define `tidemill query`: run a query on the tables of a pipeline."""

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline import reader
from tidemill.pipeline.pipeline_file import find


@click.command("query")
@click.argument("sql")
@pipeline_option
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of rows to print."
)
@json_option
def query_command(output: CommandOutput, sql: str, file: str | None, limit: int) -> None:
    """Run a Spark SQL query on the tables of the pipeline."""
    with find(file) as pipeline:
        names, rows = reader.collected(pipeline, sql, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    output.result({"columns": names, "rows": [[plain(value) for value in row] for row in rows], "more": more})
    if not output.json:
        show_rows(output, names, rows, limit=limit, more=more)


def show_rows(
    output: CommandOutput, names: Sequence[str], rows: Sequence[Sequence[Any]], *, limit: int, more: bool
) -> None:
    """Print rows as a table.

    - more: whether there are rows after the limit.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*[Text("NULL", style="dim") if value is None else Text(str(value)) for value in row])
    output.people.print(table)
    if more:
        output.people.print(Text(f"there are more rows: use --limit {limit * 10}", style="dim"))


def plain(value: Any) -> Any:
    """Return the value unchanged if JSON supports it, otherwise as text."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
