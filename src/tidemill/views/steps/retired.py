"""Views that nobody declares any more: where their tables were when they were stepped last.

A view that is taken out of its pipeline is computed no more, but what it held can be read as long as its
files are there: somebody may have it in a query, or want it back. They stay until somebody drops it. Declared
again, it is one like any other, and its row here is forgotten.
"""

from collections.abc import Iterable

import msgspec

from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys


class RetiredTable(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a view.

    - step: the one that its group had committed.
    - table: the manifest of its table there.
    """

    view: str
    group: str
    step: int
    table: str


_decoder = msgspec.msgpack.Decoder(RetiredTable)


def keep(tx: Tx, keys: StepKeys, pipeline: str, retired: Iterable[RetiredTable]) -> None:
    """Remember views that are stepped no more."""
    for one in retired:
        tx.set(keys.retired[pipeline, one.view], msgspec.msgpack.encode(one), quiet=True)


def forget(tx: Tx, keys: StepKeys, pipeline: str, views: Iterable[str]) -> None:
    """These are declared, or dropped."""
    for view in views:
        tx.clear(keys.retired[pipeline, view], quiet=True)


def drop(tx: Tx, keys: StepKeys, pipeline: str, view: str) -> bool:
    """Give up what is kept of a view: a collector removes its files. False when nothing is kept of it: it is
    declared again, say, or was dropped already.
    """
    if find(tx, keys, pipeline, view) is None:
        return False
    forget(tx, keys, pipeline, [view])
    mark_for_collection(tx, keys, pipeline, [view])
    return True


def find(tx: Tx, keys: StepKeys, pipeline: str, view: str) -> RetiredTable | None:
    """A view that is stepped no more; None for one that never was one, or is."""
    raw = tx.get(keys.retired[pipeline, view])
    return None if raw is None else _decoder.decode(raw)


def listed(tx: Tx, keys: StepKeys, pipeline: str) -> list[RetiredTable]:
    """All of a pipeline, by name."""
    return [_decoder.decode(row.value) for row in tx.range(*keys.retired.under(pipeline), snapshot=True)]


MOST = 1000


def mark_for_collection(tx: Tx, keys: StepKeys, pipeline: str, views: Iterable[str], group: str = "") -> None:
    """Views that are declared no more, and their group if it is not."""
    for view in views:
        tx.set(keys.gone[pipeline, view, ""], b"", quiet=True)
    if group:
        tx.set(keys.gone[pipeline, "", group], b"", quiet=True)


def to_collect(tx: Tx, keys: StepKeys, pipeline: str) -> list[tuple[str, str]]:
    """Views (with no group) and groups (with no view)."""
    found = tx.range(*keys.gone.under(pipeline), limit=MOST, snapshot=True)
    return [(str(view), str(group)) for _, view, group in (keys.gone.unpack(row.key) for row in found)]


def collected(tx: Tx, keys: StepKeys, pipeline: str, names: Iterable[tuple[str, str]]) -> None:
    """Nothing is left of these that could be removed."""
    for view, group in names:
        tx.clear(keys.gone[pipeline, view, group], quiet=True)
