"""The columns of a trace: the hash, the columns that identify a row, and the sums.

Every table of a trace has the column `_h` (int64, the hash of the key), then the columns that *identify* a
row, then the *sums*: int64 columns that are added up when two rows are otherwise equal. A Z-set has one sum,
its weight `_w`. The trace of an aggregate has several sums, its accumulators. So one routine merges all
traces, in any order, and a change followed by its inverse leaves no rows.

A trace may be *fine*: then the upper half of `_h` comes from the hash of the key, and the lower half from the
other columns. The rows of a key are still adjacent, and a single row is found as fast as a key in other
traces.

A large sum is stored in *limbs* of 32 bits, lowest first; the highest has the sign. Consolidation carries
between the limbs, so every number has exactly one form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.errors import UsageError

HASH = "_h"
WEIGHT = "_w"


@dataclass(frozen=True)
class Layout:
    """The columns of a trace.

    Args:
        columns: the columns that identify a row, key first.
        key: how many of these columns form the key.
        sums: the names of the int64 columns that are added up.
        limbs: groups of sums that are the limbs of one number, lowest first.
        fine: whether `_h` also depends on the columns after the key; see above.
    """

    columns: pa.Schema
    key: int
    sums: tuple[str, ...] = (WEIGHT,)
    limbs: tuple[tuple[str, ...], ...] = ()
    fine: bool = False
    schema: pa.Schema = field(init=False, compare=False)

    def __post_init__(self) -> None:
        names = [HASH, *self.columns.names, *self.sums]
        if len(set(names)) != len(names) or not 0 <= self.key <= len(self.columns) or not self.sums:
            raise UsageError(
                f"invalid layout: columns {names}, key of {self.key} columns",
                hint="give every column a different name, list at least one column in sums=, and do not"
                " use more key columns than there are columns",
            )
        fields = [pa.field(each.name, each.type) for each in self.columns]
        sums = [pa.field(name, pa.int64()) for name in self.sums]
        object.__setattr__(self, "schema", pa.schema([pa.field(HASH, pa.int64()), *fields, *sums]))

    @property
    def key_names(self) -> list[str]:
        """The columns of the key."""
        return list(self.columns.names[: self.key])

    @property
    def rest_names(self) -> list[str]:
        """The columns after the key that identify a row."""
        return list(self.columns.names[self.key :])

    @property
    def hashed_names(self) -> list[str]:
        """The columns that `_h` depends on."""
        return self.names if self.fine else self.key_names

    @property
    def names(self) -> list[str]:
        """The columns that identify a row."""
        return list(self.columns.names)

    def select(self, columns: Sequence[str] | None) -> list[str]:
        """Return the columns to read: these columns (None for all), and always hash, key and sums."""
        if columns is None:
            return list(self.schema.names)
        included = {HASH, *self.key_names, *self.sums, *columns}
        return [name for name in self.schema.names if name in included]

    def columns_of(self, columns: Sequence[str]) -> pa.Schema:
        """Return the identifying columns of rows that were read with `select(columns)`."""
        read = set(self.select(columns))
        return pa.schema([each for each in self.columns if each.name in read])

    def conform(self, table: pa.Table) -> pa.Table:
        """Return the table with exactly the columns of the layout, in their order and in one chunk."""
        present = set(table.column_names)
        missing = [name for name in self.schema.names if name not in present]
        if missing:
            raise UsageError(
                f"columns are missing: {missing}", hint=f"pass all columns of this trace: {self.schema.names}"
            )
        table = table.select(self.schema.names)
        if not table.schema.equals(self.schema):
            differ = [each.name for each in self.schema if table.schema.field(each.name).type != each.type]
            if differ:
                raise UsageError(
                    f"columns have the wrong types: {differ}", hint="cast them to the types of the layout"
                )
            table = table.cast(self.schema)
        return table.combine_chunks()

    def empty(self) -> pa.Table:
        return self.schema.empty_table()
