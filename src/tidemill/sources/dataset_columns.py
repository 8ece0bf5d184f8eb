"""Add the new columns of a lot to its dataset, in the transaction that publishes the lot (LOT-34)."""

import msgspec

from tidemill.lots import datasets
from tidemill.lots.datasets import Drift
from tidemill.lots.keys import DatasetId
from tidemill.schemas import ddl
from tidemill.sources.keys import SourceKeys
from tidemill.spark.drift import evolved
from tidemill.store import Tx


def read(tx: Tx, keys: SourceKeys, dataset: DatasetId) -> str:
    """Read the columns that a dataset has now."""
    return datasets.read(tx, keys.publish.lots, dataset).schema


def add(tx: Tx, keys: SourceKeys, dataset: DatasetId, columns: str) -> None:
    """Add the columns of a lot to its dataset, in the transaction that publishes the lot.

    Raises `DatasetChanged` if another lot has added one of these columns with another type.
    """
    stored = datasets.read(tx, keys.publish.lots, dataset)
    schema = ddl.parse(columns)
    new = msgspec.structs.replace(stored, schema=columns, fingerprint=schema.fingerprint, drift=Drift.EVOLVE)
    datasets.declare(tx, keys.publish.lots, new, evolved)
