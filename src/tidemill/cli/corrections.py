"""Define `tidemill replace` and `tidemill remove`: correct the lots of a dataset."""

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import UsageError
from tidemill.obs.lines import counted
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.tables import Dataset

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

_JSON = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)


@click.command("replace")
@click.argument("dataset")
@click.argument("lot")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@pipeline_option
@json_option
def replace_command(output: CommandOutput, dataset: str, lot: str, path: Path, file: str | None) -> None:
    """Replace the rows of one LOT of a DATASET by the rows in the file PATH.

    PATH is a Parquet file, or a file with one JSON object per line. It has all rows of the lot. Readers see
    the old rows until the new ones are published. Then arcs process this lot again, and views are updated.
    """
    rows = _rows_of(path)
    with find(file) as pipeline:
        receipt = _dataset(pipeline, dataset).replace(lot, rows)
    output.result({"dataset": dataset, "lot": receipt.lot, "rows": len(rows), "position": receipt.position})
    output.people.print(
        Text(f"replaced lot {receipt.lot} of {dataset}; it has {counted(len(rows), 'row')} now")
    )


@click.command("remove")
@click.argument("dataset")
@click.argument("lot")
@click.option("--why", default="", help="A comment, shown with the lot.")
@pipeline_option
@json_option
def remove_command(output: CommandOutput, dataset: str, lot: str, why: str, file: str | None) -> None:
    """Remove one LOT of a DATASET.

    Its rows disappear from the dataset, and from all tables that are computed from it. `tidemill lots` still
    lists the lot. To give it rows again, use `tidemill replace`.
    """
    with find(file) as pipeline:
        receipt = _dataset(pipeline, dataset).remove(lot, why=why)
    output.result({"dataset": dataset, "lot": receipt.lot, "position": receipt.position})
    output.people.print(Text(f"removed lot {receipt.lot} of {dataset}"))


def _dataset(pipeline: "Pipeline", name: str) -> Dataset:
    table = pipeline[name]
    if not isinstance(table, Dataset):
        raise UsageError(
            f"{name} is not a dataset; its rows are computed",
            hint="correct the dataset that it is computed from, or make its lots again: tidemill replay",
        )
    return table


def _rows_of(path: Path) -> Any:
    """Read the rows of a file: an Arrow table, or a list of dictionaries."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        try:
            return parquet.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"{path} is not a Parquet file: {error}") from None
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                rows.append(_JSON.decode(line))
            except (msgspec.MsgspecError, ArithmeticError, RecursionError) as error:
                raise UsageError(
                    f"{path}, line {number}: {error}",
                    hint="write one JSON object per line, or a Parquet file",
                ) from None
    return rows
