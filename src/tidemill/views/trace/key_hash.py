"""The hash of a key: by it rows are sorted in runs, looked up, and sent to the task that has them.

It is one function of the values, the same wherever a row comes from and whatever else is in the call, and
equal for keys that Spark would group together. So a run need not store it: whoever reads the key has it.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.views.trace.order import I64
from tidemill.views.trace.words import code_rows

GLOBAL_HASH = 0
"""Of the one group that there is without a key."""


def key_hashes(columns: Sequence[pa.Array], rows: int) -> I64:
    """The hash of each row's key.

    Args:
        columns: the key's, each in one piece.
        rows: how many there are.
    """
    if not columns:
        return np.full(rows, GLOBAL_HASH, np.int64)
    return code_rows(columns, rows).mix.view(np.int64)
