"""`tidemill compact`: the small files of a table's lots become few large ones."""

import click
from rich.text import Text

from tidemill.cli.output import Output, json_option
from tidemill.cli.pipeline import find, pipeline_option
from tidemill.pipeline import compaction as compacting
from tidemill.runner.compacting import Compacted
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
    help="About how large files should be.",
)
@json_option
def compact_command(
    output: Output, table: str, lots: tuple[str, ...], file: str | None, target_mb: int
) -> None:
    """Put small files together: of some LOTS of a TABLE, or of all.

    Rows, lots and generations stay as they are, and nobody is woken. The old files stay for a day, for
    readers that have begun with them.
    """

    def tell(lot: str, done: Compacted | None) -> None:
        if done is not None:
            output.people.print(Text(f"{lot}: {done.files_before:,} files are {done.files:,} now"))

    with find(file) as pipeline:
        found = compacting.compact(pipeline, table, lots, target_bytes=target_mb * 2**20, tell=tell)
    output.result({"table": table, "lots": found})
    if not found:
        output.people.print(Text(f"{table} has no lot whose files could be fewer"))
