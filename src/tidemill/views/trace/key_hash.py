"""The hash of a key: by it rows are sorted in runs, looked up, and sent to the task that has them.

It is one function of the values, the same wherever a row comes from and whatever else is in the call, and
equal for keys that Spark would group together. So a run need not store it: whoever reads the key has it.
Where a trace is fine, half of it is of the rest of the row.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.trace.order import I64
from tidemill.views.trace.row_equality import code_rows

GLOBAL_HASH = 0
"""Of the one group that there is without a key."""

UPPER = np.int64(-(2**32))
"""The half of a hash that is the key's also in a trace that is fine."""


def key_hashes(columns: Sequence[pa.Array], rows: int) -> I64:
    """The hash of each row's key.

    Args:
        columns: the key's, each in one piece.
        rows: how many there are.
    """
    if not columns:
        return np.full(rows, GLOBAL_HASH, np.int64)
    return code_rows(columns, rows).mix.view(np.int64)


def fine_hashes(key: Sequence[pa.Array], rest: Sequence[pa.Array], rows: int) -> I64:
    """The hash of each row in a trace that is fine.

    A key with a NULL equals no other, and nobody looks for it: all of its hash is of the rest of the row, so
    that rows without a key, of which there may be many, are spread evenly.

    Args:
        key: its columns, each in one piece.
        rest: the others.
        rows: how many there are.
    """
    mix = code_rows(rest, rows, "differ").mix
    found: I64 = (key_hashes(key, rows) & UPPER) | (mix >> np.uint64(32)).view(np.int64)
    for column in key:
        if column.null_count:
            found = np.where(pc.is_null(column).to_numpy(zero_copy_only=False), mix.view(np.int64), found)
    return found


def row_hashes(columns: Sequence[pa.Array], rows: int, key: int, *, fine: bool) -> I64:
    """The hash `_h` of rows whose first columns are the key; a trace that is fine needs the others too."""
    return fine_hashes(columns[:key], columns[key:], rows) if fine else key_hashes(columns[:key], rows)
