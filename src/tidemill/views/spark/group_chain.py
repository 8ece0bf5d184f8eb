"""The chain of a group: from the circuits of its views, with Spark's types (DBSP-17).

A view is in the chain when every operator of it, down to the datasets, has a kernel. The others are
recomputed, and `reasons` says why; a view that reads one of those is recomputed as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.errors import QueryError, TypeRefused
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.spark import queries
from tidemill.spark.sessions import PINNED
from tidemill.views.chain.builder import ChainBuilder
from tidemill.views.chain.chain import Chain
from tidemill.views.chain.preparation import NoKernel, prepared
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.ids import Pins
from tidemill.views.circuit.interpreter import column_types
from tidemill.views.circuit.operators import InputTable, Operator, SparkColumn, ViewOutput
from tidemill.views.circuit.rungs import rungs
from tidemill.views.spark.arrow_types import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class GroupChain:
    """What of a group is computed by kernels.

    Args:
        chain: of all the views that can be; None when there are none.
        views: their names.
        types: the Spark types of their columns.
        reasons: why each of the others is recomputed.
    """

    chain: Chain | None
    views: frozenset[str] = frozenset()
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


def input_kind(dataset: DatasetRow) -> str:
    """How the rows of a dataset come to a chain.

    A lot of an interval gathers appends, and which write of a key is the later one is told by the append it
    is in: traces know a position and an ordinal alone.
    """
    own = dataset.order_by or (dataset.kind is Kind.KEYED and dataset.unit is not None)
    return "in an order of their own" if own else dataset.kind.value


def group_chain(
    spark: "SparkSession",
    outputs: Mapping[str, ViewOutput | None],
    frames: "Mapping[str, DataFrame]",
    kinds: Mapping[str, str],
    tag: str,
    settings: Mapping[str, str] = PINNED,
) -> GroupChain:
    """The chain of a group.

    Args:
        spark: asked for types.
        outputs: the circuits of its views, in their order; None for one that has none.
        frames: an empty frame of each dataset, by the name that circuits have for it.
        kinds: how the rows of each dataset come.
        tag: unique among the queries of this moment.
        settings: what is part of the ids beside the query.
    """
    reasons: dict[str, str] = {}
    taken: dict[str, ViewOutput] = {}
    found: dict[Operator, tuple[str, ...]] = {}
    for view, output in outputs.items():
        try:
            if output is None:
                raise NoKernel("it is no query")
            _steady(output)
            made = _linked(prepared(output), {**taken}, frozenset(outputs))
            asked = column_types(made, _asking(spark, frames, tag))
            _checked(made, asked)
            _built({**taken, view: made}, {**found, **asked}, kinds, [view], settings)
        except (NoKernel, TypeRefused) as error:
            reasons[view] = str(error.args[0]) if error.args else type(error).__name__
            continue
        taken[view] = made
        found |= asked
    if not taken:
        return GroupChain(None, reasons=reasons)
    chain = _built(taken, found, kinds, list(taken), settings)
    shown = {view: found[output] for view, output in taken.items()}
    return GroupChain(chain, frozenset(taken), shown, reasons)


def _steady(output: ViewOutput) -> None:
    """What is not the same twice cannot be taken back by computing it again."""
    for op, placed in rungs(output).items():
        if not placed.deterministic:
            raise NoKernel(f"its {op.kind} is not the same twice: {placed.reason}")


def _linked(output: ViewOutput, others: Mapping[str, ViewOutput], views: frozenset[str]) -> ViewOutput:
    """The view with the circuits of those it reads; `NoKernel` when one of them is recomputed."""
    for op in walk(output):
        if isinstance(op, InputTable) and op.table in views and op.table not in others:
            raise NoKernel(f"it reads the view {op.table}, which is recomputed")
    return Circuit({**others, "": output}).linked().outputs[""]


def _asking(
    spark: "SparkSession", frames: "Mapping[str, DataFrame]", tag: str
) -> Callable[[str], Sequence[SparkColumn]]:
    from pyspark.errors import PySparkException

    def ask(sql: str) -> Sequence[SparkColumn]:
        try:
            with queries.over(spark, sql, frames, tag) as frame:
                return [SparkColumn(one.name, one.dataType.simpleString()) for one in frame.schema.fields]
        except (QueryError, PySparkException) as error:  # what was written can still be recomputed
            said = str(error).strip().partition("\n")[0]
            raise NoKernel(f"its operators cannot be asked for their types: {said}") from error

    return ask


def _checked(output: ViewOutput, found: Mapping[Operator, tuple[str, ...]]) -> None:
    """What was prepared must have the types of the query itself."""
    if output.types and tuple(found.get(output, ())) != tuple(output.types):
        raise NoKernel(f"it would have the types {found.get(output)}, not {output.types}")


def _built(
    outputs: Mapping[str, ViewOutput],
    found: Mapping[Operator, tuple[str, ...]],
    kinds: Mapping[str, str],
    views: Sequence[str],
    settings: Mapping[str, str],
) -> Chain:
    circuit = Circuit(dict(outputs))
    return ChainBuilder(circuit, found, circuit.ids(Pins(settings=dict(settings))), arrow_of, kinds).build(
        views
    )
