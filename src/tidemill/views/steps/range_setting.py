"""How many ranges a step of a pipeline has at least, as `tidemill scale` sets it.

A range is the part of hash space that one task of a step computes. Ranges are chosen for each step, so a new
number applies from the next step on, and nothing that is stored depends on it.
"""

import msgspec

from tidemill.errors import UsageError
from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys
from tidemill.views.trace.hash_space import SLICES

_decoder = msgspec.msgpack.Decoder(int)


def read(tx: Tx, keys: StepKeys, pipeline: str) -> int:
    """Return the number; 0 if the size of each step decides."""
    raw = tx.get(keys.ranges[pipeline])
    return 0 if raw is None else _decoder.decode(raw)


def write(tx: Tx, keys: StepKeys, pipeline: str, ranges: int) -> None:
    """Set the number; 0 lets the size of each step decide."""
    check(ranges)
    if ranges:
        tx.set(keys.ranges[pipeline], msgspec.msgpack.encode(ranges), quiet=True)
    else:
        tx.clear(keys.ranges[pipeline], quiet=True)


def check(ranges: int) -> None:
    """Raise `UsageError` if a step cannot have so many ranges."""
    if not 0 <= ranges <= SLICES:
        raise UsageError(
            f"a step cannot have {ranges} ranges",
            hint=f"use 1 to {SLICES} ranges, or 0 to let the size of each step decide",
        )
