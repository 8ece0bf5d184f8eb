"""Key hashes: the hashes by which runs are sorted, rows are looked up, and rows are assigned to tasks.

The hash depends on the values alone, not on the other rows of a call, and it is equal for keys that Spark
groups together. So a run does not have to store the hash: it can be computed from the key. In a *fine* trace,
half of the hash comes from the other columns of the row (see `layout`).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.trace.order import I64
from tidemill.views.trace.row_equality import code_rows

GLOBAL_HASH = 0
"""The hash of an empty key, which all rows share."""

UPPER = np.int64(-(2**32))
"""The bits of a hash that come from the key in every trace, including a fine one."""


def key_hashes(columns: Sequence[pa.Array], rows: int) -> I64:
    """Return the hash of each row's key.

    Args:
        columns: the columns of the key.
        rows: the number of rows.
    """
    if not columns:
        return np.full(rows, GLOBAL_HASH, np.int64)
    return code_rows(columns, rows).mix.view(np.int64)


def fine_hashes(key: Sequence[pa.Array], rest: Sequence[pa.Array], rows: int) -> I64:
    """Return the hash of each row in a fine trace.

    A key with a NULL equals no other key, so it is never looked up. The whole hash of such a row comes from
    the other columns. So rows without a key are spread evenly over hash space, even if there are many.

    Args:
        key: the columns of the key.
        rest: the other columns.
        rows: the number of rows.
    """
    mix = code_rows(rest, rows, "differ").mix
    hashes: I64 = (key_hashes(key, rows) & UPPER) | (mix >> np.uint64(32)).view(np.int64)
    for column in key:
        if column.null_count:
            hashes = np.where(pc.is_null(column).to_numpy(zero_copy_only=False), mix.view(np.int64), hashes)
    return hashes


def row_hashes(columns: Sequence[pa.Array], rows: int, key: int, *, fine: bool) -> I64:
    """Return the hash `_h` of rows. The first `key` columns are the key; a fine trace hashes all columns."""
    return fine_hashes(columns[:key], columns[key:], rows) if fine else key_hashes(columns[:key], rows)
