"""The transactional, ordered key/value store through which all nodes coordinate."""

from tidemill.store.keys import Space, Versionstamp, pack, unpack
from tidemill.store.open import open_store
from tidemill.store.port import LIMITS, Limits, Mode, Row, Store, Swap, Tx, Watch

__all__ = [
    "LIMITS",
    "Limits",
    "Mode",
    "Row",
    "Space",
    "Store",
    "Swap",
    "Tx",
    "Versionstamp",
    "Watch",
    "open_store",
    "pack",
    "unpack",
]
