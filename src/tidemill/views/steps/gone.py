"""Views and groups that left files: declared once, and then no more, or no more as they were.

A collector looks through all of their folders, and forgets them when nothing is left to be removed.
"""

from collections.abc import Iterable

from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys

MOST = 1000


def mark(tx: Tx, keys: StepKeys, pipeline: str, views: Iterable[str], group: str = "") -> None:
    """Views that are declared no more, and their group if it is not."""
    for view in views:
        tx.set(keys.gone[pipeline, view, ""], b"", quiet=True)
    if group:
        tx.set(keys.gone[pipeline, "", group], b"", quiet=True)


def listed(tx: Tx, keys: StepKeys, pipeline: str) -> list[tuple[str, str]]:
    """Views (with no group) and groups (with no view)."""
    found = tx.range(*keys.gone.under(pipeline), limit=MOST, snapshot=True)
    return [(str(view), str(group)) for _, view, group in (keys.gone.unpack(row.key) for row in found)]


def forget(tx: Tx, keys: StepKeys, pipeline: str, names: Iterable[tuple[str, str]]) -> None:
    """Nothing is left of these that could be removed."""
    for view, group in names:
        tx.clear(keys.gone[pipeline, view, group], quiet=True)
