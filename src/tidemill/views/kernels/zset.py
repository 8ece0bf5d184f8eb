"""Z-sets without a hash: what operators give. UNION ALL is putting them together."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.views.trace.consolidate import add_up, chunk, column
from tidemill.views.trace.layout import WEIGHT
from tidemill.views.trace.words import code_rows, grouped


def union(tables: Sequence[pa.Table]) -> pa.Table:
    """The sum of Z-sets with the same columns, added up; at least one."""
    return added_up(pa.concat_tables(tables))


def added_up(table: pa.Table) -> pa.Table:
    """The same Z-set with each row once, in an order that depends on its content alone.

    >>> added_up(pa.table({"a": ["x", "y", "x"], "_w": [1, 1, -1]})).to_pylist()
    [{'a': 'y', '_w': 1}]
    """
    table = table.combine_chunks()
    if table.num_rows == 0:
        return table
    names = [name for name in table.column_names if name != WEIGHT]
    order, starts = grouped(code_rows([chunk(table, name) for name in names], table.num_rows, "differ"))
    weights = add_up(column(table, WEIGHT)[order], starts)
    alive = weights != 0
    rows = table.take(pa.array(order[starts[alive]]))
    place = table.column_names.index(WEIGHT)
    return rows.set_column(place, table.schema.field(place), pa.array(weights[alive].astype(np.int64)))
