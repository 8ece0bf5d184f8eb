"""The rows of arcs' lots: one per (arc, lot, generation), a class for each state; and their indexes.

`write` is the one place that changes a row, along the edges of the table in `states`.
"""

from collections.abc import Sequence

import msgspec

from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.states import ArcEdge, ArcState, step
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.lots.manifest import InputLot
from tidemill.store import Tx


class RunningLot(msgspec.Struct, frozen=True, kw_only=True, tag="running"):
    """A node works on it, as long as the node's epoch lasts."""

    attempt: str
    node: str
    node_epoch: int
    since: int  # store time, µs
    tries: int = 1
    batch: str = ""  # of the replay or backfill that it belongs to

    @property
    def state(self) -> ArcState:
        return ArcState.RUNNING


class CompleteLot(msgspec.Struct, frozen=True, kw_only=True, tag="complete"):
    """It is published, from these generations of its inputs."""

    attempt: str
    inputs: tuple[InputLot, ...]
    at: int
    tries: int

    @property
    def state(self) -> ArcState:
        return ArcState.COMPLETE


class PartialLot(msgspec.Struct, frozen=True, kw_only=True, tag="partial"):
    """Parts of it failed; its attempt is kept for a retry."""

    attempt: str
    failed: tuple[str, ...]
    error: str
    at: int
    tries: int

    @property
    def state(self) -> ArcState:
        return ArcState.PARTIAL


class MissingLot(msgspec.Struct, frozen=True, kw_only=True, tag="missing", omit_defaults=True):
    """There is nothing of it; `skipped`: by its arc's own policy, so that only an order makes it."""

    error: str
    at: int
    tries: int
    skipped: bool = False

    @property
    def state(self) -> ArcState:
        return ArcState.MISSING


AnyLot = RunningLot | CompleteLot | PartialLot | MissingLot
_decoder: msgspec.msgpack.Decoder[AnyLot] = msgspec.msgpack.Decoder(
    RunningLot | CompleteLot | PartialLot | MissingLot
)


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """Who works on a lot, and for which batch: a row of the index of what runs."""

    node: str
    node_epoch: int
    batch: str = ""


_holders = msgspec.msgpack.Decoder(Holder)


def decode(raw: bytes) -> AnyLot:
    """A row from its stored bytes."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: ArcKeys, arc: str, lot: str, generation: int) -> AnyLot | None:
    """One generation's row; None before it began."""
    raw = tx.get(keys.lot[arc, lot, generation])
    return None if raw is None else _decoder.decode(raw)


def newest(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> tuple[int, AnyLot] | None:
    """The newest generation that ever began."""
    found = tx.range(*keys.lot.under(arc, lot), limit=1, reverse=True)
    if not found:
        return None
    generation = keys.lot.unpack(found[0].key)[2]
    assert isinstance(generation, int)
    return generation, _decoder.decode(found[0].value)


def decode_holder(raw: bytes) -> Holder:
    """A row of the index of what runs, from its stored bytes."""
    return _holders.decode(raw)


def is_held(tx: Tx, keys: ArcKeys, row: RunningLot) -> bool:
    """Does the node that works on it still have the epoch in which it began?"""
    return lives(tx, keys, row.node, row.node_epoch)


def lives(tx: Tx, keys: ArcKeys, node: str, epoch: int) -> bool:
    """Is this epoch of a node not over?"""
    entry = nodes.read(tx, keys.publish.cluster, node)
    return entry is not None and entry.epoch == epoch and entry.expires_at > tx.now()


def is_of(row: RunningLot, node: Node) -> bool:
    """Is it this very life of the node that works on it, or did?"""
    return (row.node, row.node_epoch) == (node.id, node.epoch)


def write(
    tx: Tx,
    keys: ArcKeys,
    arc: str,
    lot: str,
    generation: int,
    old: AnyLot | None,
    edges: Sequence[ArcEdge],
    new: AnyLot,
) -> AnyLot:
    """The one place that writes rows, along edges of the table, and keeps the indexes in step with them."""
    state = ArcState.NONE if old is None else old.state
    for edge in edges:
        state = step(state, edge)
    assert state is new.state
    place = (arc, lot, generation)
    tx.set(keys.lot[place], msgspec.msgpack.encode(new), quiet=True)
    if isinstance(new, RunningLot):
        holder = Holder(new.node, new.node_epoch, new.batch)
        tx.set(keys.running[place], msgspec.msgpack.encode(holder), quiet=True)
    elif isinstance(old, RunningLot):
        tx.clear(keys.running[place], quiet=True)
    if isinstance(new, PartialLot | MissingLot):
        tx.set(keys.trouble[place], new.state.value.encode(), quiet=True)
    elif isinstance(old, PartialLot | MissingLot):
        tx.clear(keys.trouble[place], quiet=True)
    if not isinstance(old, RunningLot):  # it begins: what was asked for is done with, however it ends
        tx.clear(keys.request[place], quiet=True)
    return new
