"""Retired views: views that are no longer declared, with their last tables.

A view that is removed from its pipeline is no longer computed, but its last table stays readable: a query may
still read the table, or a user may declare the view again. Its files stay until a user drops the view.
Declaring the view again removes it from the retired views.
"""

from collections.abc import Iterable

import msgspec

from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys


class RetiredTable(msgspec.Struct, frozen=True, kw_only=True):
    """The last table of a retired view.

    - step: the last step that its group had committed.
    - table: the manifest of the view's table at that step.
    """

    view: str
    group: str
    step: int
    table: str


_decoder = msgspec.msgpack.Decoder(RetiredTable)


def keep(tx: Tx, keys: StepKeys, pipeline: str, tables: Iterable[RetiredTable]) -> None:
    """Store the last tables of views that are no longer computed."""
    for table in tables:
        tx.set(keys.retired[pipeline, table.view], msgspec.msgpack.encode(table), quiet=True)


def forget(tx: Tx, keys: StepKeys, pipeline: str, views: Iterable[str]) -> None:
    """Remove the rows of views that are declared again, or dropped."""
    for view in views:
        tx.clear(keys.retired[pipeline, view], quiet=True)


def drop(tx: Tx, keys: StepKeys, pipeline: str, view: str) -> bool:
    """Drop a retired view, so that the collector removes its files.

    Returns False if there is no such view: it was declared again, or was dropped before.
    """
    if find(tx, keys, pipeline, view) is None:
        return False
    forget(tx, keys, pipeline, [view])
    mark_for_collection(tx, keys, pipeline, [view])
    return True


def find(tx: Tx, keys: StepKeys, pipeline: str, view: str) -> RetiredTable | None:
    """Return the last table of a retired view; None if the view is declared, or never existed."""
    raw = tx.get(keys.retired[pipeline, view])
    return None if raw is None else _decoder.decode(raw)


def listed(tx: Tx, keys: StepKeys, pipeline: str) -> list[RetiredTable]:
    """Return all retired views of a pipeline, sorted by name."""
    return [_decoder.decode(row.value) for row in tx.range(*keys.retired.under(pipeline), snapshot=True)]


MOST = 1000


def mark_for_collection(tx: Tx, keys: StepKeys, pipeline: str, views: Iterable[str], group: str = "") -> None:
    """Mark views that are no longer declared, and their group if it was removed."""
    for view in views:
        tx.set(keys.gone[pipeline, view, ""], b"", quiet=True)
    if group:
        tx.set(keys.gone[pipeline, "", group], b"", quiet=True)


def to_collect(tx: Tx, keys: StepKeys, pipeline: str) -> list[tuple[str, str]]:
    """Return the marked (view, "") and ("", group) pairs."""
    rows = tx.range(*keys.gone.under(pipeline), limit=MOST, snapshot=True)
    return [(str(view), str(group)) for _, view, group in (keys.gone.unpack(row.key) for row in rows)]


def unmark_collected(tx: Tx, keys: StepKeys, pipeline: str, names: Iterable[tuple[str, str]]) -> None:
    """Remove the marks of views and groups that have no more files to remove."""
    for view, group in names:
        tx.clear(keys.gone[pipeline, view, group], quiet=True)
