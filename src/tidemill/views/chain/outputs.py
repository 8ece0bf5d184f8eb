"""The sinks of a chain: changes to views, and rows for a later job of the step."""

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
    """The sink that receives the changes of a view. It has no trace.

    Packets have the view's columns, both halves of the row identity, and `_w`. If Spark computes the identity
    (`needs_spark`), rows arrive with it; otherwise `pack` adds it. The first half of the identity decides the
    range, so equal rows go to the same range. If equal rows are already in the same range (`local`), no rows
    are exchanged.
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
        """Return whether packets include the identity of rows."""
        return not isinstance(self, SpillSink)

    @cached_property
    def needs_spark(self) -> bool:
        """Return whether Spark computes the identity of its rows."""
        return self.identified and not all(map(identifiable, self.types))

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*self.types, *([pa.int64()] * 2 if self.identified else [])]))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        *columns, weights = rows.columns
        if self.identified and not self.needs_spark:
            columns += row_identity(columns)
        rows = pa.Table.from_arrays(
            [*columns, weights], schema=self.out
        )  # ignores which columns Spark marks as NOT NULL
        if not self.identified:
            return {"rows": rows}
        return {"rows": rows.append_column(HASH, rows[f"c{len(self.types)}"])}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        raise AssertionError("this operator only writes output; it computes nothing")

    def emits_without_input(self, within: HashRange) -> bool:
        return False


@dataclass(frozen=True)
class SpillSink(OutputSink):
    """The sink for rows that a later job of the step reads.

    The task that computes these rows also writes them.
    """
