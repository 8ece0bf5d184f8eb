"""Expiry: remove old lots from a dataset, in the order of their positions (LOT-39).

Expiry is not retraction: it writes no event, and views keep the rows. It removes the oldest events of a
dataset, and the rows of the lots that they announced. Their files stay for the grace period of readers
(`lots.retired`), so a reader that has already listed them finds them.

The caller passes the lower bound: a position up to which every subscriber and consumer is done. Within it, an
event expires only if its lot was not replaced, or if the replacement is within the bound and old enough too.
So a step or a reader of changes that exchanges two generations of a lot finds both.

A dataset either removes the rows of expired lots, or keeps them in a base lot (`base_lot`). Without a base
lot, a dataset with expired lots is not complete. `check_complete` and `check_position` refuse reads that need
what has expired: building a view from an incomplete dataset, or reading changes from an old position.
"""

from collections.abc import Mapping

import msgspec

from tidemill.errors import HistoryExpired
from tidemill.lots import base_lot, events, lots, owners
from tidemill.lots.events import LotEvent
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.lots import LotRow
from tidemill.lots.states import LotState
from tidemill.store import Tx

PAGE = 50
"""How many lots one transaction expires."""

LOT_WRITES = 4
"""How many rows `expire` writes for each lot, at most."""


class Expired(msgspec.Struct, frozen=True, array_like=True):
    """What has expired in a dataset: the events up to a position.

    - lots: how many lots have expired in all.
    - removable: the files of a group's steps up to this one may be removed (see `step_expiry`).
    - pending: the next values of `removable`, each with the time at which it expired (store time, µs).
    """

    position: int = 0
    lots: int = 0
    removable: int = 0
    pending: tuple[tuple[int, int], ...] = ()


class KeepPolicy(msgspec.Struct, frozen=True, array_like=True):
    """How long lots, or the changes of a view, are kept.

    - keep_us: µs since their publication.
    - rows: keep the rows of expired lots in a base lot.
    """

    keep_us: int
    rows: bool = False


class ExpiringLot(msgspec.Struct, frozen=True):
    """An event that is old enough to expire, and the generation of a lot that it announced."""

    event: LotEvent
    row: LotRow
    is_current: bool


_decoder = msgspec.msgpack.Decoder(Expired)
_keep = msgspec.msgpack.Decoder(KeepPolicy)
_int = msgspec.msgpack.Decoder(int)


def set_keep(tx: Tx, keys: LotKeys, pipeline: str, kept: Mapping[DatasetId, KeepPolicy | None]) -> None:
    """Store how long a pipeline keeps each of its tables; None for ever.

    Policies of tables that the pipeline no longer declares are deleted.
    """
    stored = _stored(tx, keys)
    for dataset, keep in kept.items():
        old = stored.pop(dataset, {})
        if "" in old:  # an earlier release stored one policy for all pipelines
            tx.clear(keys.keep[dataset.parts], quiet=True)
        _set_keep(tx, keys, dataset, pipeline, old.get(pipeline), keep)
    for dataset, old in stored.items():
        if pipeline in old and owners.read(tx, keys, dataset).get(pipeline) != owners.DECLARED:
            _set_keep(tx, keys, dataset, pipeline, old[pipeline], None)


def _set_keep(
    tx: Tx, keys: LotKeys, dataset: DatasetId, pipeline: str, old: KeepPolicy | None, keep: KeepPolicy | None
) -> None:
    key = keys.keep[(*dataset.parts, pipeline)]
    if keep is None and old is not None:
        tx.clear(key, quiet=True)
    elif keep is not None and keep != old:
        tx.set(key, msgspec.msgpack.encode(keep), quiet=True)


def policies(
    tx: Tx, keys: LotKeys, pipeline: str = "", declared: Mapping[DatasetId, KeepPolicy | None] | None = None
) -> dict[DatasetId, KeepPolicy]:
    """Return all datasets whose lots expire, and how long each is kept.

    If several pipelines declare a dataset, the longest time counts. If one of them declares no time, the lots
    stay for ever.

    - pipeline, declared: use these policies for a pipeline, instead of those that are stored.
    """
    by_dataset = _stored(tx, keys)
    if declared is not None:
        for by in by_dataset.values():
            by.pop(pipeline, None)
        for dataset, keep in declared.items():
            by = by_dataset.setdefault(dataset, {})
            by.pop("", None)
            if keep is not None:
                by[pipeline] = keep
    kept = {}
    for dataset, by in by_dataset.items():
        at = owners.read(tx, keys, dataset)
        declaring = {name for name, retired_at in at.items() if retired_at == owners.DECLARED}
        if not by or ("" not in by and not declaring <= by.keys()):
            continue
        kept[dataset] = KeepPolicy(
            max(keep.keep_us for keep in by.values()), any(k.rows for k in by.values())
        )
    return kept


def _stored(tx: Tx, keys: LotKeys) -> dict[DatasetId, dict[str, KeepPolicy]]:
    """Return the stored policies by dataset and pipeline; those of earlier releases under an empty name."""
    stored: dict[DatasetId, dict[str, KeepPolicy]] = {}
    for row in tx.range(*keys.keep.all()):
        name, version, *pipeline = keys.keep.unpack(row.key)
        keep = _keep.decode(row.value) if pipeline else KeepPolicy(_int.decode(row.value))
        dataset = DatasetId(str(name), str(version))
        stored.setdefault(dataset, {})[str(pipeline[0]) if pipeline else ""] = keep
    return stored


def read(tx: Tx, keys: LotKeys, dataset: DatasetId) -> Expired:
    """Return what has expired in a dataset, or in the steps of a group."""
    raw = tx.get(keys.expired[dataset.parts])
    return Expired() if raw is None else _decoder.decode(raw)


def write(tx: Tx, keys: LotKeys, dataset: DatasetId, expired: Expired) -> None:
    """Record what has expired."""
    tx.set(keys.expired[dataset.parts], msgspec.msgpack.encode(expired), quiet=True)


def expiring(
    tx: Tx, keys: LotKeys, dataset: DatasetId, after: int, *, before: int, bound: int, limit: int = PAGE
) -> list[ExpiringLot]:
    """Return the next events that expire: published before a time, and not above the lower bound.

    - after: the position of the last event that has expired.
    - before: store time, µs.
    """
    page = []
    for event in events.read(tx, keys, dataset, after, limit):
        if event.position > bound or event.at >= before:
            break
        current = lots.current(tx, keys, dataset, event.lot)
        if current is None:  # a later generation of the lot has expired: the event is all that is left
            break
        is_current = current.generation == event.generation
        if not is_current:
            following = lots.resolve(tx, keys, dataset, event.lot, event.generation + 1)
            replaced = events.first_unseen(tx, keys, dataset, following.position - 1)
            if following.position > bound or replaced is None or replaced.at >= before:
                break
        row = current if is_current else lots.resolve(tx, keys, dataset, event.lot, event.generation)
        page.append(ExpiringLot(event, row, is_current))
    return page


def expire(
    tx: Tx, keys: LotKeys, dataset: DatasetId, page: list[ExpiringLot], *, keep_rows: bool = False
) -> None:
    """Remove a page of lots, in the transaction that selected them with `expiring`.

    - keep_rows: make the lots parts of the base lot.
    """
    if not page:
        return
    now = tx.now()
    for item in page:
        row = item.row
        tx.clear(keys.event[(*dataset.parts, item.event.position)], quiet=True)
        if item.is_current:
            tx.clear(keys.lot[(*dataset.parts, row.lot)], quiet=True)
            tx.clear(keys.fragmented[(*dataset.parts, row.lot)], quiet=True)
        else:
            tx.clear(keys.replaced[(*dataset.parts, row.lot, row.generation)], quiet=True)
        if keep_rows and item.is_current and row.state is LotState.COMPLETE:
            base_lot.add_part(tx, keys, row)
        elif row.manifest:
            retired = keys.retired[(now, *dataset.parts, row.lot, row.generation, row.revision)]
            tx.set(retired, row.manifest.encode(), quiet=True)
    before = read(tx, keys, dataset)
    ended = [item.row.lot for item in page if item.is_current]
    write(
        tx,
        keys,
        dataset,
        msgspec.structs.replace(before, position=page[-1].event.position, lots=before.lots + len(ended)),
    )
    if keep_rows and ended:
        base_lot.add_lots(tx, keys, dataset, ended)


def remove_base(tx: Tx, keys: LotKeys, dataset: DatasetId) -> bool:
    """Remove a page of the base lot of a dataset that no longer keeps rows. Return True if there is more."""
    expired = read(tx, keys, dataset)
    return bool(expired.position) and base_lot.remove(tx, keys, dataset, expired.position)


def is_complete(tx: Tx, keys: LotKeys, dataset: DatasetId) -> bool:
    """Return whether the dataset still has all rows: those of expired lots are in the base."""
    return read(tx, keys, dataset).lots == base_lot.read(tx, keys, dataset).lots


def check_complete(tx: Tx, keys: LotKeys, dataset: DatasetId) -> None:
    """Raise `HistoryExpired` if rows of expired lots are removed: no view can be built from all rows."""
    if not is_complete(tx, keys, dataset):
        expired, base = read(tx, keys, dataset), base_lot.read(tx, keys, dataset)
        raise HistoryExpired(
            f"{expired.lots - base.lots} lots of {dataset} have expired, so a view can no longer be"
            " built from all rows of this dataset",
            hint="keep the declaration of the view as it was; or declare the dataset under a new version"
            " with keep_rows=True, and append the rows that the view needs",
        )


def check_position(tx: Tx, keys: LotKeys, dataset: DatasetId, after: int, table: str) -> None:
    """Raise `HistoryExpired` if changes after this position have expired."""
    expired = read(tx, keys, dataset)
    if after < expired.position:
        raise HistoryExpired(
            f"the changes of {table} up to position {expired.position} have expired; you asked for those"
            f" after position {after}",
            hint="read the complete table with df(), note its position, and continue from there. To prevent"
            " this, register a consumer: changes that a consumer has not read do not expire",
        )


# --- consumers


def set_consumer(tx: Tx, keys: LotKeys, dataset: DatasetId, consumer: str, position: int) -> None:
    """Record that a consumer has read everything up to a position. Later changes do not expire."""
    tx.set(keys.consumer[(*dataset.parts, consumer)], msgspec.msgpack.encode(position), quiet=True)


def remove_consumer(tx: Tx, keys: LotKeys, dataset: DatasetId, consumer: str) -> bool:
    """Remove a consumer. Return False if there is none."""
    key = keys.consumer[(*dataset.parts, consumer)]
    if tx.get(key) is None:
        return False
    tx.clear(key, quiet=True)
    return True


def consumers(tx: Tx, keys: LotKeys, dataset: DatasetId) -> dict[str, int]:
    """Return the consumers of a dataset, with the position that each has reached."""
    rows = tx.range(*keys.consumer.under(*dataset.parts))
    return {str(keys.consumer.unpack(row.key)[2]): _int.decode(row.value) for row in rows}
