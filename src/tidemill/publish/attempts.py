"""Attempts at lots: each has a row in the store, written before its first object (LOT-17, LOT-20).

The row names the lots that the attempt will publish, the generations of its inputs, and its code. A node
holds the attempt under an epoch, which grows when another node takes over the attempt. Every operation must
pass the attempt's `Hold`. After a takeover, a write under the old hold raises `LeaseLost`. Once the attempt
has ended, a write raises `AttemptEnded`. So a stale holder publishes nothing, and an abandoned attempt is
never published. The objects of an open attempt may be deleted only after the attempt is abandoned.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptEnded, AttemptUnknown, LeaseLost, UsageError
from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.publish.keys import PublishKeys
from tidemill.publish.states import AttemptEdge, AttemptState, step
from tidemill.store import Tx, long_values

MOST_TARGETS = 100
MOST_INPUTS = 300
MOST_BYTES = 48 * 1024
"""The maximum size of a draft, unless its author knows that the transactions that begin and end the attempt
have room for more."""

PARTS_PAGE = 400


class Target(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What an attempt will publish: one generation of a lot in one sink.

    An `optional` target, such as a quarantine without rows, may be left out at publication.
    """

    dataset: DatasetId
    lot: str
    generation: int = 0
    optional: bool = False

    @property
    def place(self) -> tuple[DatasetId, str, int]:
        """The dataset, lot and generation. No two targets of an attempt have the same place."""
        return self.dataset, self.lot, self.generation


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an attempt that never changes.

    - author: an arc, a source, or the appends of a dataset.
    - lot, generation: the lot that the author works on; each target also names the lot that it gets.
    - inputs: the lots that the attempt reads, in the generations that were current when it was opened
      (LOT-30).
    - code: the digest of the author's code.
    """

    id: str
    author: str
    lot: str
    generation: int = 0
    targets: tuple[Target, ...]
    inputs: tuple[InputLot, ...] = ()
    code: str = ""


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """The attempt has not ended: a node is working on it, or was."""

    draft: Draft
    node: str
    node_epoch: int
    epoch: int = 1  # grows with every adoption
    opened_at: int  # store time, µs
    parts: int | None = None  # their number, after all of them were listed (LOT-18)
    parked: bool = False  # no node works on it; it is kept for a retry

    @property
    def state(self) -> AttemptState:
        return AttemptState.OPEN


class Published(msgspec.Struct, frozen=True, kw_only=True, tag="published"):
    """The attempt was published: every sink has its lot.

    `positions` and `manifests` are in the order of the draft's targets, with 0 and an empty name for an
    optional target that was left out. The cleaner removes objects that the manifests do not list.
    """

    draft: Draft
    positions: tuple[int, ...]
    at: int
    manifests: tuple[str, ...] = ()  # without the lot's prefix; see `manifest_keys`
    sweep_at: int | None = None
    sweeps: int = 0

    @property
    def state(self) -> AttemptState:
        return AttemptState.PUBLISHED

    @property
    def manifest_keys(self) -> tuple[str, ...]:
        """The full keys of the manifests."""
        return tuple(
            _folder(target) + name[1:] if name.startswith("/") else name
            for target, name in zip(self.draft.targets, self.manifests, strict=True)
        )


class Abandoned(msgspec.Struct, frozen=True, kw_only=True, tag="abandoned"):
    """The attempt was given up: it will not be published, and its objects may be deleted."""

    draft: Draft
    at: int
    why: str = ""
    sweep_at: int | None = None  # when the cleaner next looks for its objects
    sweeps: int = 0

    @property
    def state(self) -> AttemptState:
        return AttemptState.ABANDONED


AnyAttempt = Open | Published | Abandoned
_decoder: msgspec.msgpack.Decoder[AnyAttempt] = msgspec.msgpack.Decoder(Open | Published | Abandoned)


class Hold(msgspec.Struct, frozen=True):
    """The right to continue an open attempt."""

    draft: Draft
    epoch: int
    node: Node


def begin(
    tx: Tx,
    keys: PublishKeys,
    node: Node,
    draft: Draft,
    *,
    most_targets: int = MOST_TARGETS,
    most_bytes: int = MOST_BYTES,
) -> Hold:
    """Open an attempt, before its first object is written.

    - most_targets, most_bytes: the maximum number of targets, and the maximum size of the draft.
    """
    nodes.check(tx, keys.cluster, node)
    places = {target.place for target in draft.targets}
    if not 0 < len(draft.targets) <= most_targets or len(places) < len(draft.targets):
        raise UsageError(
            f"{draft.author} has an invalid list of sinks:"
            f" {', '.join(str(target.dataset) for target in draft.targets) or 'nothing'}",
            hint=f"use 1 to {most_targets} sinks, and do not repeat any",
        )
    if all(target.optional for target in draft.targets):
        raise UsageError(f"all sinks of {draft.author} are optional", hint="make one of them mandatory")
    if len(draft.inputs) > MOST_INPUTS:
        raise UsageError(
            f"{draft.author} reads too many lots at once: {len(draft.inputs)}",
            hint=f"read at most {MOST_INPUTS} lots",
        )
    size = len(msgspec.msgpack.encode(draft))
    if size > most_bytes:
        raise UsageError(
            f"the names of the inputs and sinks of {draft.author} take too much space: {size:,} bytes",
            hint=f"use fewer or shorter names: at most {most_bytes:,} bytes",
        )
    if tx.get(keys.attempt[draft.id]) is not None:
        raise UsageError(f"attempt {draft.id} already exists", hint="use a new id for each attempt")
    row = Open(draft=draft, node=node.id, node_epoch=node.epoch, opened_at=tx.now())
    _write(tx, keys, row)
    tx.set(keys.of[draft.author, draft.lot, draft.generation, draft.id], b"", quiet=True)
    tx.set(keys.open[draft.id], b"", quiet=True)
    return Hold(draft, row.epoch, node)


def read(tx: Tx, keys: PublishKeys, attempt: str) -> AnyAttempt:
    """Read the row of an attempt; raise `AttemptUnknown` if there is none."""
    raw = long_values.get_long(tx, keys.more, keys.attempt[attempt])
    if raw is None:
        raise AttemptUnknown(f"there is no attempt {attempt}")
    return _decoder.decode(raw)


def check(tx: Tx, keys: PublishKeys, hold: Hold) -> Open:
    """Check that the attempt is open and that this node holds it; raise an error if not."""
    nodes.check(tx, keys.cluster, hold.node)
    row = read(tx, keys, hold.draft.id)
    if not isinstance(row, Open):
        raise AttemptEnded(f"attempt {hold.draft.id} has already ended: it is {row.state.value}")
    if (row.epoch, row.node, row.node_epoch) != (hold.epoch, hold.node.id, hold.node.epoch):
        raise LeaseLost(f"attempt {hold.draft.id} was taken over by node {row.node}")
    if row.parked:
        raise LeaseLost(f"attempt {hold.draft.id} was suspended for a later retry")
    return row


def list_parts(
    tx: Tx, keys: PublishKeys, hold: Hold, first: int, names: Sequence[str], *, last: bool
) -> None:
    """Store a page of the list of parts, starting at ordinal `first`, before any part runs (LOT-18)."""
    row = check(tx, keys, hold)
    if row.parts is not None or len(names) > PARTS_PAGE:
        raise UsageError(
            f"cannot add {len(names)} parts to attempt {hold.draft.id}",
            hint=f"add at most {PARTS_PAGE} parts per call, and none after the call with last=True",
        )
    if first == 0:  # remove a list that an earlier holder did not complete
        tx.clear_range(*keys.part.under(hold.draft.id))
    for ordinal, name in enumerate(names, first):
        tx.set(keys.part[hold.draft.id, ordinal], name.encode(), quiet=True)
    if last:
        _write(tx, keys, msgspec.structs.replace(row, parts=first + len(names)))


def parts(tx: Tx, keys: PublishKeys, attempt: str, first: int = 0, limit: int = PARTS_PAGE) -> list[str]:
    """Return a page of an attempt's parts."""
    lo, (_, hi) = keys.part[attempt, first], keys.part.under(attempt)
    return [row.value.decode() for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def attempts_at(
    tx: Tx,
    keys: PublishKeys,
    author: str,
    lot: str,
    generation: int,
    limit: int = 100,
    *,
    newest_first: bool = False,
) -> list[AnyAttempt]:
    """Return the stored attempts at one generation of an author's lot, ordered by id."""
    page = tx.range(*keys.of.under(author, lot, generation), limit=limit, reverse=newest_first)
    return [read(tx, keys, str(keys.of.unpack(row.key)[3])) for row in page]


def adopt(
    tx: Tx, keys: PublishKeys, node: Node, expected: Open, inputs: Sequence[InputLot], code: str
) -> Hold | None:
    """Take over an attempt that a dead node, or this node before it was restarted, left open.

    Returns None if the attempt has changed since `expected` was read, if it has other inputs or other code,
    or if another node may still work on it. If two nodes adopt it at the same time, only one succeeds,
    because the other has read an old epoch. The caller then verifies the attempt's manifests and objects, and
    publishes or abandons the attempt.
    """
    nodes.check(tx, keys.cluster, node)
    row = read(tx, keys, expected.draft.id)
    if not isinstance(row, Open) or row.epoch != expected.epoch:
        return None
    if row.draft.inputs != tuple(inputs) or row.draft.code != code:
        return None
    if row.node != node.id and _alive(tx, keys, row):
        return None
    step(row.state, AttemptEdge.ADOPT)
    adopted = msgspec.structs.replace(
        row, node=node.id, node_epoch=node.epoch, epoch=row.epoch + 1, parked=False
    )
    _write(tx, keys, adopted)
    return Hold(row.draft, adopted.epoch, node)


def park(tx: Tx, keys: PublishKeys, hold: Hold) -> None:
    """Release an attempt that cannot be finished now, so that a retry can continue it (LOT-18).

    Any node may adopt it from now on. The cleaner does not touch it until it is abandoned explicitly.
    """
    row = check(tx, keys, hold)
    step(row.state, AttemptEdge.PARK)
    _write(tx, keys, msgspec.structs.replace(row, parked=True))


def end_published(
    tx: Tx, keys: PublishKeys, hold: Hold, positions: Sequence[int], manifests: Sequence[str] = ()
) -> Published:
    """Change an attempt from open to published, in the transaction that publishes its lots.

    If no manifests are passed, the cleaner does not visit the attempt.
    """
    row = check(tx, keys, hold)
    step(row.state, AttemptEdge.PUBLISH)
    now = tx.now()
    new = Published(
        draft=row.draft,
        positions=tuple(positions),
        at=now,
        manifests=tuple(
            "/" + key.removeprefix(_folder(target)) if key.startswith(_folder(target)) else key
            for target, key in zip(row.draft.targets, manifests, strict=True)
        )
        if manifests
        else (),
        sweep_at=now if manifests else None,
    )
    _write(tx, keys, new)
    tx.clear(keys.open[row.draft.id], quiet=True)
    if manifests:
        tx.set(keys.sweep[now, row.draft.id], b"", quiet=True)
    return new


def abandon(tx: Tx, keys: PublishKeys, hold: Hold, why: str) -> Abandoned:
    """Give up an attempt that this node holds. Its objects may be deleted only after this."""
    return _abandon(tx, keys, check(tx, keys, hold), why)


def abandon_left(
    tx: Tx, keys: PublishKeys, attempt: str, why: str, node: Node | None = None
) -> Abandoned | None:
    """Give up an attempt that no node works on: it is parked, its node is gone, or `node` itself held it.

    Returns None and changes nothing if the attempt has ended, or if another node may still work on it.
    """
    if node is not None:
        nodes.check(tx, keys.cluster, node)
    row = read(tx, keys, attempt)
    if not isinstance(row, Open):
        return None
    if _alive(tx, keys, row) and (node is None or row.node != node.id):
        return None
    return _abandon(tx, keys, row, why)


def abandon_lost(tx: Tx, keys: PublishKeys, attempt: str, grace_us: int) -> Abandoned | None:
    """Give up an attempt if its node is gone and no other node adopted it in time; otherwise return None.

    The cleaner uses this. The transaction conflicts with an adoption and with a publication of the attempt,
    so only one of the three happens.
    """
    row = read(tx, keys, attempt)
    if not isinstance(row, Open) or row.parked or _alive(tx, keys, row):
        return None
    if tx.now() < row.opened_at + grace_us:
        return None
    return _abandon(tx, keys, row, f"its node {row.node} is gone")


def supersede(tx: Tx, keys: PublishKeys, author: str, lot: str, generation: int = 0) -> list[Abandoned]:
    """Give up the attempts that earlier runs of an author left open.

    The caller checks in this transaction that it holds the author's current run. So no other process can
    publish these attempts.
    """
    left = attempts_at(tx, keys, author, lot, generation)
    return [_abandon(tx, keys, row, "another run began") for row in left if isinstance(row, Open)]


def open_ids(tx: Tx, keys: PublishKeys, after: str = "", limit: int = 100) -> list[str]:
    """Return a page of the ids of open attempts."""
    lo, hi = keys.open.all()
    page = tx.range(keys.open[after] + b"\x00" if after else lo, hi, limit=limit, snapshot=True)
    return [str(keys.open.unpack(row.key)[0]) for row in page]


def published_before(
    tx: Tx, keys: PublishKeys, before: int, after: str = "", limit: int = 100
) -> tuple[list[str], str]:
    """Return the attempts of a page that were published before a time and that no sweep will visit again.

    The second value is the last id of the page; empty after the last page. Earlier releases kept the rows of
    such attempts for ever.
    """
    lo, hi = keys.attempt.all()
    page = tx.range(keys.attempt[after] + b"\x00" if after else lo, hi, limit=limit, snapshot=True)
    rows = [_decoder.decode(long_values.complete(tx, keys.more, row.key, row.value)) for row in page]
    old = [row for row in rows if isinstance(row, Published) and row.sweep_at is None and row.at < before]
    return [row.draft.id for row in old], rows[-1].draft.id if len(rows) == limit else ""


def to_sweep(tx: Tx, keys: PublishKeys, limit: int = 100) -> list[Published | Abandoned]:
    """Return the ended attempts that the cleaner should visit now, longest due first."""
    lo, _ = keys.sweep.all()
    page = tx.range(lo, keys.sweep[tx.now() + 1], limit=limit, snapshot=True)
    rows = [read(tx, keys, str(keys.sweep.unpack(row.key)[1])) for row in page]
    return [row for row in rows if not isinstance(row, Open)]


def sweep_again(tx: Tx, keys: PublishKeys, expected: Published | Abandoned, at: int | None) -> bool:
    """Record that an attempt was swept, and when to sweep it again; None for never.

    Return False if another cleaner has swept it since `expected` was read.
    """
    raw = long_values.get_long(tx, keys.more, keys.attempt[expected.draft.id])
    if raw is None or _decoder.decode(raw) != expected:
        return False
    if expected.sweep_at is not None:
        tx.clear(keys.sweep[expected.sweep_at, expected.draft.id], quiet=True)
    _write(tx, keys, msgspec.structs.replace(expected, sweep_at=at, sweeps=expected.sweeps + 1))
    if at is not None:
        tx.set(keys.sweep[at, expected.draft.id], b"", quiet=True)
    return True


def forget(tx: Tx, keys: PublishKeys, attempt: str, limit: int = PARTS_PAGE) -> bool:
    """Delete a page of the rows of an ended attempt; return True if there are more.

    The rows of lots name everything that a published attempt has added, and the data of an abandoned attempt
    is gone. Only a stale holder could still write to the attempt's folder. The cleaner decides how long to
    wait until no such holder is left.
    """
    row = read(tx, keys, attempt)
    if isinstance(row, Open):
        raise UsageError(
            f"attempt {attempt} cannot be deleted: it is {row.state.value}",
            hint="publish or abandon the attempt first",
        )
    lo, hi = keys.part.under(attempt)
    page = tx.range(lo, hi, limit=limit)
    if page:
        tx.clear_range(lo, page[-1].key + b"\x00")
    if len(page) == limit:
        return True
    draft = row.draft
    long_values.clear_long(tx, keys.more, keys.attempt[attempt])
    tx.clear(keys.of[draft.author, draft.lot, draft.generation, draft.id], quiet=True)
    if row.sweep_at is not None:
        tx.clear(keys.sweep[row.sweep_at, attempt], quiet=True)
    return False


def _abandon(tx: Tx, keys: PublishKeys, row: Open, why: str) -> Abandoned:
    step(row.state, AttemptEdge.ABANDON)
    now = tx.now()
    new = Abandoned(draft=row.draft, at=now, why=why[:500], sweep_at=now)
    _write(tx, keys, new)
    tx.clear(keys.open[row.draft.id], quiet=True)
    tx.set(keys.sweep[now, row.draft.id], b"", quiet=True)
    return new


def _folder(target: Target) -> str:
    return layout.lot_prefix(*target.dataset.parts, target.lot)


def _alive(tx: Tx, keys: PublishKeys, row: Open) -> bool:
    if row.parked:
        return False
    entry = nodes.read(tx, keys.cluster, row.node)
    return entry is not None and entry.epoch == row.node_epoch and entry.expires_at > tx.now()


def _write(tx: Tx, keys: PublishKeys, row: AnyAttempt) -> None:
    long_values.set_long(tx, keys.more, keys.attempt[row.draft.id], msgspec.msgpack.encode(row))
