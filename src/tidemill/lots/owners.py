"""Owners: which pipelines declare a dataset, or have declared it.

A dataset that its pipeline no longer declares is *retired*: its lots stay readable until a user drops it. Two
pipelines of a cluster may declare the same dataset.
"""

from collections.abc import Iterator

import msgspec

from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Store, Tx

PAGE = 1000

DECLARED = 0
"""Stored instead of a time while the pipeline declares the dataset."""

_retired_at = msgspec.msgpack.Decoder(int)
_DECLARED = msgspec.msgpack.encode(DECLARED)


def declare(tx: Tx, keys: LotKeys, dataset: DatasetId, pipeline: str) -> None:
    """Record that a pipeline declares a dataset. Repeating this writes nothing."""
    key = keys.owner[(*dataset.parts, pipeline)]
    if tx.get(key) != _DECLARED:
        tx.set(key, _DECLARED, quiet=True)


def retire(tx: Tx, keys: LotKeys, dataset: DatasetId, pipeline: str) -> None:
    """Record that a pipeline no longer declares a dataset."""
    key = keys.owner[(*dataset.parts, pipeline)]
    if tx.get(key) == _DECLARED:
        tx.set(key, msgspec.msgpack.encode(tx.wall()), quiet=True)


def read(tx: Tx, keys: LotKeys, dataset: DatasetId) -> dict[str, int]:
    """Return the pipelines of a dataset, each with the wall time at which it was retired, or 0."""
    return {
        str(keys.owner.unpack(row.key)[2]): _retired_at.decode(row.value)
        for row in tx.range(*keys.owner.under(*dataset.parts))
    }


def forget(tx: Tx, keys: LotKeys, dataset: DatasetId) -> None:
    """Delete the owners of a dataset that is dropped."""
    tx.clear_range(*keys.owner.under(*dataset.parts))


def of_pipeline(store: Store, keys: LotKeys, pipeline: str) -> dict[DatasetId, bool]:
    """Return the datasets that a pipeline declares or has declared; True for those that are retired.

    This reads the owners of all datasets, page by page.
    """
    return {dataset: retired_at > 0 for dataset, owner, retired_at in _all(store, keys) if owner == pipeline}


def listed(store: Store, keys: LotKeys) -> dict[DatasetId, dict[str, int]]:
    """Return the pipelines of every dataset, each with the wall time at which it was retired, or 0."""
    pipelines: dict[DatasetId, dict[str, int]] = {}
    for dataset, owner, retired_at in _all(store, keys):
        pipelines.setdefault(dataset, {})[owner] = retired_at
    return pipelines


def _all(store: Store, keys: LotKeys) -> Iterator[tuple[DatasetId, str, int]]:
    lo, hi = keys.owner.all()
    while True:
        rows = store.run(lambda tx, lo=lo: tx.range(lo, hi, limit=PAGE, snapshot=True))  # type: ignore[misc]
        for row in rows:
            name, version, pipeline = keys.owner.unpack(row.key)
            yield DatasetId(str(name), str(version)), str(pipeline), _retired_at.decode(row.value)
        if len(rows) < PAGE:
            return
        lo = rows[-1].key + b"\x00"
