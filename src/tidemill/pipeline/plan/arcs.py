"""Plan arcs: check what they read and write, and derive the schemas that their functions return."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from tidemill.arcs import declarations as arc_rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.errors import DeclarationError, TidemillError
from tidemill.futures.values.code_digests import code_digest
from tidemill.lots.checks import can_drop, quarantine_of
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import graph
from tidemill.pipeline.declarations import ArcDecl, SinkDecl
from tidemill.pipeline.plan.arc_stages import DeclareArc, RemoveArc
from tidemill.pipeline.plan.catalog import Catalog, KnownTable, ddl_of
from tidemill.pipeline.plan.certification import certify_arc
from tidemill.pipeline.plan.stages import PlanStage
from tidemill.pipeline.plan.template_stages import RefusedChild
from tidemill.pipeline.source_line import errors_at
from tidemill.publish.parts import PartSink
from tidemill.runner.part_maker import results_of
from tidemill.runner.program import ArcProgram
from tidemill.spark import schema
from tidemill.spark.drift import effective
from tidemill.spark.messages import short
from tidemill.spark.operations import WEIGHT
from tidemill.spark.sessions import repinned
from tidemill.views.certify.bounds import BoundExceeded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ArcPlanner:
    """Plans the arcs of a pipeline, each after the arcs whose tables it reads."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pipeline = catalog.pipeline

    def plan(
        self, children: Mapping[str, ArcDecl] = MappingProxyType({}), foreign: Collection[str] = ()
    ) -> Iterator[ArcProgram]:
        """Plan all arcs.

        - children: the arcs of templates.
        - foreign: tables of other pipelines. If an arc of a template cannot read one of these tables, only
          that arc is refused.
        """
        unplanned = {**self.pipeline.arcs, **children}
        foreign = set(foreign)
        while unplanned:
            self._refuse_orphans(unplanned, foreign)
            ready = [
                arc for arc in unplanned.values() if all(name in self.catalog.tables for name in arc.reads)
            ]
            if not ready:
                self._raise_unplanned(unplanned)
            for arc in ready:
                del unplanned[arc.name]
                try:
                    with errors_at(arc.line):
                        program = self.arc(arc)
                except DeclarationError as error:
                    if arc.reads[0] not in foreign:
                        raise
                    self._refuse(arc, error.message)
                    foreign |= {sink.name for sink in arc.sinks}
                else:
                    yield program

    def _refuse(self, arc: ArcDecl, why: str) -> None:
        self.catalog.stages.append(RefusedChild(name=arc.name, why=why, where=str(arc.line)))

    def _refuse_orphans(self, unplanned: dict[str, ArcDecl], foreign: Collection[str]) -> None:
        """Refuse each arc of a template that reads a table which a refused arc would have written."""
        for arc in list(unplanned.values()):
            missing = [name for name in arc.reads if name in foreign and name not in self.catalog.tables]
            if arc.template and missing:
                del unplanned[arc.name]
                self._refuse(arc, f"there is no table {missing[0]}")

    def _raise_unplanned(self, unplanned: Mapping[str, ArcDecl]) -> None:
        """Raise an error that says why these arcs cannot be planned."""
        written = {sink.name for arc in unplanned.values() for sink in arc.sinks}
        for arc in unplanned.values():
            for name in arc.reads:
                if name in self.pipeline.views:
                    raise DeclarationError(
                        f"{arc.line}: arc {arc.name} cannot read {name}: it is a view, and its rows change",
                        hint="declare a view instead of the arc",
                    )
                if name not in self.catalog.tables and name not in written:
                    raise DeclarationError(
                        f"{arc.line}: arc {arc.name} reads {name}, which is not declared",
                        hint=self.catalog.near(name),
                    )
        cycle = " -> ".join(unplanned)
        arc = next(iter(unplanned.values()))
        raise DeclarationError(
            f"{arc.line}: arcs form a cycle: {cycle}", hint="remove one of these inputs to break the cycle"
        )

    def arc(self, arc: ArcDecl) -> ArcProgram:
        """Plan one arc. All its inputs are in the catalog."""
        inputs = [self.catalog.tables[name] for name in arc.reads]
        self._check_inputs(arc, inputs)
        program = ArcProgram(
            spec=self._spec(arc, inputs),
            function=arc.function,
            where=str(arc.line),
            checks={sink.name: sink.checks for sink in arc.sinks},
        )
        weighted = arc.changes == "linear" and any(table.retracts for table in inputs)
        if weighted:
            self._check_linear(arc, program, inputs)
        kind = Kind.CHANGES if arc.changes == "raw" or weighted else Kind.ROWS
        self._add_sinks(arc, kind, inputs, self._sink_schemas(arc, program, inputs))
        self.catalog.stages.append(
            DeclareArc(spec=program.spec, where=str(arc.line), pace=arc.pace, template=arc.template)
        )
        return program

    def _check_inputs(self, arc: ArcDecl, inputs: Sequence[KnownTable]) -> None:
        """Refuse tables that an arc cannot read."""
        unit = _unit(inputs)
        for name, table in zip(arc.reads, inputs, strict=True):
            assert table.dataset is not None
            if len(inputs) > 1 and unit is None:
                raise DeclarationError(
                    f"arc {arc.name} cannot read several tables: {name} has no intervals",
                    hint="declare all of its inputs with the same intervals, for example lots='PT5M'",
                )
            if table.dataset.unit != unit:
                raise DeclarationError(
                    f"arc {arc.name} reads {', '.join(arc.reads)}, which do not have the same intervals",
                    hint="declare all of them with the same intervals, for example lots='PT5M'",
                )
            if table.dataset.kind is Kind.KEYED:
                raise DeclarationError(
                    f"arc {arc.name} cannot read {name}: the table has a key",
                    hint="declare a view instead of the arc",
                )
            if table.retracts and arc.changes is None:
                raise DeclarationError(
                    f"arc {arc.name} cannot read {name}: rows of the table can be deleted",
                    hint="if the function handles each row independently, use changes='linear'; to read"
                    " and return _weight, use changes='raw'; or declare a view instead",
                )

    def _spec(self, arc: ArcDecl, inputs: Sequence[KnownTable]) -> ArcSpec:
        """Return the stored form of an arc."""
        of_lots = any(check.needs_whole_lot for sink in arc.sinks for check in sink.checks)
        return ArcSpec(
            pipeline=self.pipeline.name,
            name=arc.name,
            reads=tuple(table.dataset.id for table in inputs if table.dataset is not None),
            sinks=tuple(
                PartSink(
                    dataset=DatasetId(sink.name),
                    partition_by=sink.partition_by,
                    quarantine=quarantine_of(DatasetId(sink.name)) if can_drop(sink.checks) else None,
                )
                for sink in arc.sinks
            ),
            # A check of a whole lot needs the lot in one part, and a run even for an empty lot.
            parts=1 if of_lots else arc.parts,
            on_empty="run" if of_lots else "publish",
            retries=arc.retries,
            max_concurrent=arc.max_concurrent,
            code=_code(arc),
            changes=arc.changes or "",
            enabled=arc.enabled,
            grace_us=arc.grace.grace_us,
            after_grace=arc.grace.then,
        )

    def _add_sinks(
        self, arc: ArcDecl, kind: Kind, inputs: Sequence[KnownTable], schemas: Sequence[str]
    ) -> None:
        """Add the tables that an arc writes, and their quarantines, to the catalog."""
        unit = _unit(inputs)
        for sink, ddl in zip(arc.sinks, schemas, strict=True):
            names = schema.parse(ddl).names
            missing = [name for name in sink.partition_by if name not in names]
            if missing:
                raise DeclarationError(
                    f'{sink.name} has no column "{missing[0]}" to partition by',
                    hint=f"use one of its columns: {ddl}",
                )
            dataset = DatasetRow(
                name=sink.name,
                unit=unit,
                kind=kind,
                deletes=kind is Kind.CHANGES,
                schema=ddl,
                drift=sink.drift,
            )
            dataset = self.catalog.add(effective(dataset), arc.line, made_by=f"arc {arc.name}")
            self.catalog.expected(dataset, sink.checks)
            if can_drop(sink.checks):
                self.catalog.quarantine(dataset.id, unit, arc.line, f"checks of {sink.name}")

    def _sink_schemas(self, arc: ArcDecl, program: ArcProgram, inputs: Sequence[KnownTable]) -> list[str]:
        """Return the schemas of an arc's tables: declared, or derived by Spark (LOT-44)."""
        if all(sink.schema is not None for sink in arc.sinks):
            return [str(schema.parse(sink.schema or "")) for sink in arc.sinks]
        kinds = [(table.ddl, table.dataset.kind.value) for table in inputs if table.dataset is not None]
        question = ("arc", program.spec.code, arc.changes, [sink.name for sink in arc.sinks], kinds)
        schemas = self.catalog.ask(question, lambda: self._ask_schemas(arc, program, inputs), list[str])
        return [_declared(sink, ddl) for sink, ddl in zip(arc.sinks, schemas, strict=True)]

    def _ask_schemas(self, arc: ArcDecl, program: ArcProgram, inputs: Sequence[KnownTable]) -> list[str]:
        """Call the function of an arc on empty tables; return the columns of its results."""
        unweighted = arc.changes == "linear"
        frames = [
            schema.empty_frame(self.catalog.spark, table.ddl) if unweighted else self.catalog.empty(table)
            for table in inputs
        ]
        try:
            with repinned(self.catalog.spark):
                results = results_of(program, arc.function(*frames))
            frames = [frame.drop(WEIGHT) if arc.changes == "raw" else frame for frame in results]
            return [ddl_of(frame.schema) for frame in frames]
        except TidemillError:
            raise
        except Exception as error:
            raise DeclarationError(
                f"arc {arc.name} failed on an empty table: {short(error)}",
                hint="fix the function, or declare the schema of its result: schema='…'",
            ) from error

    def _check_linear(self, arc: ArcDecl, program: ArcProgram, inputs: Sequence[KnownTable]) -> None:
        """Test whether an arc declared as linear really is, once for each version of its code (LOT-41)."""
        if len(inputs) != 1:
            raise DeclarationError(
                f"arc {arc.name} is declared linear but reads several tables: {', '.join(arc.reads)}",
                hint="declare a view instead of the arc",
            )

        def results(df: "DataFrame") -> "list[DataFrame]":
            with repinned(self.catalog.spark):
                return results_of(program, arc.function(df))

        hint = "use changes='raw' to read and return _weight, or declare a view instead"
        try:
            certificate = certify_arc(
                self.pipeline.context,
                self.catalog.spark,
                program.spec.code,
                results,
                arc.reads[0],
                inputs[0].ddl,
            )
        except BoundExceeded as error:
            message = f"arc {arc.name} is declared linear, but this could not be tested: {error}"
            raise DeclarationError(message, hint=hint) from None
        if not certificate.equal:
            raise DeclarationError(
                f"arc {arc.name} is declared linear but is not: {certificate.why}", hint=hint
            )

    def removed(self, arcs: Mapping[str, ArcProgram]) -> list[PlanStage]:
        """Return the stages that remove arcs of this pipeline if they are no longer declared."""
        keys, prefix = ArcKeys(self.pipeline.context.place.cluster), graph.arc_id(self.pipeline, "")
        stored: list[ArcSpec] = []
        while True:
            after = stored[-1].id if stored else prefix
            page = self.pipeline.context.store.run(partial(arc_rows.listed, keys=keys, after=after))
            own = [spec for spec in page if spec.id.startswith(prefix)]
            stored += own
            if len(own) < 100:
                break
        templates = tuple(f"{prefix}{name}[" for name in self.pipeline.templates)
        removed = [spec for spec in stored if spec.id not in arcs and not spec.id.startswith(templates)]
        return [
            RemoveArc(name=spec.id, writes=tuple(sink.dataset.name for sink in spec.sinks))
            for spec in removed
        ]


def _unit(inputs: Sequence[KnownTable]) -> Unit | None:
    """Return the interval of an arc's lots: that of its first input."""
    assert inputs[0].dataset is not None
    return inputs[0].dataset.unit


def _code(arc: ArcDecl) -> str:
    """Return a digest of what determines the output of an arc: its function and its checks."""
    code = code_digest(arc.function).hex()[:32]
    checks = [(sink.name, sink.checks) for sink in arc.sinks if sink.checks]
    if not checks:
        return code
    return hashlib.sha256(code.encode() + msgspec.json.encode(checks, order="sorted")).hexdigest()[:32]


def _declared(sink: SinkDecl, ddl: str) -> str:
    return ddl if sink.schema is None else str(schema.parse(sink.schema))
