"""The checks of tables, which a run stores for people who do not have the user's file."""

from collections.abc import Mapping, Sequence

import msgspec

from tidemill.lots.checks import Check
from tidemill.obs.keys import ObservationKeys
from tidemill.store import Tx

MOST_CHECKS = 100
"""How many checks of a table are stored."""


class DeclaredCheck(msgspec.Struct, frozen=True, array_like=True):
    """A check; `problem` says what is wrong with a row that fails."""

    name: str
    on_fail: str
    problem: str


_decoder = msgspec.msgpack.Decoder(tuple[DeclaredCheck, ...])


def declare(tx: Tx, keys: ObservationKeys, pipeline: str, wanted: Mapping[str, Sequence[Check]]) -> None:
    """Store the checks of a pipeline's tables, if they changed, and remove those of other tables."""
    rows = {
        keys.checks[pipeline, table]: msgspec.msgpack.encode(
            [
                DeclaredCheck(each.name, each.on_fail.value, each.problem[:500])
                for each in checks[:MOST_CHECKS]
            ]
        )
        for table, checks in wanted.items()
        if checks
    }
    stored = {row.key: row.value for row in tx.range(*keys.checks.under(pipeline))}
    for key in stored.keys() - rows.keys():
        tx.clear(key, quiet=True)
    for key, value in rows.items():
        if stored.get(key) != value:
            tx.set(key, value, quiet=True)


def read(tx: Tx, keys: ObservationKeys, pipeline: str, table: str) -> tuple[DeclaredCheck, ...]:
    """Return the checks of a table."""
    raw = tx.get(keys.checks[pipeline, table])
    return () if raw is None else _decoder.decode(raw)
