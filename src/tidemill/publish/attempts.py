"""Attempts: a row in the store before the first object is written (LOT-17, LOT-20).

The row says what the attempt is to become, from which generations of its inputs and by which code. It is
held by a node, under an epoch that grows when another node adopts it. Whoever acts on it shows its `Hold`:
after an adoption the old one is refused with `LeaseLost`; after the attempt was published or abandoned, with
`AttemptEnded`. So a zombie publishes nothing, whatever it has written, and an abandoned attempt never comes
back: its objects may be deleted from the moment the abandonment is committed, and not before.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptEnded, AttemptUnknown, LeaseLost, LotUnknown, UsageError
from tidemill.lots import layout, lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.publish.keys import PublishKeys
from tidemill.publish.states import AttemptEdge, AttemptState, step
from tidemill.store import Tx

MOST_TARGETS = 100
MOST_INPUTS = 300
MOST_BYTES = 48 * 1024
"""Of a draft: with what is known at its end the row still fits one value of the store."""

PARTS_PAGE = 400


class Target(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What an attempt is to become: one generation of a lot of one sink.

    An `optional` one may be left out when the attempt is published: a quarantine that nothing went to.
    """

    dataset: DatasetId
    lot: str
    generation: int = 0
    optional: bool = False

    @property
    def place(self) -> tuple[DatasetId, str, int]:
        """Which generation of which lot: two targets of one attempt never share it."""
        return self.dataset, self.lot, self.generation


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What never changes of an attempt.

    - author: who makes it, an arc, a source, the appends of a dataset; `lot` and `generation` are its own.
    - inputs: what it reads, with the generations that were current when it was opened (LOT-30).
    - code: the digest of the code that makes it.
    """

    id: str
    author: str
    lot: str
    generation: int = 0
    targets: tuple[Target, ...]
    inputs: tuple[InputLot, ...] = ()
    code: str = ""


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Somebody works on it, or did."""

    draft: Draft
    node: str
    node_epoch: int
    epoch: int = 1  # grows with every adoption
    opened_at: int  # store time, µs
    parts: int | None = None  # how many, once all of them are listed (LOT-18)
    parked: bool = False  # nobody works on it; it is kept for a retry to go on with

    @property
    def state(self) -> AttemptState:
        return AttemptState.OPEN


class Published(msgspec.Struct, frozen=True, kw_only=True, tag="published"):
    """It is the lot, of every sink.

    `positions` and `manifests` are in the order of the draft's targets; 0 and an empty name for an optional
    one that was left out. What the manifests do not list is left over, and removed by the cleaner.
    """

    draft: Draft
    positions: tuple[int, ...]
    at: int
    manifests: tuple[str, ...] = ()  # without what their lots' folders begin with; see `manifest_keys`
    sweep_at: int | None = None
    sweeps: int = 0

    @property
    def state(self) -> AttemptState:
        return AttemptState.PUBLISHED

    @property
    def manifest_keys(self) -> tuple[str, ...]:
        """The manifests' names in full."""
        return tuple(
            _folder(target) + name[1:] if name.startswith("/") else name
            for target, name in zip(self.draft.targets, self.manifests, strict=True)
        )


class Abandoned(msgspec.Struct, frozen=True, kw_only=True, tag="abandoned"):
    """It never will be a lot; what it wrote may be deleted."""

    draft: Draft
    at: int
    why: str = ""
    sweep_at: int | None = None  # when the cleaner is to look for what it wrote
    sweeps: int = 0

    @property
    def state(self) -> AttemptState:
        return AttemptState.ABANDONED


AnyAttempt = Open | Published | Abandoned
_decoder: msgspec.msgpack.Decoder[AnyAttempt] = msgspec.msgpack.Decoder(Open | Published | Abandoned)


class Hold(msgspec.Struct, frozen=True):
    """The right to go on with an open attempt."""

    draft: Draft
    epoch: int
    node: Node


def resolved(tx: Tx, keys: PublishKeys, wanted: Sequence[tuple[DatasetId, str]]) -> tuple[InputLot, ...]:
    """Lots with their current generations, to open an attempt with in the same transaction."""
    found = []
    for dataset, lot in wanted:
        row = lots.current(tx, keys.lots, dataset, lot)
        if row is None:
            raise LotUnknown(f"there is no lot {lot} of {dataset}")
        found.append(
            InputLot(dataset=dataset.name, version=dataset.version, lot=lot, generation=row.generation)
        )
    return tuple(found)


def begin(tx: Tx, keys: PublishKeys, node: Node, draft: Draft) -> Hold:
    """Enter an attempt, before anything of it is written."""
    nodes.check(tx, keys.cluster, node)
    places = {target.place for target in draft.targets}
    if not 0 < len(draft.targets) <= MOST_TARGETS or len(places) < len(draft.targets):
        raise UsageError(
            f"{draft.author} has {len(draft.targets)} sinks", hint=f"1 to {MOST_TARGETS}, each once"
        )
    if all(target.optional for target in draft.targets):
        raise UsageError(f"{draft.author} may leave out every sink", hint="one of them is no option")
    if len(draft.inputs) > MOST_INPUTS:
        raise UsageError(
            f"{draft.author} reads {len(draft.inputs)} lots at once", hint=f"{MOST_INPUTS} lots at most"
        )
    size = len(msgspec.msgpack.encode(draft))
    if size > MOST_BYTES:
        raise UsageError(
            f"what {draft.author} reads and writes takes {size:,} bytes to name",
            hint=f"{MOST_BYTES:,} at most: fewer sinks or inputs, or shorter names",
        )
    if tx.get(keys.attempt[draft.id]) is not None:
        raise UsageError(f"attempt {draft.id} is there already", hint="each attempt has an id of its own")
    row = Open(draft=draft, node=node.id, node_epoch=node.epoch, opened_at=tx.now())
    tx.set(keys.attempt[draft.id], msgspec.msgpack.encode(row), quiet=True)
    tx.set(keys.of[draft.author, draft.lot, draft.generation, draft.id], b"", quiet=True)
    tx.set(keys.open[draft.id], b"", quiet=True)
    return Hold(draft, row.epoch, node)


def read(tx: Tx, keys: PublishKeys, attempt: str) -> AnyAttempt:
    """An attempt's row; `AttemptUnknown` when there is none."""
    raw = tx.get(keys.attempt[attempt])
    if raw is None:
        raise AttemptUnknown(f"there is no attempt {attempt}")
    return _decoder.decode(raw)


def check(tx: Tx, keys: PublishKeys, hold: Hold) -> Open:
    """The fence: the attempt is open and ours at this moment."""
    nodes.check(tx, keys.cluster, hold.node)
    row = read(tx, keys, hold.draft.id)
    if not isinstance(row, Open):
        raise AttemptEnded(f"attempt {hold.draft.id} is {row.state.value}")
    if (row.epoch, row.node, row.node_epoch) != (hold.epoch, hold.node.id, hold.node.epoch):
        raise LeaseLost(f"attempt {hold.draft.id} was adopted by {row.node}")
    if row.parked:
        raise LeaseLost(f"attempt {hold.draft.id} was let go")
    return row


def list_parts(
    tx: Tx, keys: PublishKeys, hold: Hold, first: int, names: Sequence[str], *, last: bool
) -> None:
    """Store a page of the list of parts, from ordinal `first` on, before the first of them runs (LOT-18)."""
    row = check(tx, keys, hold)
    if row.parts is not None or len(names) > PARTS_PAGE:
        raise UsageError(
            f"a page of {len(names)} parts of attempt {hold.draft.id}",
            hint=f"pages of {PARTS_PAGE} at most, and none behind the last",
        )
    if first == 0:  # a list that an earlier holder did not bring to its end
        tx.clear_range(*keys.part.under(hold.draft.id))
    for ordinal, name in enumerate(names, first):
        tx.set(keys.part[hold.draft.id, ordinal], name.encode(), quiet=True)
    if last:
        _write(tx, keys, msgspec.structs.replace(row, parts=first + len(names)))


def parts(tx: Tx, keys: PublishKeys, attempt: str, first: int = 0, limit: int = PARTS_PAGE) -> list[str]:
    """A page of an attempt's parts."""
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
    """The attempts at one thing that are not forgotten, by id."""
    found = tx.range(*keys.of.under(author, lot, generation), limit=limit, reverse=newest_first)
    return [read(tx, keys, str(keys.of.unpack(row.key)[3])) for row in found]


def adopt(
    tx: Tx, keys: PublishKeys, node: Node, seen: Open, inputs: Sequence[InputLot], code: str
) -> Hold | None:
    """Go on with an attempt that a dead node, or an earlier life of this one, left open.

    None unless it is still as seen, its inputs and code are the ones we would use, and nobody else may still
    work on it. Of two adopters one wins: the other one has seen an old epoch. The caller then verifies the
    attempt's manifests and objects, and publishes or abandons it.
    """
    nodes.check(tx, keys.cluster, node)
    row = read(tx, keys, seen.draft.id)
    if not isinstance(row, Open) or row.epoch != seen.epoch:
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
    """Let go of an attempt that is ours and cannot be finished now, for a retry to go on with (LOT-18).

    Anybody may adopt it from now on, and the cleaner leaves it alone until it is abandoned on purpose.
    """
    row = check(tx, keys, hold)
    step(row.state, AttemptEdge.PARK)
    _write(tx, keys, msgspec.structs.replace(row, parked=True))


def end_published(
    tx: Tx, keys: PublishKeys, hold: Hold, positions: Sequence[int], manifests: Sequence[str] = ()
) -> Published:
    """Open -> published; called by `publish` alone, in the transaction that makes it the lot.

    Without manifests (a view's step, which names its files itself) the cleaner does not look after it.
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
    """Give up an attempt that is ours. Only then may anything of it be deleted."""
    return _abandon(tx, keys, check(tx, keys, hold), why)


def abandon_left(
    tx: Tx, keys: PublishKeys, attempt: str, why: str, node: Node | None = None
) -> Abandoned | None:
    """Give up an attempt that nobody works on: parked, of a node that is gone, or of `node`'s earlier run.

    None, and nothing changed, when it has ended or somebody else may still work on it.
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
    """Give up an attempt whose node is gone and that nobody adopted within a grace; None if that is not so.

    The cleaner's step: it conflicts with an adoption and with a publication, so that one of them happens.
    """
    row = read(tx, keys, attempt)
    if not isinstance(row, Open) or row.parked or _alive(tx, keys, row):
        return None
    if tx.now() < row.opened_at + grace_us:
        return None
    return _abandon(tx, keys, row, f"its node {row.node} is gone")


def supersede(tx: Tx, keys: PublishKeys, author: str, lot: str, generation: int = 0) -> list[Abandoned]:
    """Give up what earlier runs of an author left open at one thing. The caller shows in this transaction
    that the author's run is its own: then whoever worked on these can publish them no more.
    """
    left = attempts_at(tx, keys, author, lot, generation)
    return [_abandon(tx, keys, row, "another run began") for row in left if isinstance(row, Open)]


def open_ids(tx: Tx, keys: PublishKeys, after: str = "", limit: int = 100) -> list[str]:
    """A page of the open attempts."""
    lo, hi = keys.open.all()
    found = tx.range(keys.open[after] + b"\x00" if after else lo, hi, limit=limit, snapshot=True)
    return [str(keys.open.unpack(row.key)[0]) for row in found]


def to_sweep(tx: Tx, keys: PublishKeys, limit: int = 100) -> list[Published | Abandoned]:
    """Ended attempts that the cleaner is to look after now, longest due first."""
    lo, _ = keys.sweep.all()
    found = tx.range(lo, keys.sweep[tx.now() + 1], limit=limit, snapshot=True)
    rows = [read(tx, keys, str(keys.sweep.unpack(row.key)[1])) for row in found]
    return [row for row in rows if not isinstance(row, Open)]


def sweep_again(tx: Tx, keys: PublishKeys, seen: Published | Abandoned, at: int | None) -> bool:
    """It was swept: look again at `at`, or never. False when another cleaner was faster."""
    raw = tx.get(keys.attempt[seen.draft.id])
    if raw is None or _decoder.decode(raw) != seen:
        return False
    if seen.sweep_at is not None:
        tx.clear(keys.sweep[seen.sweep_at, seen.draft.id], quiet=True)
    _write(tx, keys, msgspec.structs.replace(seen, sweep_at=at, sweeps=seen.sweeps + 1))
    if at is not None:
        tx.set(keys.sweep[at, seen.draft.id], b"", quiet=True)
    return True


def forget(tx: Tx, keys: PublishKeys, attempt: str, limit: int = PARTS_PAGE) -> bool:
    """Drop the row of an abandoned attempt whose data is gone, a page at a time; True when there is more.

    Another writer of its folder can only be a zombie: whoever removes the data decides how long to wait.
    """
    row = read(tx, keys, attempt)
    if not isinstance(row, Abandoned):
        raise UsageError(
            f"attempt {attempt} is {row.state.value}", hint="only abandoned attempts are forgotten"
        )
    lo, hi = keys.part.under(attempt)
    found = tx.range(lo, hi, limit=limit)
    if found:
        tx.clear_range(lo, found[-1].key + b"\x00")
    if len(found) == limit:
        return True
    draft = row.draft
    tx.clear(keys.attempt[attempt], quiet=True)
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
    tx.set(keys.attempt[row.draft.id], msgspec.msgpack.encode(row), quiet=True)
