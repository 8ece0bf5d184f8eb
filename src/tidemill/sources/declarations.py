"""What is declared of a source: plain data, the same in every process that has the pipeline."""

import hashlib

import msgspec

from tidemill.errors import BadSource
from tidemill.lots.checks import QUARANTINE_SCHEMA, Check, quarantine_of
from tidemill.lots.datasets import Drift, Kind
from tidemill.lots.keys import DatasetId
from tidemill.spark.formats import Reading

__all__ = [
    "DEFAULT_POLICY",
    "MOST_FILES",
    "MOST_STRETCHES",
    "QUARANTINE_SCHEMA",
    "Policy",
    "SourceSpec",
    "quarantine_of",
    "source_id",
]

MOST_STRETCHES = 64
MOST_FILES = 500
"""Of one window: its rows fit one transaction (LOT-43)."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When files are taken, and how many at once.

    - stretches: into how many the listing is cut for nodes to share; 1 for small ones, which one node lists.
    """

    settle_s: float = 0.0
    on_change: str = "warn"
    max_files: int = MOST_FILES
    max_bytes: int = 1 << 30
    stretches: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.settle_s <= 86_400:
            raise BadSource(f"settle_s={self.settle_s}", hint="seconds, 0 to a day")
        if self.on_change not in ("warn", "take"):
            raise BadSource(f"on_change={self.on_change!r}", hint="'warn' or 'take'")
        if not 1 <= self.max_files <= MOST_FILES:
            raise BadSource(f"max_files={self.max_files}", hint=f"1 to {MOST_FILES} files in one lot")
        if self.max_bytes < 1:
            raise BadSource(f"max_bytes={self.max_bytes}", hint="a number of bytes")
        if not 1 <= self.stretches <= MOST_STRETCHES:
            raise BadSource(
                f"stretches={self.stretches}", hint=f"1 to {MOST_STRETCHES} stretches that nodes share"
            )


DEFAULT_POLICY = Policy()


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One source of one dataset.

    - id: `source:{pipeline}/{dataset}`, the author of its attempts.
    - schema, kind, key: of the dataset, as declared. Records for one with a key are upserts, in the order of
      windows, paths and lines; so its windows are published one after the other.
    - quarantine: where records go that do not fit, and rows that checks take out; its lots have the ids of
      the dataset's.
    - checks: what is expected of the rows of a window (LOT-33).
    - drift: what becomes of columns that are not declared (LOT-34). Where they are added, a task is told the
      columns of its moment, and publishing a window adds those that it found.
    """

    id: str
    pipeline: str
    dataset: DatasetId
    schema: str
    kind: Kind = Kind.ROWS
    key: tuple[str, ...] = ()
    reading: Reading
    policy: Policy = DEFAULT_POLICY
    partition_by: tuple[str, ...] = ()
    quarantine: DatasetId
    retries: int = 3
    checks: tuple[Check, ...] = ()
    drift: Drift = Drift.FREEZE

    @property
    def code(self) -> str:
        """The digest of everything that decides what becomes of a file."""
        parts = (self.schema, self.kind, self.key, self.reading, self.partition_by, self.quarantine)
        if self.checks or self.drift is not Drift.FREEZE:
            parts = (*parts, self.checks, self.drift)  # type: ignore[assignment]
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]


def source_id(pipeline: str, dataset: str) -> str:
    """Who the author of a source's attempts is."""
    return f"source:{pipeline}/{dataset}"
