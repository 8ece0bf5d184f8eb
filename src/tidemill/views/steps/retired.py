"""Views that nobody declares any more: where their tables were when they were stepped last.

A view that is taken out of its pipeline is computed no more, but what it held can be read as long as its
files are there: somebody may have it in a query, or want it back. They stay until somebody drops it. Declared
again, it is one like any other, and its row here is forgotten.
"""

from collections.abc import Iterable

import msgspec

from tidemill.store import Tx
from tidemill.views.steps import gone
from tidemill.views.steps.keys import StepKeys


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a view.

    - step: the one that its group had committed.
    - table: the manifest of its table there.
    """

    view: str
    group: str
    step: int
    table: str


_decoder = msgspec.msgpack.Decoder(Retired)


def keep(tx: Tx, keys: StepKeys, pipeline: str, retired: Iterable[Retired]) -> None:
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
    gone.mark(tx, keys, pipeline, [view])
    return True


def find(tx: Tx, keys: StepKeys, pipeline: str, view: str) -> Retired | None:
    """A view that is stepped no more; None for one that never was one, or is."""
    raw = tx.get(keys.retired[pipeline, view])
    return None if raw is None else _decoder.decode(raw)


def listed(tx: Tx, keys: StepKeys, pipeline: str) -> list[Retired]:
    """All of a pipeline, by name."""
    return [_decoder.decode(row.value) for row in tx.range(*keys.retired.under(pipeline), snapshot=True)]
