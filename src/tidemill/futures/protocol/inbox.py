"""The inbox of a node: commands that other processes write for the node, in the order of their commits.

A command only makes the node act sooner, because other rows say the same: if a task must end, its row says so
(`Claimed.cancel`), and if a copy is no longer needed, its record is gone. So if a command is lost with its
node, no harm is done. A node watches `keys.inbox[node]` for new commands.
"""

import msgspec

from tidemill.futures.protocol.keys import FutureKeys
from tidemill.store import Tx


class EndTask(msgspec.Struct, frozen=True, tag="end"):
    """End a task: notify it, kill it after a grace period, then call `finish.cancelled`."""

    id: bytes
    epoch: int
    why: str  # "cancelled" or "deadline"


class FreeSegment(msgspec.Struct, frozen=True, tag="free"):
    """Delete the segment of a result."""

    id: bytes
    name: str


Command = EndTask | FreeSegment

_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def post(tx: Tx, keys: FutureKeys, node: str, command: Command) -> None:
    """Write a command for a node."""
    tx.set_versioned(keys.inbox[node], msgspec.msgpack.encode(command))


def take(tx: Tx, keys: FutureKeys, node: str, limit: int = 100) -> list[Command]:
    """Remove and return the commands of a node, in a `take` transaction. The node may ignore stale ones."""
    prefix = keys.inbox[node]
    return [_decoder.decode(row.value) for row in tx.take(prefix + b"\x00", prefix + b"\xff", limit)]


def clear(tx: Tx, keys: FutureKeys, node: str) -> None:
    """Delete the commands of a dead node."""
    prefix = keys.inbox[node]
    tx.clear_range(prefix + b"\x00", prefix + b"\xff")
