"""Planning of arcs: what they read and write, and what Spark makes of their functions."""

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
from tidemill.lots.checks import drops, quarantine_of
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import graph
from tidemill.pipeline.declarations import ArcDecl, SinkDecl
from tidemill.pipeline.plan.catalog import Catalog, Known, ddl_of, short
from tidemill.pipeline.plan.certification import certify_arc
from tidemill.pipeline.plan.stages import DeclareArc, RemoveArc, Stage
from tidemill.pipeline.plan.template_stages import RefusedChild
from tidemill.pipeline.source_line import at
from tidemill.pipeline.writes import spelled
from tidemill.publish.parts import PartSink
from tidemill.runner.making import results_of
from tidemill.runner.program import ArcProgram
from tidemill.spark import schema
from tidemill.spark.operations import WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ArcPlanner:
    """Plans the arcs of a pipeline, each behind those that make what it reads."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pipeline = catalog.pipeline

    def plan(
        self, children: Mapping[str, ArcDecl] = MappingProxyType({}), theirs: Collection[str] = ()
    ) -> Iterator[ArcProgram]:
        """All arcs.

        - children: those of templates.
        - theirs: tables of somebody else's. What cannot be made of them is told, and left out.
        """
        left = {**self.pipeline.arcs, **children}
        theirs = set(theirs)
        while left:
            self._refuse_lost(left, theirs)
            ready = [arc for arc in left.values() if all(name in self.catalog.known for name in arc.reads)]
            if not ready:
                self._complain(left)
            for arc in ready:
                del left[arc.name]
                try:
                    with at(arc.line):
                        program = self.arc(arc)
                except DeclarationError as error:
                    if arc.reads[0] not in theirs:
                        raise
                    self._refuse(arc, error.message)
                    theirs |= {sink.name for sink in arc.sinks}
                else:
                    yield program

    def _refuse(self, arc: ArcDecl, why: str) -> None:
        self.catalog.stages.append(RefusedChild(name=arc.name, why=why, where=str(arc.line)))

    def _refuse_lost(self, left: dict[str, ArcDecl], theirs: Collection[str]) -> None:
        """Children of what children would have made that were refused."""
        for arc in list(left.values()):
            lost = [name for name in arc.reads if name in theirs and name not in self.catalog.known]
            if arc.template and lost:
                del left[arc.name]
                self._refuse(arc, f"there is no {lost[0]}")

    def _complain(self, left: Mapping[str, ArcDecl]) -> None:
        made = {sink.name for arc in left.values() for sink in arc.sinks}
        for arc in left.values():
            for name in arc.reads:
                if name in self.pipeline.views:
                    raise DeclarationError(
                        f"{arc.line}: arc {arc.name} reads the view {name}, whose rows come and go",
                        hint="write a view instead: it follows every change",
                    )
                if name not in self.catalog.known and name not in made:
                    raise DeclarationError(
                        f"{arc.line}: arc {arc.name} reads {name}", hint=self.catalog.near(name)
                    )
        circle = " -> ".join(left)
        arc = next(iter(left.values()))
        raise DeclarationError(
            f"{arc.line}: arcs in a circle: {circle}", hint="an arc reads what comes before it"
        )

    def arc(self, arc: ArcDecl) -> ArcProgram:
        inputs = [self.catalog.known[name] for name in arc.reads]
        first = inputs[0].dataset
        assert first is not None
        for name, known in zip(arc.reads, inputs, strict=True):
            assert known.dataset is not None
            if known.dataset.unit != first.unit or (len(inputs) > 1 and first.unit is None):
                raise DeclarationError(
                    f"arc {arc.name} reads {', '.join(arc.reads)}, whose lots do not meet",
                    hint="tables that are read together have the same intervals: lots='PT5M' on each",
                )
            if known.dataset.kind is Kind.KEYED:
                raise DeclarationError(
                    f"arc {arc.name} reads {name}, which has a key",
                    hint="write a view instead: it follows every change",
                )
            if known.retracts and arc.changes is None:
                raise DeclarationError(
                    f"arc {arc.name} reads {name}, whose rows can be deleted again",
                    hint="changes='linear' if it maps single rows, changes='raw' gives and takes _weight;"
                    " or write a view: it follows every change",
                )
        of_lots = any(check.of_lots for sink in arc.sinks for check in sink.checks)
        spec = ArcSpec(
            pipeline=self.pipeline.name,
            name=arc.name,
            reads=tuple(one.dataset.id for one in inputs if one.dataset is not None),
            sinks=tuple(
                PartSink(
                    dataset=DatasetId(sink.name),
                    partition_by=sink.partition_by,
                    quarantine=quarantine_of(DatasetId(sink.name)) if drops(sink.checks) else None,
                )
                for sink in arc.sinks
            ),
            # What is about a whole lot cannot be told part by part, nor without running for an empty one.
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
        program = ArcProgram(
            spec=spec,
            function=arc.function,
            where=str(arc.line),
            checks={sink.name: sink.checks for sink in arc.sinks},
        )
        weighted = arc.changes == "linear" and any(one.retracts for one in inputs)
        if weighted:
            self._linear(arc, program, inputs)
        kind = Kind.CHANGES if arc.changes == "raw" or weighted else Kind.ROWS
        for sink, ddl in zip(arc.sinks, self._analysed(arc, program, inputs), strict=True):
            names = schema.parse(ddl).names
            missing = [name for name in sink.partition_by if name not in names]
            if missing:
                raise DeclarationError(
                    f"{sink.name} is partitioned by {missing[0]}, which it has not", hint=f"it has {ddl}"
                )
            dataset = Dataset(
                name=sink.name,
                unit=first.unit,
                kind=kind,
                deletes=kind is Kind.CHANGES,
                schema=ddl,
                drift=sink.drift,
            )
            dataset = self.catalog.add(spelled(dataset), arc.line, made_by=f"arc {arc.name}")
            self.catalog.expected(dataset, sink.checks)
            if drops(sink.checks):
                self.catalog.quarantine(dataset.id, first.unit, arc.line, f"checks of {sink.name}")
        self.catalog.stages.append(
            DeclareArc(spec=spec, where=str(arc.line), pace=arc.pace, template=arc.template)
        )
        return program

    def _analysed(self, arc: ArcDecl, program: ArcProgram, inputs: Sequence[Known]) -> list[str]:
        """The schemas of an arc's sinks: as declared, or what Spark makes of the function (LOT-44)."""
        if all(sink.schema is not None for sink in arc.sinks):
            return [str(schema.parse(sink.schema or "")) for sink in arc.sinks]
        bare = arc.changes == "linear"
        frames = [
            self.catalog.spark.createDataFrame([], one.ddl) if bare else self.catalog.empty(one)
            for one in inputs
        ]
        try:
            results = results_of(program, arc.function(*frames))
            found = [ddl_of(frame.drop(WEIGHT) if arc.changes == "raw" else frame) for frame in results]
        except TidemillError:
            raise
        except Exception as error:
            raise DeclarationError(
                f"arc {arc.name} cannot be analysed on an empty table: {short(error)}",
                hint="mend the function, or give the schema of what it returns: schema='…'",
            ) from error
        return [_declared(sink, ddl) for sink, ddl in zip(arc.sinks, found, strict=True)]

    def _linear(self, arc: ArcDecl, program: ArcProgram, inputs: Sequence[Known]) -> None:
        """An arc that says it is linear is tried out on generated rows, once for its code (LOT-41)."""
        if len(inputs) != 1:
            raise DeclarationError(
                f"arc {arc.name} reads {', '.join(arc.reads)}: linear is about one table",
                hint="write a view instead: it follows every change",
            )

        def made(df: "DataFrame") -> "list[DataFrame]":
            return results_of(program, arc.function(df))

        found = certify_arc(
            self.pipeline.site, self.catalog.spark, program.spec.code, made, arc.reads[0], inputs[0].ddl
        )
        if not found.equal:
            raise DeclarationError(
                f"arc {arc.name} is declared linear, and is not: {found.why}",
                hint="changes='raw' gives and takes _weight; or write a view: it follows every change",
            )

    def removed(self, arcs: Mapping[str, ArcProgram]) -> list[Stage]:
        """Arcs of this pipeline that were declared once and are not any more."""
        keys, prefix = ArcKeys(self.pipeline.site.place.cluster), graph.arc_id(self.pipeline, "")
        found: list[ArcSpec] = []
        while True:
            after = found[-1].id if found else prefix
            page = self.pipeline.site.store.run(partial(arc_rows.listed, keys=keys, after=after))
            here = [spec for spec in page if spec.id.startswith(prefix)]
            found += here
            if len(here) < 100:
                break
        living = tuple(f"{prefix}{name}[" for name in self.pipeline.templates)
        gone = [spec.id for spec in found if spec.id not in arcs and not spec.id.startswith(living)]
        return [RemoveArc(name=name) for name in gone]


def _code(arc: ArcDecl) -> str:
    """The digest of what decides what an arc makes: its function, and its checks."""
    code = code_digest(arc.function).hex()[:32]
    checks = [(sink.name, sink.checks) for sink in arc.sinks if sink.checks]
    if not checks:
        return code
    return hashlib.sha256(code.encode() + msgspec.json.encode(checks, order="sorted")).hexdigest()[:32]


def _declared(sink: SinkDecl, ddl: str) -> str:
    return ddl if sink.schema is None else str(schema.parse(sink.schema))
