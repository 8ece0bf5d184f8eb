"""Bulk submission: creates many plain futures at once, with the same rows as `submit` but much less work.

Plain futures have no inputs, keys, deadlines or assignments. If they also have the same needs, they share the
state row, the lane and the time; only the ids differ. The first one is created by `submit.submit_one`. The
others are written as copies of its rows, in one call to the store. A test compares the rows with those of
`submit`.
"""

from collections.abc import Sequence

import msgspec

from tidemill.futures.protocol import edges, rows, submit
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Spec, Unclaimed
from tidemill.futures.protocol.states import INITIAL
from tidemill.store import Tx, pack

PLAIN_WRITES = 3
PAGE = submit.ROOM_WRITES // PLAIN_WRITES
"""How many plain futures fit into one transaction."""


def is_plain(spec: Spec) -> bool:
    """Return whether a future is plain: it refers to no other rows."""
    return not (spec.inputs or spec.key or spec.deadline_at or spec.near or spec.actor)


def weight(spec: Spec) -> int:
    """Return how many rows the submission writes at most."""
    return PLAIN_WRITES if is_plain(spec) else submit.weight(spec)


def submit_many(tx: Tx, keys: FutureKeys, specs: Sequence[Spec]) -> list[bytes]:
    """Create futures as `submit.submit` does. Plain ones come first, because others may depend on them."""
    alike: dict[tuple[object, ...], list[Spec]] = {}
    for spec in specs:
        if is_plain(spec):
            alike.setdefault((spec.queue, spec.priority, spec.needs), []).append(spec)
    for group in alike.values():
        _submit_alike(tx, keys, group)
    return [spec.id if is_plain(spec) else submit.submit_one(tx, keys, spec) for spec in specs]


def _submit_alike(tx: Tx, keys: FutureKeys, group: list[Spec]) -> None:
    first, *rest = group
    submit.submit_one(tx, keys, first)
    if not rest:
        return
    now = tx.now()
    row = submit.unclaimed(tx, keys, msgspec.structs.replace(first, submitted_at=now), rows.AttemptCounts())
    assert isinstance(row, Unclaimed)
    assert row.state in INITIAL
    raw, lane_entry = rows.encode(row), edges.ready_value(first, row.tally)
    lane = edges.ready_key(keys, first, row).removesuffix(pack((first.id,)))
    writes: list[tuple[bytes, bytes]] = []
    for spec in rest:
        suffix = pack((spec.id,))
        writes += (
            (keys.spec.prefix + suffix, rows.encode(msgspec.structs.replace(spec, submitted_at=now))),
            (keys.future.prefix + suffix, raw),
            (lane + suffix, lane_entry),
        )
    tx.set_many(writes, quiet=True)
