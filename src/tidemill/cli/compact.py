"""Define `tidemill compact`: merge the small files of a table's lots into larger ones."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline import compaction
from tidemill.pipeline.pipeline_file import find
from tidemill.runner.compaction import Compacted
from tidemill.spark.lot_writer import TARGET_BYTES


@click.command("compact")
@click.argument("table")
@click.argument("lots", nargs=-1)
@pipeline_option
@click.option(
    "--target-mb",
    type=click.IntRange(1, 10_000),
    default=TARGET_BYTES // 2**20,
    show_default=True,
    help="The target size of the merged files, in MiB.",
)
@json_option
def compact_command(
    output: CommandOutput, table: str, lots: tuple[str, ...], file: str | None, target_mb: int
) -> None:
    """Merge small files of a table into larger ones.

    The command merges files within each of the given LOTS, or within each lot of TABLE. Rows, lots and
    generations stay the same, and nothing downstream runs. Tidemill keeps the old files for a day, so
    that queries that have already started can finish.
    """

    def report(lot: str, result: Compacted | None) -> None:
        if result is not None:
            output.people.print(Text(f"{lot}: merged {result.files_before:,} files into {result.files:,}"))

    with find(file) as pipeline:
        results = compaction.compact(pipeline, table, lots, target_bytes=target_mb * 2**20, report=report)
    output.result({"table": table, "lots": results})
    if not results:
        output.people.print(Text(f"{table} has no small files to merge"))
