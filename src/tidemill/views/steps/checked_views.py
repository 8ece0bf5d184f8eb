"""How many rows of views fail the checks of these views.

A view computes the rows that fail like any other view (`pipeline.checked_views`). Its table counts them, and
the store has a copy of the counts for readers without access to objects.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys


class CheckedView(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of a view fail each of its checks, after a step.

    - failures: the view with these rows.
    - rows: the number of rows for each check that fails.
    - refused: the checks that fail and refuse to publish the view.
    """

    view: str
    failures: str
    rows: dict[str, int] = {}
    refused: tuple[str, ...] = ()


_decoder = msgspec.msgpack.Decoder(CheckedView)


def listed(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> dict[str, CheckedView]:
    """Return the counts of the views of a group, by view. A view without checks has no entry."""
    rows = [_decoder.decode(row.value) for row in tx.range(*keys.checked.under(pipeline, group))]
    return {row.view: row for row in rows}


def store(
    tx: Tx,
    keys: StepKeys,
    pipeline: str,
    group: str,
    before: Mapping[str, CheckedView],
    after: Iterable[CheckedView],
) -> None:
    """Store the counts of views after a step; write only the rows that differ."""
    for view in after:
        if before.get(view.view) != view:
            tx.set(keys.checked[pipeline, group, view.view], msgspec.msgpack.encode(view), quiet=True)
