"""Show whether the wall clock has jumped, and list datasets that closed intervals in the future."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import DatasetUnknown
from tidemill.lots import staging, wall_clock
from tidemill.lots.ids import LotId
from tidemill.store import Tx

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DatasetAhead(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset whose current interval begins in the future. New appends are hidden until `visible_at`."""

    name: str
    interval: str
    visible_at: datetime


class ClockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The wall clock of the store.

    - wall_at: what the clock shows.
    - followed_at: the time that intervals, schedules and `now()` use.
    - jump: describes a jump that is not accepted yet; empty if there is none.
    - accepted_in_s: seconds until the jump is accepted, if the clock is not set back before that.
    - ahead: datasets whose current interval lies in the future, because they closed earlier ones too soon.
    """

    wall_at: datetime
    followed_at: datetime
    jump: str = ""
    accepted_in_s: float = 0.0
    ahead: list[DatasetAhead] = []


def clock_of(pipeline: "Pipeline", *, accept: bool = False) -> ClockInfo:
    """Read the state of the clock. With `accept`, first accept the time that the clock shows now."""
    context = pipeline.context
    keys = context.keys.lots

    def read(tx: Tx) -> ClockInfo:
        if accept:
            wall_clock.accept(tx, keys)
        followed_us, jump = wall_clock.believed(tx, keys), wall_clock.pending(tx, keys)
        ahead = []
        for declaration in pipeline.datasets.values():
            interval = staging.read(tx, keys, declaration.id)
            if interval is None:
                continue
            lot = LotId.parse(interval.lot)
            if staging.wall_us(lot.start) > followed_us + wall_clock.AHEAD_US:
                ahead.append(
                    DatasetAhead(name=declaration.id.name, interval=interval.lot, visible_at=lot.end)
                )
        return ClockInfo(
            wall_at=_moment(tx.wall()),
            followed_at=_moment(followed_us),
            jump="" if jump is None else jump.text,
            accepted_in_s=0.0 if jump is None else jump.accepted_in_us / 1e6,
            ahead=ahead,
        )

    return context.store.run(read)


def rewind(pipeline: "Pipeline", name: str) -> ClockInfo:
    """Move the current interval of a dataset back to the present; return the state of the clock."""
    if name not in pipeline.datasets:
        raise DatasetUnknown(f"{pipeline.name} declares no dataset {name}")
    context, dataset = pipeline.context, pipeline.datasets[name].id
    while context.store.run(lambda tx: staging.rewind(tx, context.keys.lots, dataset)):
        pass
    return clock_of(pipeline)


def _moment(wall_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=wall_us)
