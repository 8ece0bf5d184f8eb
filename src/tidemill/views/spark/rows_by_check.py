"""Count the changed rows of a view with failing rows, by the check that they fail."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.lots.manifest import StoredObject
from tidemill.objects import Objects
from tidemill.spark.operations import WEIGHT

CHECK = "check"
READERS = 4


def rows_by_check(objects: Objects, changes: Iterable[StoredObject]) -> dict[str, int]:
    """Return by how many rows each check changed: the sum of the weights of these changes."""
    with ThreadPoolExecutor(READERS) as threads:
        counts = Counter[str]()
        for table in threads.map(partial(_checks_and_weights, objects), changes):
            sums = table.group_by(CHECK).aggregate([(WEIGHT, "sum")])
            counts.update(
                dict(zip(*(sums[name].to_pylist() for name in (CHECK, f"{WEIGHT}_sum")), strict=True))
            )
    return {name: rows for name, rows in sorted(counts.items()) if rows}


def _checks_and_weights(objects: Objects, item: StoredObject) -> pa.Table:
    return pq.read_table(BytesIO(objects.get(item.uri)[0]), columns=[CHECK, WEIGHT])
