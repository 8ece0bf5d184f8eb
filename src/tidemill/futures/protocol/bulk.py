"""Submitting many plain futures at once: the same rows as one by one, for a fraction of the work.

Of futures that are entered together, without inputs, keys, deadlines or assignments, and with the same needs,
all but the ids is the same: the state row, the lane, the time. The first is entered as any other
(`submit.submit_one`), and the rest are written as its likes, in one call to the store. A test compares the
rows with those of `submit`.
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
"""The most that one transaction takes."""


def is_plain(spec: Spec) -> bool:
    """Is it a future whose submission depends on nothing but itself?"""
    return not (spec.inputs or spec.key or spec.deadline_at or spec.near or spec.actor)


def weight(spec: Spec) -> int:
    """How many rows submitting this writes at most."""
    return PLAIN_WRITES if is_plain(spec) else submit.weight(spec)


def submit_many(tx: Tx, keys: FutureKeys, specs: Sequence[Spec]) -> list[bytes]:
    """Enter futures as `submit.submit` does: first those that are plain, on which others may hang."""
    alike: dict[tuple[object, ...], list[Spec]] = {}
    for spec in specs:
        if is_plain(spec):
            alike.setdefault((spec.queue, spec.priority, spec.needs), []).append(spec)
    for group in alike.values():
        _enter_alike(tx, keys, group)
    return [spec.id if is_plain(spec) else submit.submit_one(tx, keys, spec) for spec in specs]


def _enter_alike(tx: Tx, keys: FutureKeys, group: list[Spec]) -> None:
    first, *others = group
    submit.submit_one(tx, keys, first)
    if not others:
        return
    now = tx.now()
    row = submit.unclaimed(tx, keys, msgspec.structs.replace(first, submitted_at=now), rows.AttemptCounts())
    assert isinstance(row, Unclaimed)
    assert row.state in INITIAL
    raw, ask = rows.encode(row), edges.ready_value(first, row.tally)
    lane = edges.ready_key(keys, first, row).removesuffix(pack((first.id,)))
    written: list[tuple[bytes, bytes]] = []
    for spec in others:
        own = pack((spec.id,))
        written += (
            (keys.spec.prefix + own, rows.encode(msgspec.structs.replace(spec, submitted_at=now))),
            (keys.future.prefix + own, raw),
            (lane + own, ask),
        )
    tx.set_many(written, quiet=True)
