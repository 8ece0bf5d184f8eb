"""Where the rows of a chain leave it: changes of views, and rows for a later job of the step."""

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from tidemill.views.chain.stateful_operator import (
    OperatorOutput,
    Parts,
    Traces,
    numbered_columns,
    with_weight,
)
from tidemill.views.kernels.row_identity import identifiable, row_identity
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, Layout


@dataclass(frozen=True)
class OutputSink:
    """Where the changes of a view arrive. Packets have its columns, both halves of a row's identity and `_w`;
    rows come with the identity if Spark has to compute it (`asks_spark`), else without.

    It remembers nothing. Rows meet by the first half of their identity, unless they meet already where they
    come from (`local`): then they do not travel.
    """

    view: str
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    local: bool = field(default=False, compare=False)

    @property
    def layouts(self) -> dict[str, Layout]:
        return {}

    @property
    def identified(self) -> bool:
        """Whether rows have their identity with them."""
        return not isinstance(self, SpillSink)

    @cached_property
    def asks_spark(self) -> bool:
        """Whether Spark computes the identity of its rows."""
        return self.identified and not all(map(identifiable, self.types))

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*self.types, *([pa.int64()] * 2 if self.identified else [])]))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        *given, weights = rows.columns
        if self.identified and not self.asks_spark:
            given += row_identity(given)
        rows = pa.Table.from_arrays([*given, weights], schema=self.out)  # whatever Spark says of NULLs
        if not self.identified:
            return {"rows": rows}
        return {"rows": rows.append_column(HASH, rows[f"c{len(self.types)}"])}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        raise AssertionError("a view's rows are written, not computed")

    def speaks_first(self, within: HashRange) -> bool:
        return False


@dataclass(frozen=True)
class SpillSink(OutputSink):
    """Rows that a later job of the step reads: they are written as they are, where they were made."""
