"""The columns that a dataset has had."""

from tidemill.lots import datasets
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx


def column_history(tx: Tx, keys: LotKeys, dataset: DatasetId) -> list[str]:
    """Return the schemas of a dataset by revision, the current one last."""
    earlier = [row.value.decode() for row in tx.range(*keys.columns.under(*dataset.parts), limit=1000)]
    return [*earlier, datasets.read(tx, keys, dataset).schema]
