"""How old a table may become, and how old it is.

`fresh_within=` says how long ago the newest lot of a table, or the newest step of a view, may have been
published. The time counts from the first run that declared it, if nothing was published since.
"""

from collections.abc import Mapping

import msgspec

from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.obs.keys import ObservationKeys
from tidemill.store import Tx
from tidemill.views.steps import commits
from tidemill.views.steps.keys import StepKeys


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """How old a table may become.

    - within_s: the limit.
    - since: when it was first declared, in seconds since 1970.
    - group: the group of a view; empty for another table.
    - version: the version of another table.
    """

    within_s: float
    since: float
    group: str = ""
    version: str = "1"


class Age(msgspec.Struct, frozen=True, kw_only=True):
    """A table with a limit; `published_at` is 0 before its first lot or step."""

    table: str
    within_s: float
    published_at: float
    age_s: float
    is_view: bool = False

    @property
    def is_stale(self) -> bool:
        return self.age_s > self.within_s


_decoder = msgspec.msgpack.Decoder(Freshness)


def declare(tx: Tx, keys: ObservationKeys, pipeline: str, wanted: Mapping[str, Freshness]) -> None:
    """Store the limits of a pipeline's tables; a table that had one keeps its start."""
    stored = {str(keys.fresh.unpack(row.key)[1]): row.value for row in tx.range(*keys.fresh.under(pipeline))}
    for table in stored.keys() - wanted.keys():
        tx.clear(keys.fresh[pipeline, table], quiet=True)
        tx.clear(keys.firing[pipeline, "stale", table], quiet=True)
    for table, limit in wanted.items():
        old = stored.get(table)
        row = limit if old is None else msgspec.structs.replace(limit, since=_decoder.decode(old).since)
        if old is None or _decoder.decode(old) != row:
            tx.set(keys.fresh[pipeline, table], msgspec.msgpack.encode(row), quiet=True)


def ages(tx: Tx, keys: ObservationKeys, steps: StepKeys, pipeline: str, now: float) -> list[Age]:
    """Return the age of every table of a pipeline that has a limit."""
    measured = []
    for row in tx.range(*keys.fresh.under(pipeline), snapshot=True):
        table, limit = str(keys.fresh.unpack(row.key)[1]), _decoder.decode(row.value)
        at = published_at(tx, steps, pipeline, table, limit)
        age_s = max(0.0, now - max(at, limit.since))
        measured.append(
            Age(table=table, within_s=limit.within_s, published_at=at, age_s=age_s, is_view=bool(limit.group))
        )
    return measured


def published_at(tx: Tx, steps: StepKeys, pipeline: str, table: str, limit: Freshness) -> float:
    """Return when the newest lot or step of a table was published; 0 before the first."""
    if limit.group:
        last = commits.newest(tx, steps, pipeline, limit.group, 1)
        return last[0].wall_at / 1e6 if last else 0.0
    id_ = DatasetId(table, limit.version)
    head = events.head(tx, steps.lots, id_)
    newest = events.read(tx, steps.lots, id_, head - 1, 1) if head else []
    return newest[0].wall_at / 1e6 if newest else 0.0
