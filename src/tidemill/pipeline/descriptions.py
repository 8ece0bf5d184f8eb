"""Descriptions: what the store keeps about views and sources for people who do not have the user's file.

(C, "view-text", P, view)          the query of a view, and its circuit with the rung of each operator
(C, "source-text", P, source)      where the rows of a source come from; `orders`, or `orders#csv`

A run writes them when it has planned the pipeline, and only if they changed. Nothing but the page reads them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from tidemill.pipeline.plan.circuits import ViewCircuit, explained
from tidemill.pipeline.plan.decisions import decide
from tidemill.runner.program import Program, ViewProgram
from tidemill.store import Space, Tx
from tidemill.views.certify.view_tests import FunctionTest
from tidemill.views.circuit.column_lineage import Direct, Indirect, SourceColumn, column_lineage

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext

MOST_BYTES = 48 * 1024
"""The maximum size of a description. A larger one has no circuit, and only the beginning of the query."""

MOST_SQL = 16_000


class DescriptionKeys:
    """The key spaces of descriptions in one cluster."""

    def __init__(self, cluster: str) -> None:
        self.view = Space(cluster, "view-text")
        self.source = Space(cluster, "source-text")


class OperatorDescription(msgspec.Struct, frozen=True, array_like=True):
    """An operator of a view's circuit."""

    id: str
    kind: str
    rung: str
    detail: str
    reason: str
    inputs: tuple[str, ...]


class ColumnInput(msgspec.Struct, frozen=True, array_like=True):
    """A column that a view reads, and how it is used."""

    table: str
    column: str
    how: str


class ViewDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A view, for people.

    - code: the digest of everything that decides the result of the view.
    - where: the line of its declaration.
    - declared: for a function, what the user declares about it.
    - certificate: the digest of the comparison with plain Spark; empty if the view needs none.
    - incremental: whether a chain computes the view once it is certified; None for a function.
    - recomputed: why no chain can compute the view; empty if one can.
    - columns: the columns that each column is computed from; None if they are not known.
    - indirect: the columns that decide which rows there are.
    """

    code: str
    where: str = ""
    sql: str = ""
    declared: str = ""
    always_full: bool = False
    certificate: str = ""
    incremental: bool | None = None
    recomputed: str = ""
    notes: tuple[str, ...] = ()
    operators: tuple[OperatorDescription, ...] = ()
    columns: dict[str, tuple[ColumnInput, ...]] | None = None
    indirect: tuple[ColumnInput, ...] = ()


class SourceDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source, for people; `origin` has no secrets, and `dataset` is empty if it is the label."""

    origin: str
    where: str = ""
    dataset: str = ""


_view = msgspec.msgpack.Decoder(ViewDescription)
_source = msgspec.msgpack.Decoder(SourceDescription)


def read_view(tx: Tx, keys: DescriptionKeys, pipeline: str, view: str) -> ViewDescription | None:
    """Return the description of a view; None if no run of this release has planned it."""
    raw = tx.get(keys.view[pipeline, view])
    return None if raw is None else _view.decode(raw)


def sources(tx: Tx, keys: DescriptionKeys) -> dict[tuple[str, str], SourceDescription]:
    """Return the sources of all pipelines, by pipeline and label."""
    described = {}
    for row in tx.range(*keys.source.all(), snapshot=True):
        pipeline, label = keys.source.unpack(row.key)
        described[str(pipeline), str(label)] = _source.decode(row.value)
    return described


def update(context: "PipelineContext", program: Program, circuits: Mapping[str, ViewCircuit]) -> None:
    """Store the descriptions of a planned pipeline, if they changed, and remove those of other views."""
    keys = DescriptionKeys(context.place.cluster)
    views = {view.name: view for group in program.groups.values() for view in group.views}
    groups = {view.name: group for group in program.groups.values() for view in group.views}
    decisions: dict[str, dict[str, str]] = {}
    stored = context.store.run(lambda tx: _listed(tx, keys.view, program.pipeline))
    writes: dict[bytes, bytes | None] = {}
    for name, view in views.items():
        old = None if name not in stored else _view.decode(stored[name])
        test = program.tests.get(name)
        digest = test.digest if test is not None else ""
        known = (old.code, old.where, old.certificate) if old is not None else None
        has_columns = view.circuit is None or (old is not None and old.columns is not None)
        if known != (view.code, view.where, digest) or not has_columns:
            group = groups[name]
            if group.spec.name not in decisions:
                with context.spark() as spark:
                    decisions[group.spec.name] = decide(spark, group, program.datasets, {})
            described = _described(program, view, digest, circuits, decisions[group.spec.name])
            writes[keys.view[program.pipeline, name]] = _encoded(described)
    writes |= {keys.view[program.pipeline, name]: None for name in stored.keys() - views.keys()}
    origins = {
        planned.target.label: msgspec.msgpack.encode(
            SourceDescription(
                origin=planned.source.description,
                where=planned.target.where,
                dataset=planned.target.dataset.name if planned.target.name else "",
            )
        )
        for planned in program.sources.values()
    }
    stored = context.store.run(lambda tx: _listed(tx, keys.source, program.pipeline))
    for name in stored.keys() | origins.keys():
        if stored.get(name) != origins.get(name):
            writes[keys.source[program.pipeline, name]] = origins.get(name)
    for key, value in writes.items():  # one at a time: few change, and a large one may fill a transaction
        context.store.run(lambda tx, key=key, value=value: _write(tx, key, value))  # type: ignore[misc]


def _listed(tx: Tx, space: Space, pipeline: str) -> dict[str, bytes]:
    rows = tx.range(*space.under(pipeline), snapshot=True)
    return {str(space.unpack(row.key)[1]): row.value for row in rows}


def _write(tx: Tx, key: bytes, value: bytes | None) -> None:
    if value is None:
        tx.clear(key, quiet=True)
    else:
        tx.set(key, value, quiet=True)


def _described(
    program: Program,
    view: ViewProgram,
    certificate: str,
    circuits: Mapping[str, ViewCircuit],
    recomputed: Mapping[str, str],
) -> ViewDescription:
    test = program.tests.get(view.name)
    description = ViewDescription(
        code=view.code,
        where=view.where,
        sql=view.sql,
        declared=test.declared if isinstance(test, FunctionTest) else "",
        always_full=view.refresh == "full",
        certificate=certificate,
    )
    if view.circuit is not None:
        lineage = column_lineage(view.circuit)
        description = msgspec.structs.replace(
            description,
            columns={name: _inputs(sources) for name, sources in lineage.columns.items()},
            indirect=_inputs(lineage.indirect),
        )
    if view.name not in circuits:
        return description
    explanation = explained(circuits, view.name, recomputed)
    operators = tuple(
        OperatorDescription(
            line.id, line.kind, line.placement.rung.value, line.detail, line.placement.reason, line.inputs
        )
        for line in explanation.lines.values()
    )
    return msgspec.structs.replace(
        description,
        incremental=view.name not in recomputed,
        recomputed=recomputed.get(view.name, ""),
        notes=tuple(explanation.notes.get(view.name, ())),
        operators=operators,
    )


def _inputs(
    sources: Mapping[SourceColumn, Direct] | Mapping[SourceColumn, Indirect],
) -> tuple[ColumnInput, ...]:
    return tuple(
        ColumnInput(source.table, source.column, how.name.lower().replace("_", " "))
        for source, how in sorted(sources.items())
    )


def _encoded(description: ViewDescription) -> bytes:
    raw = msgspec.msgpack.encode(description)
    if len(raw) <= MOST_BYTES:
        return raw
    note = "the circuit is too large to be stored; see `tidemill explain`"
    cut = msgspec.structs.replace(
        description, sql=description.sql[:MOST_SQL], operators=(), notes=(note,), columns={}, indirect=()
    )
    return msgspec.msgpack.encode(cut)
