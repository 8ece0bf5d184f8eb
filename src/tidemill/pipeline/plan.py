"""Planning: what declarations come to, and what they would change in the store.

A plan is a list of stages, small values with two interpreters: `Plan.apply` carries them out, `Plan.describe`
says what they are. Making one checks everything that can be checked before anything runs: names, circles,
who may read what, queries and functions by Spark's own analysis on empty tables (LOT-44). Every complaint
names the line of the declaration it is about.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill.arcs import declarations as arc_rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.errors import DatasetUnknown, DeclarationError, QueryError, TidemillError
from tidemill.events import Emit, ignore
from tidemill.futures.code_digests import code_digest
from tidemill.lots import datasets
from tidemill.lots.checks import QUARANTINE_SCHEMA, Check, drops, quarantine_of, strict
from tidemill.lots.datasets import Dataset, Drift, Kind
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import circuits
from tidemill.pipeline.appending import spelled
from tidemill.pipeline.certifying import CertifyView, certify_arc
from tidemill.pipeline.declarations import ArcDecl, SinkDecl, SourceDecl, ViewDecl
from tidemill.pipeline.incoming import converter, settled_push
from tidemill.pipeline.lines import Line
from tidemill.pipeline.stages import (
    DeclareArc,
    DeclareDataset,
    DeclareGroups,
    DeclareSource,
    RemoveArc,
    Stage,
    Status,
)
from tidemill.publish.parts import PartSink
from tidemill.runner.making import results_of
from tidemill.runner.program import (
    ArcProgram,
    GroupProgram,
    Program,
    SourceProgram,
    StreamProgram,
    ViewProgram,
)
from tidemill.sources.bucket import BucketSpec
from tidemill.sources.declarations import SourceSpec, source_id
from tidemill.sources.folder import FolderSpec
from tidemill.sources.kafka import KafkaSpec
from tidemill.sources.polling import PollSpec
from tidemill.sources.pushing import PushSpec
from tidemill.spark import queries, schema
from tidemill.spark.checking import verify
from tidemill.spark.drift import evolved
from tidemill.spark.operations import WEIGHT, stored_schema
from tidemill.spark.sessions import PINNED
from tidemill.views.certify import certificates
from tidemill.views.circuit.explain import Explained
from tidemill.views.spark.full import result_of
from tidemill.views.sql.catalog import Table
from tidemill.views.steps.groups import GroupSpec, ViewSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.site import Site


@dataclass(frozen=True)
class Plan:
    """What a pipeline is, and what carrying it out would change."""

    program: Program
    stages: tuple[Stage, ...]
    site: "Site" = field(repr=False)
    made: Mapping[str, circuits.Made] = field(default_factory=dict, repr=False)

    def status(self) -> list[tuple[Stage, Status]]:
        """Each stage, and whether it is new, as it was, or changed."""
        keys = self.site.keys
        return self.site.store.run(lambda tx: [(stage, stage.status(tx, keys)) for stage in self.stages])

    def describe(self) -> list[dict[str, str]]:
        """For people and programs: what each stage is about."""
        return [{**stage.describe(), "status": status.value} for stage, status in self.status()]

    def apply(self, holder: str, emit: Emit = ignore) -> None:
        """Carry the plan out. May be repeated, and by several processes at once."""
        for stage in self.stages:
            told = stage.apply(self.site, holder)
            if told is not None:
                emit(told)

    def explained(self, view: str) -> Explained:
        """The circuit of a view, down to the datasets it comes from."""
        return circuits.explained(self.made, view)

    def __repr__(self) -> str:
        lines = [
            f"{one['status']:>8}  {one['what']:<8} {one['name']:<24} {one['detail']}"
            for one in self.describe()
        ]
        return "\n".join(lines) or "nothing is declared"


def make_plan(pipeline: "Pipeline") -> Plan:
    """Check a pipeline's declarations and make a plan of them."""
    with pipeline.site.spark() as spark:
        return _Planner(pipeline, spark).plan()


@dataclass(frozen=True)
class _Known:
    """A table as far as planning has come."""

    dataset: Dataset | None  # None for a view
    ddl: str
    retracts: bool


class _Planner:
    def __init__(self, pipeline: "Pipeline", spark: "SparkSession") -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.known: dict[str, _Known] = {}
        self.stages: list[Stage] = []
        self.datasets: dict[DatasetId, Dataset] = {}
        self.circuits: dict[str, circuits.Made] = {}
        self.frames: dict[str, DataFrame] = {}

    def plan(self) -> Plan:
        for decl in self.pipeline.datasets.values():
            with _at(decl.line):
                dataset = self._add(spelled(decl.dataset), decl.line)
                names = schema.parse(dataset.schema).names
                missing = [name for name in dataset.key if name not in names]
                if missing:
                    raise DeclarationError(
                        f"{dataset.name} has no column {missing[0]} to be its key",
                        hint=f"it has {dataset.schema}",
                    )
                ours = [name for name in schema.parse(decl.schema).names if name.startswith("_")]
                if ours:
                    raise DeclarationError(
                        f"{dataset.name} has the column {ours[0]}",
                        hint="names that begin with _ are Tidemill's own",
                    )
                self._expected(dataset, decl.checks)
                self._refuse_intervals(dataset, decl.checks)
                if drops(decl.checks) and decl.dataset.name not in self.pipeline.sources:
                    self._quarantine(dataset.id, None, decl.line, f"checks of {dataset.name}")
        sources = {one.id: one for one in self._sources()}
        arcs = {one.spec.id: one for one in self._arcs()}
        groups = self._groups()
        self.stages += self._removed(arcs)
        program = Program(
            pipeline=self.pipeline.name,
            datasets=self.datasets,
            arcs=arcs,
            sources=sources,
            groups={f"views:{self.pipeline.name}/{one.spec.name}": one for one in groups},
        )
        return Plan(program, tuple(self.stages), self.pipeline.site, self.circuits)

    def _add(self, dataset: Dataset, line: Line, *, made_by: str = "") -> Dataset:
        """A table, with the columns it has by now where they may be more than are declared (LOT-34)."""
        if dataset.drift is Drift.EVOLVE:
            dataset = self._evolved(dataset)
        self.datasets[dataset.id] = dataset
        self.known[dataset.name] = _Known(dataset, dataset.schema, dataset.kind is not Kind.ROWS)
        self.stages.append(DeclareDataset(dataset=dataset, where=str(line), made_by=made_by))
        return dataset

    def _evolved(self, dataset: Dataset) -> Dataset:
        site = self.pipeline.site
        try:
            known = site.store.run(lambda tx: datasets.read(tx, site.keys.lots, dataset.id))
        except DatasetUnknown:
            return dataset
        grown = evolved(known, dataset)
        return msgspec.structs.replace(dataset, schema=grown.schema, fingerprint=grown.fingerprint)

    # --- checks

    def _expected(self, dataset: Dataset, checks: Sequence[Check]) -> None:
        """Are these checks of such rows? By Spark's own analysis."""
        if checks:
            verify(self.spark.createDataFrame([], dataset.schema), checks)

    @staticmethod
    def _refuse_intervals(dataset: Dataset, checks: Sequence[Check]) -> None:
        of_lots = [one.name for one in checks if one.of_lots]
        if of_lots and dataset.unit is not None:
            raise DeclarationError(
                f"the check {of_lots[0]} is about a whole lot, and lots of {dataset.name} gather appends"
                " that are written one by one",
                hint="check it in an arc that reads it",
            )

    def _quarantine(self, of: DatasetId, unit: Unit | None, line: Line, made_by: str) -> DatasetId:
        """A table for what does not fit another one."""
        found = quarantine_of(of)
        if found.name in self.pipeline.names:
            raise DeclarationError(
                f"what does not fit {of.name} goes to {found.name}, which is another table",
                hint="give that table another name",
            )
        dataset = Dataset(name=found.name, version=found.version, unit=unit, schema=QUARANTINE_SCHEMA)
        self._add(spelled(dataset), line, made_by=made_by)
        return found

    # --- sources

    def _sources(self) -> Iterator[SourceProgram | StreamProgram]:
        for decl in self.pipeline.sources.values():
            with _at(decl.line):
                known = self.known[decl.dataset].dataset
                assert known is not None
                self._expected(known, decl.checks)
                if known.unit is not None:
                    raise DeclarationError(
                        f"{decl.dataset} has intervals, and a source makes a lot of what it finds",
                        hint="leave lots= out for a dataset that has a source",
                    )
                if isinstance(decl.spec, PushSpec):
                    if drops(decl.checks):
                        self._quarantine(known.id, None, decl.line, f"checks of {known.name}")
                    yield self._pushed(decl, decl.spec, known)
                elif isinstance(decl.spec, PollSpec | KafkaSpec):
                    yield self._drawn(decl, decl.spec, known)
                else:
                    yield self._files(decl, decl.spec.below(self.pipeline.base), known)

    def _files(self, decl: SourceDecl, place: FolderSpec | BucketSpec, known: Dataset) -> SourceProgram:
        spec = SourceSpec(
            id=source_id(self.pipeline.name, decl.dataset),
            pipeline=self.pipeline.name,
            dataset=known.id,
            schema=spelled(self.pipeline.datasets[decl.dataset].dataset).schema,
            kind=known.kind,
            key=known.key,
            drift=known.drift,
            reading=place.reading,
            policy=place.policy,
            quarantine=self._quarantine(known.id, None, decl.line, f"source of {decl.dataset}"),
            checks=decl.checks,
        )
        detail = f"{spec.reading.format.value} files in {place.root}"
        self.stages.append(DeclareSource(dataset=known.name, detail=detail, where=str(decl.line)))
        return SourceProgram(spec=spec, place=place, where=str(decl.line))

    def _pushed(self, decl: SourceDecl, spec: PushSpec, known: Dataset) -> StreamProgram:
        self._without_spark(known, decl.checks)
        place = settled_push(self.pipeline, decl.dataset, spec)
        self.stages.append(DeclareSource(dataset=known.name, detail=place.shown, where=str(decl.line)))
        return StreamProgram(
            id=source_id(self.pipeline.name, decl.dataset),
            dataset=known,
            place=place,
            convert=converter(known, strict(decl.checks)),
            where=str(decl.line),
        )

    def _drawn(self, decl: SourceDecl, spec: PollSpec | KafkaSpec, known: Dataset) -> StreamProgram:
        self._without_spark(known, decl.checks)
        self.stages.append(DeclareSource(dataset=known.name, detail=spec.shown, where=str(decl.line)))
        return StreamProgram(
            id=source_id(self.pipeline.name, decl.dataset),
            dataset=known,
            place=spec,
            convert=converter(known),
            where=str(decl.line),
            quarantine=self._quarantine(known.id, None, decl.line, f"source of {decl.dataset}"),
            checks=decl.checks,
        )

    @staticmethod
    def _without_spark(dataset: Dataset, checks: Sequence[Check]) -> None:
        if dataset.drift is not Drift.FREEZE:
            raise DeclarationError(
                f"{dataset.name} has drift={dataset.drift.value!r}: what comes in no files fits it, or not",
                hint="leave drift= out, or let them come in files",
            )
        for one in checks:
            if one.kind == "expect":
                raise DeclarationError(
                    f"the check {one.name} is an expression of Spark, and these rows are written without it",
                    hint="check it in an arc that reads them",
                )

    # --- arcs

    def _arcs(self) -> Iterator[ArcProgram]:
        left = dict(self.pipeline.arcs)
        while left:
            ready = [arc for arc in left.values() if all(name in self.known for name in arc.reads)]
            if not ready:
                self._complain(left)
            for arc in ready:
                del left[arc.name]
                with _at(arc.line):
                    yield self._arc(arc)

    def _complain(self, left: Mapping[str, ArcDecl]) -> None:
        made = {sink.name for arc in left.values() for sink in arc.sinks}
        for arc in left.values():
            for name in arc.reads:
                if name in self.pipeline.views:
                    raise DeclarationError(
                        f"{arc.line}: arc {arc.name} reads the view {name}, whose rows come and go",
                        hint="write a view instead: it follows every change",
                    )
                if name not in self.known and name not in made:
                    raise DeclarationError(f"{arc.line}: arc {arc.name} reads {name}", hint=self._near(name))
        circle = " -> ".join(left)
        arc = next(iter(left.values()))
        raise DeclarationError(
            f"{arc.line}: arcs in a circle: {circle}", hint="an arc reads what comes before it"
        )

    def _near(self, name: str) -> str:
        near = get_close_matches(name, self.pipeline.names, n=1)
        return f"there is no such table; did you mean {near[0]}?" if near else "there is no such table"

    def _arc(self, arc: ArcDecl) -> ArcProgram:
        inputs = [self.known[name] for name in arc.reads]
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
                    hint="changes='raw' gives and takes _weight; or write a view: it follows every change",
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
            dataset = self._add(spelled(dataset), arc.line, made_by=f"arc {arc.name}")
            self._expected(dataset, sink.checks)
            if drops(sink.checks):
                self._quarantine(dataset.id, first.unit, arc.line, f"checks of {sink.name}")
        self.stages.append(DeclareArc(spec=spec, where=str(arc.line), pace=arc.pace))
        return program

    def _analysed(self, arc: ArcDecl, program: ArcProgram, inputs: Sequence[_Known]) -> list[str]:
        """The schemas of an arc's sinks: as declared, or what Spark makes of the function (LOT-44)."""
        if all(sink.schema is not None for sink in arc.sinks):
            return [str(schema.parse(sink.schema or "")) for sink in arc.sinks]
        bare = arc.changes == "linear"
        frames = [self.spark.createDataFrame([], one.ddl) if bare else self._empty(one) for one in inputs]
        try:
            results = results_of(program, arc.function(*frames))
            found = [_ddl(frame.drop(WEIGHT) if arc.changes == "raw" else frame) for frame in results]
        except TidemillError:
            raise
        except Exception as error:
            raise DeclarationError(
                f"arc {arc.name} cannot be analysed on an empty table: {_short(error)}",
                hint="mend the function, or give the schema of what it returns: schema='…'",
            ) from error
        return [_declared(sink, ddl) for sink, ddl in zip(arc.sinks, found, strict=True)]

    def _linear(self, arc: ArcDecl, program: ArcProgram, inputs: Sequence[_Known]) -> None:
        """An arc that says it is linear is tried out on generated rows, once for its code (LOT-41)."""
        if len(inputs) != 1:
            raise DeclarationError(
                f"arc {arc.name} reads {', '.join(arc.reads)}: linear is about one table",
                hint="write a view instead: it follows every change",
            )

        def made(df: "DataFrame") -> "list[DataFrame]":
            return results_of(program, arc.function(df))

        found = certify_arc(
            self.pipeline.site, self.spark, program.spec.code, made, arc.reads[0], inputs[0].ddl
        )
        if not found.equal:
            raise DeclarationError(
                f"arc {arc.name} is declared linear, and is not: {found.why}",
                hint="changes='raw' gives and takes _weight; or write a view: it follows every change",
            )

    def _empty(self, known: _Known) -> "DataFrame":
        kind = Kind.ROWS if known.dataset is None else known.dataset.kind
        return self.spark.createDataFrame([], stored_schema(known.ddl, kind))

    def _removed(self, arcs: Mapping[str, ArcProgram]) -> list[Stage]:
        """Arcs of this pipeline that were declared once and are not any more."""
        keys, prefix = ArcKeys(self.pipeline.site.place.cluster), f"arc:{self.pipeline.name}/"
        found: list[ArcSpec] = []
        while True:
            after = found[-1].id if found else prefix
            page = self.pipeline.site.store.run(partial(arc_rows.listed, keys=keys, after=after))
            here = [spec for spec in page if spec.id.startswith(prefix)]
            found += here
            if len(here) < 100:
                break
        return [RemoveArc(name=spec.id) for spec in found if spec.id not in arcs]

    # --- views

    def _groups(self) -> list[GroupProgram]:
        views = self._ordered()
        groups: dict[str, list[ViewProgram]] = {}
        for decl in views:
            with _at(decl.line):
                groups.setdefault(decl.group, []).append(self._view(decl))
        programs = [
            GroupProgram(
                spec=GroupSpec(name=name, views=tuple(_spec(view) for view in members)),
                views=tuple(members),
            )
            for name, members in groups.items()
        ]
        if programs:
            self.stages.append(
                DeclareGroups(
                    pipeline=self.pipeline.name,
                    groups=tuple(one.spec for one in programs),
                    views=tuple((view.name, view.where, view.sql) for one in programs for view in one.views),
                )
            )
        self.stages += self._certified([view for one in programs for view in one.views])
        return programs

    def _certified(self, views: Sequence[ViewProgram]) -> Iterator[CertifyView]:
        """The comparison of each circuit with its query, as far as it was made before."""
        site = self.pipeline.site
        for view in views:
            if view.name not in self.circuits or self.pipeline.views[view.name].refresh == "full":
                continue  # what is always recomputed is plain Spark itself
            output = self.circuits[view.name].output
            digest = certificates.digest_of(view.code, output)
            yield CertifyView(
                pipeline=self.pipeline.name,
                view=view.name,
                sql=view.sql,
                where=view.where,
                digest=digest,
                output=output,
                tables={name: self.known[name].ddl for name in (*view.datasets, *view.views)},
                known=site.store.run(partial(certificates.read, cluster=site.place.cluster, digest=digest)),
            )

    def _ordered(self) -> list[ViewDecl]:
        """Views behind the views they read."""
        left = dict(self.pipeline.views)
        found: list[ViewDecl] = []
        while left:
            ready = [
                view
                for view in left.values()
                if not {name.lower() for name in self._reads(view)} & {name.lower() for name in left}
            ]
            if not ready:
                view = next(iter(left.values()))
                raise DeclarationError(
                    f"{view.line}: views in a circle: {' -> '.join(left)}", hint="no view reads itself"
                )
            found += [left.pop(view.name) for view in ready]
        return found

    def _reads(self, view: ViewDecl) -> list[str]:
        if view.function is not None:
            return list(view.reads)
        with circuits.pointing(view.line, view.sql):
            return [table.name for table in queries.table_names(view.sql)]

    def _view(self, decl: ViewDecl) -> ViewProgram:
        with circuits.pointing(decl.line, decl.sql):
            read = self._reads(decl)
            if decl.function is None:
                tables = {name: self._table(name, known) for name, known in self.known.items()}
                frames = {name: self._frame(name) for name in self.known}
                made = circuits.make(self.spark, decl.sql, tables, frames, f"plan{len(self.known)}")
                self.circuits[decl.name] = made
            names = dict.fromkeys(queries.match(name, self.known) for name in read)
            ddl = self._result(decl, list(names))
        if decl.refresh == "incremental":
            circuits.refuse_incremental(self.circuits[decl.name].output if decl.sql else None, decl.line)
        missing = [name for name in decl.keyed_by if name not in schema.parse(ddl).names]
        if missing:
            raise DeclarationError(
                f"view {decl.name} is keyed by {missing[0]}, which it has not", hint=f"it has {ddl}"
            )
        used = tuple(name for name in names if self.known[name].dataset is None)
        for name in used:
            if self.pipeline.views[name].group != decl.group:
                raise DeclarationError(
                    f"view {decl.name} reads {name} of the group {self.pipeline.views[name].group}",
                    hint="a view and what it reads step together: put them into one group",
                )
        self.known[decl.name] = _Known(None, ddl, retracts=True)
        bases = {name: one.dataset.id for name in names if (one := self.known[name]).dataset is not None}
        return ViewProgram(
            name=decl.name,
            sql=decl.sql,
            schema=ddl,
            datasets=bases,
            views=used,
            where=str(decl.line),
            code=_view_code(decl, ddl),
            function=decl.function,
            reads=tuple(queries.match(name, self.known) for name in decl.reads),
        )

    def _table(self, name: str, known: _Known) -> Table:
        key = () if known.dataset is None else known.dataset.key
        return circuits.table_of(name, self._frame(name), key=key, append_only=not known.retracts)

    def _frame(self, name: str) -> "DataFrame":
        """An empty frame of a table; made once, since Spark is asked for it."""
        if name not in self.frames:
            self.frames[name] = self.spark.createDataFrame([], self.known[name].ddl)
        return self.frames[name]

    def _result(self, decl: ViewDecl, names: Sequence[str]) -> str:
        """The columns of a view, by Spark's analysis on empty tables."""
        frames = {name: self._frame(name) for name in names}
        try:
            if decl.function is not None:
                given = [frames[queries.match(name, self.known)] for name in decl.reads]
                return _ddl(result_of(decl.name, decl.function, given))
            with queries.over(self.spark, decl.sql, frames, f"plan{len(self.known)}") as frame:
                return _ddl(frame)
        except TidemillError:
            raise
        except Exception as error:
            raise DeclarationError(
                f"view {decl.name}: {_short(error)}", hint="see Spark's words above"
            ) from error


def _view_code(decl: ViewDecl, ddl: str) -> str:
    """The digest of all that decides a view's result: its query or function, its columns, pinned settings."""
    what: object = decl.sql
    if decl.function is not None:
        what = (code_digest(decl.function).hex(), decl.reads, decl.declared)
    return hashlib.sha256(repr((what, ddl, sorted(PINNED.items()))).encode()).hexdigest()[:32]


def _spec(view: ViewProgram) -> ViewSpec:
    return ViewSpec(
        name=view.name, code=view.code, reads=tuple(view.datasets.values()), uses=tuple(view.views)
    )


def _code(arc: ArcDecl) -> str:
    """The digest of what decides what an arc makes: its function, and its checks."""
    code = code_digest(arc.function).hex()[:32]
    checks = [(sink.name, sink.checks) for sink in arc.sinks if sink.checks]
    if not checks:
        return code
    return hashlib.sha256(code.encode() + msgspec.json.encode(checks, order="sorted")).hexdigest()[:32]


def _ddl(frame: "DataFrame") -> str:
    """The columns of a frame as files hold them."""
    return str(schema.of_spark(frame.schema).stored())


def _declared(sink: SinkDecl, ddl: str) -> str:
    return ddl if sink.schema is None else str(schema.parse(sink.schema))


@contextmanager
def _at(line: Line) -> Iterator[None]:
    """Whatever is wrong inside is told with the line of its declaration."""
    try:
        yield
    except TidemillError as error:
        if isinstance(error, QueryError) or error.message.startswith(f"{line}: "):
            raise
        raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from error


def _short(error: Exception) -> str:
    """The first lines of what Spark says: the plan behind them helps nobody."""
    text = str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0]
    return " ".join(text.split())[:600]
