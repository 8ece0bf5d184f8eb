"""The output of a group by step: what a step that is computed again may do with its output (DBSP-29).

    below the first step that is kept    expired: the output is discarded
    from there to the group's step       compared with the committed digests, then discarded
    the step after the group's step      next: the stepper commits it
    above                                `StepConflict`

An output whose digest differs is never published. A shadow of other code is refused then. If the same code
has computed the step again, the state of the group or its code cannot be trusted: the group is marked as
*diverged*, and commits nothing until its state is built again.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import GroupDiverged, StepConflict
from tidemill.store import Row, Tx
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from tidemill.views.steps.commits import StepOutput, StepRow

SPAN = 2**128


class Fate(StrEnum):
    """What became of the output of a step."""

    EXPIRED = "expired"
    EQUAL = "equal"
    DIFFERENT = "different"
    NEXT = "next"


class Compared(msgspec.Struct, frozen=True):
    """What became of an output, and the views whose rows differ."""

    fate: Fate
    views: tuple[str, ...] = ()


class Diverged(msgspec.Struct, frozen=True, kw_only=True):
    """A step that gave other rows when it was computed again.

    - views: the views whose digests differ.
    - at: wall time, µs since 1970; for display.
    """

    step: int
    views: tuple[str, ...]
    at: int


_decoder = msgspec.msgpack.Decoder(Diverged)


def compare(
    committed: "Sequence[StepRow]", head: int, after: int, step: int, outputs: "Iterable[StepOutput]"
) -> Compared:
    """Compare the output of the records after `after`, up to `step`, with what the group committed.

    - committed: the commits of these steps.
    - head: the group's step.

    Raises `StepConflict` if the step is above the next one, or if commits begin or end inside it.
    """
    if after == head:
        return Compared(Fate.NEXT)
    if step > head:
        raise StepConflict(f"step {step} is not the next step: the group is at step {head}")
    if not committed or committed[0].after > after:
        return Compared(Fate.EXPIRED)
    if (committed[0].after, committed[-1].step) != (after, step):
        raise StepConflict(f"the steps after {after} up to {step} were not committed together")
    ours = _digests([outputs])
    theirs = _digests(row.outputs for row in committed)
    different = sorted(view for view in {*ours, *theirs} if ours.get(view, 0) != theirs.get(view, 0))
    return Compared(Fate.DIFFERENT if different else Fate.EQUAL, tuple(different))


def _digests(steps: "Iterable[Iterable[StepOutput]]") -> dict[str, int]:
    """Return the sum of the digests of each view; no rows have the digest 0."""
    sums: dict[str, int] = {}
    for outputs in steps:
        for output in outputs:
            sums[output.view] = (sums.get(output.view, 0) + int(output.digest or "0", 16)) % SPAN
    return sums


# --- groups that have diverged


def mark_diverged(
    tx: Tx, keys: StepKeys, pipeline: str, group: str, step: int, views: tuple[str, ...]
) -> Diverged:
    """Stop the publication of a group, because one of its steps gave other rows when it was repeated."""
    row = Diverged(step=step, views=views, at=tx.wall())
    tx.set(keys.diverged[pipeline, group], msgspec.msgpack.encode(row), quiet=True)
    return row


def diverged(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> Diverged | None:
    """Return why a group has stopped publishing; None if it has not diverged."""
    raw = tx.get(keys.diverged[pipeline, group])
    return None if raw is None else _decoder.decode(raw)


def all_diverged(tx: Tx, keys: StepKeys, pipeline: str) -> dict[str, Diverged]:
    """Return the groups of a pipeline that have diverged."""
    page = tx.range(*keys.diverged.under(pipeline), snapshot=True)
    return {_group(keys, row): _decoder.decode(row.value) for row in page}


def clear_diverged(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> None:
    """Let a group publish again: its state will be built again, or the group is gone."""
    tx.clear(keys.diverged[pipeline, group], quiet=True)


def check_not_diverged(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> None:
    """Raise `GroupDiverged` if the group must not publish."""
    row = diverged(tx, keys, pipeline, group)
    if row is not None:
        raise GroupDiverged(
            f"step {row.step} of group {group!r} gave other rows when it was computed again:"
            f" {', '.join(row.views)}"
        )


def _group(keys: StepKeys, row: Row) -> str:
    return str(keys.diverged.unpack(row.key)[1])
