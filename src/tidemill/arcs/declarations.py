"""Arcs as they are declared: what they read, what they write, and how they may run (LOT-26, LOT-29).

Every process that imports the pipeline makes the same declaration. Other than a dataset's it may change: its
code does, and what is made from then on is made by the new code. The row in the store is there for reports,
and for processes that have not the user's code.
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
    """The name of an arc in the store, of its subscription, and of the author of its attempts."""
    return f"arc:{pipeline}/{arc}"


class ArcSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An arc.

    - reads: one dataset; or several, of which each run takes the same interval.
    - sinks: where it writes; the lot of each has the id of the input's.
    - parts: how many a lot is split into at most, by the partition values of its objects.
    - retries: of a part, by itself, before it counts as failed.
    - max_concurrent: how many of its lots may be worked on at once, in the whole cluster.
    - code: the digest of the function: a part is reused only if it was made by the same.
    - changes: how it treats rows that come and go (LOT-41).
    - enabled: whether it is run, when that is first declared so; a pause or a resumption comes after it.
    - grace_us, after_grace: how long a lot waits for the last of several sources, from the first on, and what
      follows then (LOT-28).
    - on_empty: an empty lot is published as empty without running anything, or the function is run on it.
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
        layout.quote(self.pipeline)  # BadName: names that no key could carry
        layout.quote(self.name)
        if not self.reads or len(set(self.reads)) < len(self.reads):
            raise BadArc(f"arc {self.name!r} reads {_named(self.reads)}", hint="it reads something, once")
        sinks = [sink.dataset for sink in self.sinks]
        if not 0 < len(sinks) <= MOST_TARGETS or len(set(sinks)) < len(sinks):
            raise BadArc(
                f"arc {self.name!r} writes to {_named(sinks)}", hint=f"1 to {MOST_TARGETS} sinks, each once"
            )
        if set(sinks) & set(self.reads):
            raise BadArc(f"arc {self.name!r} writes to what it reads", hint="write to another dataset")
        if self.grace_us < 0 or (self.after_grace is not AfterGrace.WAIT and not self.has_barrier):
            raise BadArc(
                f"arc {self.name!r} has a grace of {self.grace_us} µs, and reads {_named(self.reads)}",
                hint="a grace is for the last of several sources",
            )
        for field, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, field) <= most:
                raise BadArc(
                    f"arc {self.name!r} has {field}={getattr(self, field)}", hint=f"{least} to {most}"
                )

    @property
    def has_barrier(self) -> bool:
        """Do its lots wait until several sources have closed them?"""
        return len(self.reads) > 1

    @property
    def id(self) -> str:
        """Its name in the store, as the author of its attempts, and of its subscription."""
        return arc_id(self.pipeline, self.name)


_decoder = msgspec.msgpack.Decoder(ArcSpec)


def declare(tx: Tx, keys: ArcKeys, spec: ArcSpec) -> bool:
    """Enter an arc as it is now; False when it was declared so already."""
    key, raw = keys.arc[spec.id], msgspec.msgpack.encode(spec)
    if tx.get(key) == raw:
        return False
    tx.set(key, raw)
    return True


def read(tx: Tx, keys: ArcKeys, arc: str) -> ArcSpec:
    """An arc by its id; `ArcUnknown` when nobody declared it."""
    raw = tx.get(keys.arc[arc])
    if raw is None:
        raise ArcUnknown(f"there is no arc {arc}")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: ArcKeys, after: str = "", limit: int = 100) -> list[ArcSpec]:
    """A page of the arcs, by id."""
    lo, hi = keys.arc.all()
    found = tx.range(keys.arc[after] + b"\x00" if after else lo, hi, limit=limit, snapshot=True)
    return [_decoder.decode(row.value) for row in found]


def _named(datasets: "tuple[DatasetId, ...] | list[DatasetId]") -> str:
    return ", ".join(map(str, datasets)) or "nothing"
