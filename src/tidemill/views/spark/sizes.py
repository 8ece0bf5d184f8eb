"""How much a step reads, and into how many tasks that is cut: by rows and by bytes, so that each has room.

A task holds what comes to its range of hash space. However large a load is, it is cut until its tasks are of
a size that a Python worker can hold, up to the 256 slices of hash space.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidemill.spark.sessions import parallelism
from tidemill.views.steps.inputs import LotSlice
from tidemill.views.trace.hash_space import SLICES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ROWS = 2_000_000
TASK_BYTES = 64 * 1024**2
"""What one task takes of the stored, compressed input, about: its memory follows it."""

MEMORY_SHARE = 32
"""Of a Python worker's memory, where that is limited, one part in so many is what it is given to read: values
are several times larger in memory than compressed, and are there several times."""

_MEMORY = "spark.executor.pyspark.memory"
_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class InputSize(NamedTuple):
    """Rows, and the bytes they are stored in."""

    rows: int
    stored_bytes: int

    def __add__(self, other: object) -> "InputSize":
        assert isinstance(other, InputSize)
        return InputSize(self.rows + other.rows, self.stored_bytes + other.stored_bytes)


NOTHING = InputSize(0, 0)


def size_of(slices: Iterable[LotSlice]) -> InputSize:
    """The size of lots."""
    items = [item for one in slices for item in one.objects]
    return InputSize(sum(item.rows or 0 for item in items), sum(item.size for item in items))


def tasks_for(spark: "SparkSession", size: InputSize) -> int:
    """How many tasks a layer has: as many as run at once, or a multiple if these would have too much each."""
    cores = parallelism(spark)
    limit = worker_bytes(spark.conf.get(_MEMORY, "") or "", cores)
    most = TASK_BYTES if limit is None else max(1, min(TASK_BYTES, limit // MEMORY_SHARE))
    wanted = max(1, -(-size.rows // TASK_ROWS), -(-size.stored_bytes // most))
    return min(SLICES, -(-wanted // cores) * cores)


def worker_bytes(setting: str, cores: int) -> int | None:
    """The memory of one Python worker, by Spark's setting for those of an executor; None where it has none.

    >>> worker_bytes("2g", 4)
    536870912
    """
    found = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", setting.lower())
    if found is None or not int(found[1]):
        return None
    return int(found[1]) * _UNITS[found[2] or "m"] // max(1, cores)
