"""A node's inbox: commands that others leave for it in the store, in the order of their commits.

A command is a hint to hurry, never the truth: that a task must end is in its row (`Claimed.cancel`), that a
result is not wanted in the absence of its copy's record. A command that is lost with its node loses nothing.
Watch `keys.inbox[node]` to be told of new ones.
"""

import msgspec

from tidemill.futures.protocol.keys import FutureKeys
from tidemill.store import Tx


class EndTask(msgspec.Struct, frozen=True, tag="end"):
    """End a task: ask it to stop, kill it after a grace, then `finish.cancelled`."""

    id: bytes
    epoch: int
    why: str  # "cancelled" or "deadline"


class FreeSegment(msgspec.Struct, frozen=True, tag="free"):
    """Delete a result's segment."""

    id: bytes
    name: str


Command = EndTask | FreeSegment

_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def post(tx: Tx, keys: FutureKeys, node: str, command: Command) -> None:
    """Leave a command for a node."""
    tx.set_versioned(keys.inbox[node], msgspec.msgpack.encode(command))


def take(tx: Tx, keys: FutureKeys, node: str, limit: int = 100) -> list[Command]:
    """The node itself takes its commands, in a `take` transaction; those it cannot follow it may forget."""
    prefix = keys.inbox[node]
    return [_decoder.decode(row.value) for row in tx.take(prefix + b"\x00", prefix + b"\xff", limit)]


def clear(tx: Tx, keys: FutureKeys, node: str) -> None:
    """Nobody will read these any more."""
    prefix = keys.inbox[node]
    tx.clear_range(prefix + b"\x00", prefix + b"\xff")
