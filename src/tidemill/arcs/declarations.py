"""Declarations of arcs: what they read and write, and how they run (LOT-26, LOT-29).

Every process that imports the pipeline makes the same declarations. The code and the settings of an arc can
change; new lots then use the new code. The tables that an arc reads cannot change. The store keeps a copy of
the declaration for reports, and for processes that do not have the user's code.
"""

from typing import Literal

import msgspec

from tidemill.arcs.keys import ArcKeys
from tidemill.errors import ArcUnknown, BadArc
from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.publish.attempts import MOST_TARGETS
from tidemill.publish.parts import PartSink
from tidemill.store import Tx
from tidemill.triggers.terms import AfterGrace

_BOUNDS = {"parts": (1, 100), "retries": (0, 1000), "max_concurrent": (1, 1000)}

Changes = Literal["", "linear", "raw"]


def arc_id(pipeline: str, arc: str) -> str:
    """Return the id of an arc. Its row, its subscription and its attempts use this id."""
    return f"arc:{pipeline}/{arc}"


class ArcSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of an arc.

    - reads: one dataset, or several; a run reads the same interval of each.
    - sinks: the datasets it writes. An output lot has the id of the input lot.
    - parts: the maximum number of parts that a lot is split into, by the partition values of its objects.
    - retries: how often a part is retried before it counts as failed.
    - max_concurrent: how many of its lots may run at the same time, in the whole cluster.
    - code: the digest of the function. A part is reused only if the same code made it.
    - changes: how it treats inserted and deleted rows (LOT-41).
    - enabled: whether it runs when it is first declared; after that, users pause and resume it.
    - grace_us: how long a lot waits for the last of several inputs after the first has closed it (LOT-28).
    - after_grace: what happens to the lot after that time.
    - on_empty: what to do with an input lot without rows: publish an empty lot without running the function,
      or run the function.
    """

    pipeline: str
    name: str
    reads: tuple[DatasetId, ...]
    sinks: tuple[PartSink, ...]
    parts: int = 8
    retries: int = 0
    max_concurrent: int = 1
    code: str = ""
    changes: Changes = ""
    on_empty: Literal["publish", "run"] = "publish"
    version: str = "1"
    enabled: bool = True
    grace_us: int = 0
    after_grace: AfterGrace = AfterGrace.WAIT
    options: dict[str, str] = {}

    def __post_init__(self) -> None:
        layout.quote(self.pipeline)  # raises BadName
        layout.quote(self.name)
        if not self.reads or len(set(self.reads)) < len(self.reads):
            raise BadArc(
                f"arc {self.name!r} has an invalid list of inputs: {_names(self.reads)}",
                hint="declare at least one table, and do not repeat any",
            )
        sinks = [sink.dataset for sink in self.sinks]
        if not 0 < len(sinks) <= MOST_TARGETS or len(set(sinks)) < len(sinks):
            raise BadArc(
                f"arc {self.name!r} has an invalid list of sinks: {_names(sinks)}",
                hint=f"declare 1 to {MOST_TARGETS} sinks, and do not repeat any",
            )
        if set(sinks) & set(self.reads):
            raise BadArc(
                f"arc {self.name!r} reads and writes the same dataset", hint="write to a different dataset"
            )
        if self.grace_us < 0:
            raise BadArc(
                f"arc {self.name!r} has a negative grace period: {self.grace_us / 1_000_000:g} s",
                hint="use a grace period of 0 s or more",
            )
        if self.after_grace is not AfterGrace.WAIT and not self.has_barrier:
            raise BadArc(
                f"arc {self.name!r} has a grace period, but reads only {_names(self.reads)}",
                hint="omit grace=, or read several tables",
            )
        for field, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, field) <= most:
                raise BadArc(
                    f"arc {self.name!r} has an invalid {field}={getattr(self, field)}",
                    hint=f"use a value from {least} to {most}",
                )

    @property
    def has_barrier(self) -> bool:
        """Return whether its lots wait until several inputs have closed them."""
        return len(self.reads) > 1

    @property
    def id(self) -> str:
        """The id of the arc, which its row, its subscription and its attempts use."""
        return arc_id(self.pipeline, self.name)


_decoder = msgspec.msgpack.Decoder(ArcSpec)


def declare(tx: Tx, keys: ArcKeys, spec: ArcSpec) -> bool:
    """Store the declaration of an arc; return False if the store already has an equal one."""
    key, raw = keys.arc[spec.id], msgspec.msgpack.encode(spec)
    if tx.get(key) == raw:
        return False
    tx.set(key, raw)
    return True


def read(tx: Tx, keys: ArcKeys, arc: str) -> ArcSpec:
    """Read the declaration of an arc; raise `ArcUnknown` if there is none."""
    raw = tx.get(keys.arc[arc])
    if raw is None:
        raise ArcUnknown(f"there is no arc {arc}")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: ArcKeys, after: str = "", limit: int = 100) -> list[ArcSpec]:
    """Return a page of the declared arcs, ordered by id."""
    lo, hi = keys.arc.all()
    page = tx.range(keys.arc[after] + b"\x00" if after else lo, hi, limit=limit, snapshot=True)
    return [_decoder.decode(row.value) for row in page]


def _names(datasets: "tuple[DatasetId, ...] | list[DatasetId]") -> str:
    return ", ".join(map(str, datasets)) or "nothing"
