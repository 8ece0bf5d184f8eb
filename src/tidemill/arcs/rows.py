"""Rows of arcs' lots and their indexes: one row for each (arc, lot, generation), one class for each state.

Only `write` changes a row. It allows only the transitions of the table in `states`.
"""

from collections.abc import Sequence

import msgspec

from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.states import ArcEdge, ArcState, step
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import IllegalTransition
from tidemill.lots.manifest import InputLot
from tidemill.store import Tx


class RunningLot(msgspec.Struct, frozen=True, kw_only=True, tag="running"):
    """A node works on the lot, as long as the node's epoch lasts."""

    attempt: str
    node: str
    node_epoch: int
    since: int  # store time, µs
    tries: int = 1
    batch: str = ""  # the replay or backfill that it belongs to

    @property
    def state(self) -> ArcState:
        return ArcState.RUNNING


class CompleteLot(msgspec.Struct, frozen=True, kw_only=True, tag="complete"):
    """The lot is published, from these generations of its inputs."""

    attempt: str
    inputs: tuple[InputLot, ...]
    at: int
    tries: int

    @property
    def state(self) -> ArcState:
        return ArcState.COMPLETE


class PartialLot(msgspec.Struct, frozen=True, kw_only=True, tag="partial"):
    """Parts of the lot failed; its attempt is kept for a retry."""

    attempt: str
    failed: tuple[str, ...]
    error: str
    at: int
    tries: int

    @property
    def state(self) -> ArcState:
        return ArcState.PARTIAL


class MissingLot(msgspec.Struct, frozen=True, kw_only=True, tag="missing", omit_defaults=True):
    """Nothing of the lot exists. If `skipped` is set, the arc's policy gave up the lot.

    A skipped lot is made only on request.
    """

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
    """A row of the index of running lots: the node that works on a lot, and the batch of the lot."""

    node: str
    node_epoch: int
    batch: str = ""


_holders = msgspec.msgpack.Decoder(Holder)


def decode(raw: bytes) -> AnyLot:
    """Decode a stored row."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: ArcKeys, arc: str, lot: str, generation: int) -> AnyLot | None:
    """Read the row of a generation; None if the generation has not begun."""
    raw = tx.get(keys.lot[arc, lot, generation])
    return None if raw is None else _decoder.decode(raw)


def newest(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> tuple[int, AnyLot] | None:
    """Return the newest generation of a lot and its row; None if the lot never began."""
    page = tx.range(*keys.lot.under(arc, lot), limit=1, reverse=True)
    if not page:
        return None
    generation = keys.lot.unpack(page[0].key)[2]
    assert isinstance(generation, int)
    return generation, _decoder.decode(page[0].value)


def decode_holder(raw: bytes) -> Holder:
    """Decode a row of the index of running lots."""
    return _holders.decode(raw)


def is_held(tx: Tx, keys: ArcKeys, row: RunningLot) -> bool:
    """Return whether the node that works on the lot is still alive under the epoch in which it began."""
    return is_alive(tx, keys, row.node, row.node_epoch)


def is_alive(tx: Tx, keys: ArcKeys, node: str, epoch: int) -> bool:
    """Return whether a node is still alive under this epoch."""
    entry = nodes.read(tx, keys.publish.cluster, node)
    return entry is not None and entry.epoch == epoch and entry.expires_at > tx.now()


def belongs_to(row: RunningLot, node: Node) -> bool:
    """Return whether the row names this node in this epoch."""
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
    """Write a row and update the indexes, if the state machine in `states` has these transitions."""
    state = ArcState.NONE if old is None else old.state
    for edge in edges:
        state = step(state, edge)
    if new.state is not state:
        raise IllegalTransition(
            f"the transitions {edges} end in state {state.value}, but the new row is in state"
            f" {new.state.value}"
        )
    key = (arc, lot, generation)
    tx.set(keys.lot[key], msgspec.msgpack.encode(new), quiet=True)
    if isinstance(new, RunningLot):
        holder = Holder(new.node, new.node_epoch, new.batch)
        tx.set(keys.running[key], msgspec.msgpack.encode(holder), quiet=True)
    elif isinstance(old, RunningLot):
        tx.clear(keys.running[key], quiet=True)
    if isinstance(new, PartialLot | MissingLot):
        tx.set(keys.trouble[key], new.state.value.encode(), quiet=True)
    elif isinstance(old, PartialLot | MissingLot):
        tx.clear(keys.trouble[key], quiet=True)
    if not isinstance(old, RunningLot):  # it begins, so the request for it is fulfilled, however it ends
        tx.clear(keys.request[key], quiet=True)
    return new
