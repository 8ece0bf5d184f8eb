"""The versions of a group's database: heads that a round has pinned (DBSP-23, DBSP-24).

Each committed step is the durable head of the database. A *version* is a head with a number: the files that
its version file and its tables list are kept. A database has one or two versions. A new one has version 0,
which is empty; it gets a row in the first round. `open_version(v)` discards the other one, and
`commit_version` pins the head as v + 1.
"""

from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import VersionUnknown
from tidemill.store import Tx, long_values
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from tidemill.views.steps.groups import ViewGroup


class GroupVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned head: its number, the step, the version file, and the tables of the views."""

    number: int
    step: int
    version: str = ""
    tables: dict[str, str] = {}


_decoder = msgspec.msgpack.Decoder(GroupVersion)


def listed(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> list[GroupVersion]:
    """Return the versions of a group, the older one first."""
    rows = tx.range(*keys.version.under(pipeline, group), snapshot=True)
    stored = [_decoder.decode(long_values.complete(tx, keys.more, row.key, row.value)) for row in rows]
    return stored or [GroupVersion(number=0, step=0)]


def versions(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> range:
    """Return the numbers of a group's versions: one, or two consecutive ones."""
    stored = listed(tx, keys, pipeline, group)
    return range(stored[0].number, stored[-1].number + 1)


def open_version(tx: Tx, keys: StepKeys, pipeline: str, group: str, number: int) -> None:
    """Discard the other version. The database continues at its head, which is of the same lineage."""
    stored = listed(tx, keys, pipeline, group)
    if number not in [version.number for version in stored]:
        raise VersionUnknown(f"group {group!r} of pipeline {pipeline!r} has no version {number}")
    for version in stored:
        if version.number != number:
            long_values.clear_long(tx, keys.more, keys.version[pipeline, group, version.number])


def commit_version(tx: Tx, keys: StepKeys, pipeline: str, group: "ViewGroup") -> int:
    """Pin the head as the next version; return its number. The open version stays, an older one does not."""
    name = group.spec.name
    stored = listed(tx, keys, pipeline, name)
    for version in stored[:-1]:
        long_values.clear_long(tx, keys.more, keys.version[pipeline, name, version.number])
    _write(tx, keys, pipeline, name, stored[-1])
    number = stored[-1].number + 1
    head = GroupVersion(number=number, step=group.step, version=group.version, tables=group.tables)
    _write(tx, keys, pipeline, name, head)
    return number


def create(tx: Tx, keys: StepKeys, pipeline: str, group: str, step: int) -> None:
    """Give a new group the versions that another group of the pipeline has, all at its first step."""
    others = tx.range(*keys.version.under(pipeline), limit=1, snapshot=True)
    if others:
        _, other, _ = keys.version.unpack(others[0].key)
        for number in versions(tx, keys, pipeline, str(other)):
            _write(tx, keys, pipeline, group, GroupVersion(number=number, step=step))


def remove(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> None:
    """Remove the versions of a group that is no longer declared."""
    long_values.clear_long_range(tx, keys.more, *keys.version.under(pipeline, group))


def _write(tx: Tx, keys: StepKeys, pipeline: str, group: str, version: GroupVersion) -> None:
    key = keys.version[pipeline, group, version.number]
    long_values.set_long(tx, keys.more, key, msgspec.msgpack.encode(version))
