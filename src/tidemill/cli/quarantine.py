"""Define `tidemill quarantine`: list, export, correct and discard quarantined records."""

from pathlib import Path

import click
import msgspec
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline import quarantine
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.quarantine import QuarantinedRecord

SHOWN = 120


@click.group("quarantine", invoke_without_command=True)
@pipeline_option
@json_option
@click.pass_context
def quarantine_command(ctx: click.Context, output: CommandOutput, file: str | None) -> None:
    """Count the quarantined records of each table.

    To correct records: export them to a file, edit the file, and ingest it.
    """
    if ctx.invoked_subcommand is not None:
        return
    with find(file) as pipeline:
        counts = quarantine.count(pipeline)
    output.result({"tables": counts})
    if not counts:
        output.people.print(Text("no records are in quarantine"))
    for table, records in counts.items():
        output.people.print(Text.assemble((table, "bold"), f" {records:,}"))


@quarantine_command.command("show")
@click.argument("table")
@click.argument("lots", nargs=-1)
@pipeline_option
@click.option(
    "--limit",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of records to show.",
)
@json_option
def show_command(
    output: CommandOutput, table: str, lots: tuple[str, ...], file: str | None, limit: int
) -> None:
    """Show the quarantined records of TABLE, each with the reason."""
    with find(file) as pipeline:
        records = list(quarantine.records(pipeline, table, lots))
    shown = records[:limit]
    output.result({"table": table, "count": len(records), "records": shown})
    if output.json:
        return
    listing = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("lot", "row", "place", "reason", "record"):
        listing.add_column(name, overflow="fold")
    for record in shown:
        place = record.file if record.line is None else f"{record.file}:{record.line}"
        listing.add_row(
            Text(record.lot),
            str(record.row),
            Text(place),
            Text(record.error or record.check, style="red"),
            Text(_text(record)[:SHOWN]),
        )
    output.people.print(listing if records else Text(f"{table} has no records in quarantine"))
    if len(records) > limit:
        output.people.print(
            Text(f"{len(records) - limit:,} more; to see them, use --limit or export them", style="dim")
        )


@quarantine_command.command("export")
@click.argument("table")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("lots", nargs=-1)
@pipeline_option
@json_option
def export_command(
    output: CommandOutput, table: str, path: Path, lots: tuple[str, ...], file: str | None
) -> None:
    """Write the quarantined records of TABLE to a new file PATH, one JSON object per line.

    To correct the records, edit the field "record" of each line, delete the lines that you do not want to
    ingest, and run `tidemill quarantine ingest`.
    """
    with find(file) as pipeline:
        records = list(quarantine.records(pipeline, table, lots))
    try:
        with path.open("xb") as target:
            target.writelines(msgspec.json.encode(record) + b"\n" for record in records)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    output.result({"table": table, "path": str(path), "records": len(records)})
    output.people.print(Text(f"wrote {len(records):,} records to {path}"))


@quarantine_command.command("ingest")
@click.argument("table")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@pipeline_option
@json_option
def ingest_command(output: CommandOutput, table: str, path: Path, file: str | None) -> None:
    """Add the corrected records in the file PATH to TABLE, and remove them from the quarantine.

    If the command is interrupted, run it again with the same file: no record is stored twice.
    """
    corrected = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                corrected.append(msgspec.json.decode(line, type=QuarantinedRecord))
            except (msgspec.MsgspecError, RecursionError):
                raise click.UsageError(f"line {number} of {path} is not an exported record") from None
    with find(file) as pipeline:
        ingested = quarantine.ingest(pipeline, table, corrected)
    output.result({"table": table, "lots": ingested, "records": sum(ingested.values())})
    output.people.print(Text(f"added {sum(ingested.values()):,} records to {table}"))


@quarantine_command.command("discard")
@click.argument("table")
@click.argument("lots", nargs=-1, required=True)
@pipeline_option
@json_option
def discard_command(output: CommandOutput, table: str, lots: tuple[str, ...], file: str | None) -> None:
    """Remove all records of the given LOTS from the quarantine of TABLE."""
    with find(file) as pipeline:
        discarded = quarantine.discard(pipeline, table, lots)
    output.result({"table": table, "lots": discarded, "records": sum(discarded.values())})
    output.people.print(Text(f"discarded {sum(discarded.values()):,} records"))


def _text(record: QuarantinedRecord) -> str:
    if isinstance(record.record, str):
        return record.record
    return "" if record.record is None else msgspec.json.encode(record.record).decode()
