"""Build the chain of a group from its circuit, with Spark's types (DBSP-17).

A view is in the chain if a chain can compute all its operators, down to the datasets. An operator in the
middle of a view can be recomputed from its stored inputs (`cuts`). If no other operator of the view stores
state, that saves nothing: such a view is recomputed as a whole, like the views that a chain cannot compute,
and the views that read them; `reasons` says why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tidemill.errors import QueryError, TypeRefused
from tidemill.lots.datasets import DatasetRow
from tidemill.spark import queries
from tidemill.spark.analyses import Analyses
from tidemill.spark.lot_reader import no_rows
from tidemill.spark.planning_memo import PlanningMemo, SparkEngine, analyses_of, engine_of
from tidemill.spark.schema import parse
from tidemill.spark.sessions import PINNED
from tidemill.spark.small_queries import FOR_SMALL_QUERIES
from tidemill.views.chain.builder import ChainBuilder
from tidemill.views.chain.chain import Chain, InputKind
from tidemill.views.chain.join_operators import StatefulJoin
from tidemill.views.chain.keyed_operators import ReplaceRows
from tidemill.views.chain.native_operators import StatefulAggregate, StatefulSet
from tidemill.views.chain.preparation import NoKernel, prepared
from tidemill.views.chain.range_join_operator import StatefulRangeJoin
from tidemill.views.chain.scalar_operator import StatefulScalar
from tidemill.views.chain.top_operators import StatefulTop
from tidemill.views.chain.window_operators import StatefulWindow
from tidemill.views.circuit.circuit import Circuit, replace_views, walk
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.ids import Pins, expressions_of
from tidemill.views.circuit.interpreter import column_types
from tidemill.views.circuit.operators import InputTable, Opaque, Operator, SparkColumn, ViewOutput
from tidemill.views.circuit.rungs import rungs
from tidemill.views.spark.arrow_compiler import compile_rows
from tidemill.views.spark.arrow_types import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Cut:
    """An operator that Spark recomputes from its stored inputs, and why.

    `inputs` are the ids of the traces that store its inputs.
    """

    kind: str
    why: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class GroupChain:
    """The chain of a group, and the views that it computes.

    Args:
        chain: the chain of all views that a chain can compute; None if there are none.
        views: the names of these views.
        types: the Spark types of their columns.
        reasons: for each other view, why it is recomputed.
        cuts: for each view in the chain, the operators that are recomputed from their stored inputs.
    """

    chain: Chain | None
    views: frozenset[str] = frozenset()
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    cuts: Mapping[str, tuple[Cut, ...]] = field(default_factory=dict)

    @property
    def not_incremental(self) -> Mapping[str, str]:
        """Return for each view that is recomputed, or has recomputed operators, why."""
        partly = {view: "; ".join(cut.why for cut in cuts) for view, cuts in self.cuts.items() if cuts}
        return {**self.reasons, **partly}


_chains: PlanningMemo[GroupChain] = PlanningMemo(most=200)
_types: PlanningMemo[list[SparkColumn]] = PlanningMemo(most=1_000)
"""The columns of queries that this process has resolved, in any session with equal settings."""


def input_kind(dataset: DatasetRow) -> InputKind:
    """Return how the rows of a dataset arrive in a chain."""
    names = parse(dataset.schema).names if dataset.order_by else []
    return InputKind(dataset.kind.value, tuple(names.index(name) for name in dataset.order_by))


def remembered_chain(
    spark: "SparkSession",
    outputs: Mapping[str, ViewOutput | None],
    schemas: Mapping[str, str],
    kinds: Mapping[str, InputKind],
) -> GroupChain:
    """Return the chain of a group.

    Build it with `group_chain`, or reuse it if this process has built it before.

    Args:
        spark: the session.
        outputs: as for `group_chain`.
        schemas: the columns of each dataset, by its name in the circuit.
        kinds: as for `group_chain`.
    """
    prints = tuple((view, None if output is None else output.fingerprint) for view, output in outputs.items())
    engine = engine_of(spark)
    key = (engine, prints, tuple(sorted(schemas.items())), tuple(sorted(kinds.items())))
    is_opaque = any(map(_is_opaque, outputs.values()))

    def build() -> GroupChain:
        analyses = Analyses() if is_opaque else analyses_of(spark)
        types = _remembered_types(spark, engine, schemas, analyses, remember=not is_opaque)
        return build_chain(outputs, kinds, types)

    return _chains.get(key, build, keep=lambda _: not is_opaque)


def _is_opaque(output: ViewOutput | None) -> bool:
    """Return whether a part of the query stays text; the text may call functions that can change."""
    return output is not None and any(isinstance(operator, Opaque) for operator in walk(output))


def group_chain(
    spark: "SparkSession",
    outputs: Mapping[str, ViewOutput | None],
    frames: "Mapping[str, DataFrame]",
    kinds: Mapping[str, InputKind],
    tag: str,
    settings: Mapping[str, str] = PINNED,
) -> GroupChain:
    """Build the chain of a group, and let Spark resolve its types over empty frames.

    Args:
        spark: the session that resolves types.
        outputs: the part of the circuit that computes each view, in order; None for a view that is not SQL.
        frames: an empty frame of each dataset, by its name in the circuit.
        kinds: how the rows of each dataset arrive, from `input_kind`.
        tag: a name that no concurrent query uses.
        settings: the settings that are part of operator ids.
    """
    resolve = _resolver(spark, frames, tag)
    if not any(map(_is_opaque, outputs.values())):
        resolve = _remembering(engine_of(spark), frames, resolve)
    return build_chain(outputs, kinds, resolve, settings)


def build_chain(
    outputs: Mapping[str, ViewOutput | None],
    kinds: Mapping[str, InputKind],
    resolve: Callable[[str], Sequence[SparkColumn]],
    settings: Mapping[str, str] = PINNED,
) -> GroupChain:
    """Build the chain of a group; the arguments are those of `group_chain`.

    - resolve: returns the columns of a query; raises `NoKernel` if Spark cannot resolve it.
    """
    reasons: dict[str, str] = {}
    cuts: dict[str, tuple[Cut, ...]] = {}
    chained: dict[str, ViewOutput] = {}
    types: dict[Operator, tuple[str, ...]] = {}
    for view, output in outputs.items():
        try:
            if output is None:
                raise NoKernel("it is not a SQL query")
            _check_deterministic(output)
            _check_functions(output)
            linked = _linked(prepared(output), chained, frozenset(outputs))
            operator_types = column_types(linked, resolve)
            _check_types(linked, operator_types)
            alone = _built({view: linked}, operator_types, kinds, [view], settings)
            if alone.cuts and not _keeps_state(alone.chain):
                raise NoKernel("; ".join(cut.why for cut in alone.cuts))
        except (NoKernel, TypeRefused) as error:
            reasons[view] = str(error.args[0]) if error.args else type(error).__name__
            continue
        chained[view] = linked
        cuts[view] = alone.cuts
        types |= operator_types
    if not chained:
        return GroupChain(None, reasons=reasons)
    chain = _built(chained, types, kinds, list(chained), settings).chain
    view_types = {view: types[output] for view, output in chained.items()}
    return GroupChain(chain, frozenset(chained), view_types, reasons, cuts)


def _keeps_state(chain: Chain) -> bool:
    """Return whether an operator of the chain is incremental and stores state, besides sources."""
    return any(isinstance(placed.operator, _INCREMENTAL) for placed in chain.operators)


_INCREMENTAL = (
    StatefulJoin,
    StatefulAggregate,
    StatefulSet,
    StatefulTop,
    StatefulWindow,
    StatefulScalar,
    StatefulRangeJoin,
    ReplaceRows,
)


def _check_deterministic(output: ViewOutput) -> None:
    """Raise `NoKernel` if an operator is not deterministic, as its old rows could not be computed again."""
    for op, placed in rungs(output).items():
        if not placed.deterministic:
            raise NoKernel(f"its {op.kind} is not deterministic: {placed.reason}")


def _check_functions(output: ViewOutput) -> None:
    """Raise `NoKernel` if an operator calls a function of the user.

    Spark evaluates a Python function before the rest of a projection, also in rows that a condition excludes.
    So in a projection for several views, the function would get rows of other views, and could raise errors.
    """
    known = ViewFunctions()
    for op in walk(output):
        for expression in expressions_of(op):
            for name in sorted(expression.calls):
                if not known.is_known(name):
                    raise NoKernel(f"it calls the function {name}, which only a query of its own may call")


def _linked(output: ViewOutput, circuits: Mapping[str, ViewOutput], views: frozenset[str]) -> ViewOutput:
    """Insert the operators of the views that a view reads; raise `NoKernel` if one of them is recomputed."""
    for op in walk(output):
        if isinstance(op, InputTable) and op.table in views and op.table not in circuits:
            raise NoKernel(f"it reads the view {op.table}, which is recomputed")
    return replace_views(output, circuits)


def _resolver(
    spark: "SparkSession", frames: "Mapping[str, DataFrame]", tag: str
) -> Callable[[str], Sequence[SparkColumn]]:
    """Return a function that resolves the columns of a query with Spark."""
    from pyspark.errors import PySparkException

    def resolve(sql: str) -> Sequence[SparkColumn]:
        try:
            with queries.over(spark, sql, frames, tag) as frame:
                return [
                    SparkColumn(field.name, field.dataType.simpleString()) for field in frame.schema.fields
                ]
        except (QueryError, PySparkException) as error:  # the view can still be recomputed
            message = str(error).strip().partition("\n")[0]
            raise NoKernel(f"Spark cannot resolve the types of its operators: {message}") from error

    return resolve


def _remembering(
    engine: SparkEngine,
    frames: "Mapping[str, DataFrame]",
    resolve: Callable[[str], Sequence[SparkColumn]],
) -> Callable[[str], Sequence[SparkColumn]]:
    """Return a function that resolves each query over the same columns once in this process.

    So certification, which has its own session, does not resolve what planning has resolved.
    """
    settings = frozenset(item for item in engine.settings if item[0] not in FOR_SMALL_QUERIES)

    def remembered(sql: str) -> Sequence[SparkColumn]:
        try:
            read = sorted({queries.match(table.name, frames) for table in queries.table_names(sql)})
        except QueryError:
            return resolve(sql)  # which says what is wrong
        columns = tuple((name, frames[name].schema.json()) for name in read)
        return _types.get((engine.version, settings, columns, sql), lambda: list(resolve(sql)))

    return remembered


def _remembered_types(
    spark: "SparkSession",
    engine: SparkEngine,
    schemas: Mapping[str, str],
    analyses: Analyses,
    *,
    remember: bool,
) -> Callable[[str], Sequence[SparkColumn]]:
    """Return a function that resolves the columns of a query over datasets, and remembers them.

    The types of a query depend on the names and columns of its tables, also if these are views: the circuit
    contains their operators.

    - remember: whether other sessions of this process may reuse the answers.
    """
    resolvers: list[Callable[[str], Sequence[SparkColumn]]] = []

    def ask(sql: str) -> list[tuple[str, str]]:
        if not resolvers:  # with remembered answers, no frames are needed, and perhaps no Spark
            frames = {name: no_rows(spark, schema) for name, schema in schemas.items()}
            resolver = _resolver(spark, frames, "chain")
            resolvers.append(_remembering(engine, frames, resolver) if remember else resolver)
        try:
            columns = resolvers[0](sql)
        except NoKernel as error:
            return [("", str(error))]  # no column has an empty name
        return [(column.name, column.type) for column in columns]

    def resolve(sql: str) -> Sequence[SparkColumn]:
        question = ("types", engine.version, sorted(engine.settings), sorted(schemas.items()), sql)
        columns = analyses.get(question, lambda: ask(sql), list[tuple[str, str]])
        if columns and not columns[0][0]:
            raise NoKernel(columns[0][1])
        return [SparkColumn(name, kind) for name, kind in columns]

    return resolve


def _check_types(output: ViewOutput, types: Mapping[Operator, tuple[str, ...]]) -> None:
    """Raise `NoKernel` if the prepared view does not have the types of its query."""
    if output.types and tuple(types.get(output, ())) != tuple(output.types):
        raise NoKernel(
            f"native computation would give the types {types.get(output)} instead of {output.types}"
        )


class _Built(NamedTuple):
    """A chain, and its recomputed operators."""

    chain: Chain
    cuts: tuple[Cut, ...]


def _built(
    outputs: Mapping[str, ViewOutput],
    types: Mapping[Operator, tuple[str, ...]],
    kinds: Mapping[str, InputKind],
    views: Sequence[str],
    settings: Mapping[str, str],
) -> _Built:
    circuit = Circuit(dict(outputs))
    ids = circuit.ids(Pins(settings=dict(settings)))
    builder = ChainBuilder(circuit, types, ids, arrow_of, kinds, compile_rows)
    chain = builder.build(views)
    traces = {placed.id: trace for placed in chain.stored_inputs for trace in placed.traces.values()}
    cuts = [
        Cut(op.kind, why, tuple(trace for id_, trace in traces.items() if id_.startswith(f"{ids[op]}.")))
        for op, why in builder.recomputed.items()
    ]
    return _Built(chain, tuple(cuts))
