"""Define `tidemill vacuum`: let old lots and changes expire, and delete files that no reader needs."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.pipeline_file import find


@click.command("vacuum")
@pipeline_option
@click.option("--dry-run", is_flag=True, help="Report what would expire and be deleted, and change nothing.")
@json_option
def vacuum_command(output: CommandOutput, file: str | None, *, dry_run: bool) -> None:
    """Remove old lots and changes of tables that declare keep=.

    A lot expires when it is older than keep= and all arcs, views and registered consumers have read it.
    Views keep the rows of expired lots. Tables with keep_rows=True, a key or deletes keep them too, merged
    into a base lot. Tidemill deletes the files a day later, so that queries that have already started can
    finish. Runners also do all this regularly, without this command.
    """
    with find(file) as pipeline:
        report = pipeline.vacuum(dry_run=dry_run)
    output.result(report)
    verb = "would expire" if dry_run else "expired"
    for table in report.tables:
        text = f"{table.table}: {table.lots:,} lots {verb}"
        if table.lots:
            text += f", up to position {table.position:,} ({table.rows:,} rows, {table.size:,} bytes)"
        if table.held_by:
            text += f"; older lots stay for {table.held_by}"
        output.people.print(Text(text))
    for base in report.merged:
        output.people.print(
            Text(
                f"{base.table}: {base.lots:,} expired lots merged into the base lot: {base.rows:,} rows up to"
                f" position {base.position:,} ({base.size:,} bytes)"
            )
        )
    deleted = "would be deleted" if dry_run else "deleted"
    output.people.print(Text(f"{report.files + report.orphans:,} files {deleted}"))
