"""The configuration of the cluster, stored so that any node can start the cluster again (CLU-17)."""

import msgspec

from tidemill.cluster.keys import ClusterKeys
from tidemill.store import Tx

Value = bool | int | float | str | bytes | list[str] | dict[str, str] | None


def put(tx: Tx, keys: ClusterKeys, name: str, value: Value) -> None:
    """Set one entry."""
    tx.set(keys.config["user", name], msgspec.msgpack.encode(value))


def get(tx: Tx, keys: ClusterKeys, name: str) -> Value:
    """Return one entry; None if it was never set."""
    raw = tx.get(keys.config["user", name])
    return None if raw is None else _decode(raw)


def read_all(tx: Tx, keys: ClusterKeys) -> dict[str, Value]:
    """Return all entries by name."""
    space = keys.config.space("user")
    return {str(space.unpack(row.key)[0]): _decode(row.value) for row in tx.range(*space.all())}


def _decode(raw: bytes) -> Value:
    # untyped: msgspec cannot tell str from bytes in a union, msgpack itself can
    value: Value = msgspec.msgpack.decode(raw)
    return value
