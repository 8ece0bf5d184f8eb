"""Create many plain futures at once, with the same rows as `submit` but much less work.

Plain futures have no inputs, keys, deadlines or assignments. If plain futures also have the same needs,
priority and queue, they have the same state row, lane and time; only their ids and specs differ.
`submit.submit_one` creates the first future. The others are written as copies of its rows, in one call to the
store. A test compares these rows with those of `submit`.
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
    """Return the maximum number of rows that submitting this future writes."""
    return PLAIN_WRITES + submit.args_weight(spec) if is_plain(spec) else submit.weight(spec)


def submit_many(tx: Tx, keys: FutureKeys, specs: Sequence[Spec]) -> list[bytes]:
    """Create futures like `submit.submit`: first the plain ones, because the others may depend on them."""
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
