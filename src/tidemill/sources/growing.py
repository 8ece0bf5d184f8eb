"""Columns that a source brings: its dataset has them from the moment on in which they are published."""

import msgspec
import pyarrow as pa

from tidemill.lots import datasets
from tidemill.lots.datasets import Dataset, Drift
from tidemill.lots.keys import DatasetId
from tidemill.schemas import ddl
from tidemill.sources.keys import SourceKeys
from tidemill.spark.drift import RESCUED, evolved
from tidemill.store import Tx


def columns_of(tx: Tx, keys: SourceKeys, dataset: DatasetId) -> str:
    """The columns that a dataset has by now."""
    return datasets.read(tx, keys.publish.lots, dataset).schema


def grow(tx: Tx, keys: SourceKeys, dataset: DatasetId, columns: str) -> None:
    """Give a dataset the columns that a lot brings, in the transaction that publishes it. `DatasetChanged`
    when another lot brought one of them in another type meanwhile.
    """
    known = datasets.read(tx, keys.publish.lots, dataset)
    schema = ddl.parse(columns)
    new = msgspec.structs.replace(known, schema=columns, fingerprint=schema.fingerprint, drift=Drift.EVOLVE)
    datasets.declare(tx, keys.publish.lots, new, evolved)


def fingerprint(dataset: Dataset, columns: str) -> str:
    """Of the columns of a lot; those that are declared, if it brings no others."""
    return ddl.parse(columns).fingerprint if columns else dataset.fingerprint


def rescued(dataset: Dataset, rows: pa.Table) -> dict[str, int]:
    """How many rows of a lot have something that did not fit, where that is kept."""
    if dataset.drift is not Drift.RESCUE:
        return {}
    column = rows.column(RESCUED)
    return {"rescued": len(column) - column.null_count}
