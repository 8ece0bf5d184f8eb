"""The columns of a trace: the key hash, what rows are, and the numbers that add up.

Every table that belongs to a trace has the columns `_h` (int64, the hash of its key), then those that say
*which* row it is, then the *sums*: int64 columns that are added when two rows are otherwise the same. A Z-set
has one sum, its weight `_w`. The trace of an aggregate has several, its accumulators; so one routine merges
them all, in any order, and a change followed by its inverse leaves nothing.

A trace may be *fine*: then the upper half of `_h` is that of its key's hash, and the lower half is of the
rest of the row. Rows of a key still lie together, and a single one of them is found as quickly as a key is
elsewhere.

A large sum is spread over *limbs* of 32 bits, the lowest first, the highest with the sign: consolidating
carries between them, so that one number has one form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.errors import UsageError

HASH = "_h"
WEIGHT = "_w"


@dataclass(frozen=True)
class Layout:
    """Which columns a trace has.

    Args:
        columns: names and types of what says which row it is, the key first.
        key: how many of them are the key, whose hash `_h` is.
        sums: the names of the int64 columns that add up.
        limbs: those of the sums that are limbs of one number, lowest first.
        fine: whether `_h` tells rows of one key apart; see above.
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
                f"not a layout: columns {names}, key {self.key}", hint="names differ; one sum or more"
            )
        fields = [pa.field(each.name, each.type) for each in self.columns]
        sums = [pa.field(name, pa.int64()) for name in self.sums]
        object.__setattr__(self, "schema", pa.schema([pa.field(HASH, pa.int64()), *fields, *sums]))

    @property
    def key_names(self) -> list[str]:
        """The columns whose hash `_h` is."""
        return list(self.columns.names[: self.key])

    @property
    def rest_names(self) -> list[str]:
        """The other columns that say which row it is."""
        return list(self.columns.names[self.key :])

    @property
    def hashed_names(self) -> list[str]:
        """The columns that `_h` follows from."""
        return self.names if self.fine else self.key_names

    @property
    def names(self) -> list[str]:
        """The columns that say which row it is."""
        return list(self.columns.names)

    def select(self, columns: Sequence[str] | None) -> list[str]:
        """The columns to read when these are wanted: the hash, the key and the sums always come along."""
        if columns is None:
            return list(self.schema.names)
        wanted = {HASH, *self.key_names, *self.sums, *columns}
        return [name for name in self.schema.names if name in wanted]

    def columns_of(self, columns: Sequence[str]) -> pa.Schema:
        """What says which row it is, where only the key and these columns were read."""
        read = set(self.select(columns))
        return pa.schema([each for each in self.columns if each.name in read])

    def conform(self, table: pa.Table) -> pa.Table:
        """The table with exactly these columns in this order and one chunk each; others are left out."""
        there = set(table.column_names)
        missing = [name for name in self.schema.names if name not in there]
        if missing:
            raise UsageError(
                f"columns are missing: {missing}", hint=f"a table of this trace has {self.schema.names}"
            )
        table = table.select(self.schema.names)
        if not table.schema.equals(self.schema):
            differ = [each.name for each in self.schema if table.schema.field(each.name).type != each.type]
            if differ:
                raise UsageError(
                    f"columns of other types: {differ}", hint="cast them to the types of the trace's layout"
                )
            table = table.cast(self.schema)
        return table.combine_chunks()

    def empty(self) -> pa.Table:
        return self.schema.empty_table()
