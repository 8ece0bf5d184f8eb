"""Plan views: analyse queries with Spark, compile circuits, form groups, and declare the groups.

The file is long because the planner is one class: these steps share the catalog and the planned views.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.cluster.leases import Busy
from tidemill.errors import BadCheck, DeclarationError, GroupUnknown, StoreBusy, TidemillError
from tidemill.futures.values.code_digests import code_digest
from tidemill.lots.checks import can_refuse
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.checked_views import unchecked_of
from tidemill.pipeline.declarations import ViewDecl
from tidemill.pipeline.pace import Pace, declare_schedule, shortest, terms_of
from tidemill.pipeline.plan import circuits
from tidemill.pipeline.plan.catalog import Catalog, KnownTable, LazyTables, ddl_of
from tidemill.pipeline.plan.certification import CertifyFunction, CertifyView
from tidemill.pipeline.plan.copied_views import copied_views, with_copied
from tidemill.pipeline.plan.planned_queries import PlannedQueries, PlannedQuery
from tidemill.pipeline.plan.stages import StageStatus
from tidemill.pipeline.source_line import errors_at
from tidemill.runner.program import GroupProgram, ViewProgram
from tidemill.spark import queries, schema
from tidemill.spark.frame_checks import verify
from tidemill.spark.messages import short
from tidemill.spark.on_demand import when_started
from tidemill.spark.sessions import PINNED
from tidemill.store import Tx, long_values
from tidemill.triggers import schedules
from tidemill.views.certify import certificates
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.view_tests import CircuitTest, FunctionTest
from tidemill.views.circuit.functions import UserFunction
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.spark import weighted_rows
from tidemill.views.spark.clock_alarms import ClockUse, clock_use
from tidemill.views.spark.recompute import result_of
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.steps import groups
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.keys import StepKeys, alarm_of, group_id

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tidemill.pipeline.context import PipelineContext

CIRCUIT_VERSION = "1"


@dataclass(frozen=True)
class DeclareGroups:
    """Declare all groups of views, and the circuit that they form together.

    - views: name, line and query of each view.
    - paces: the paces of the groups, in the same order.
    """

    pipeline: str
    groups: tuple[GroupSpec, ...]
    views: tuple[tuple[str, str, str], ...]
    paces: tuple[Pace, ...]

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        stored = {group.spec.name: group.spec for group in groups.listed(tx, keys, self.pipeline)}
        if not stored:
            return StageStatus.NEW
        same = all(stored.get(group.name) == group for group in self.groups)
        return StageStatus.SAME if same else StageStatus.CHANGED

    def apply(self, context: "PipelineContext", holder: str) -> None:
        for group, pace in zip(self.groups, self.paces, strict=True):
            context.store.run(partial(self._declare, context=context, group=group, pace=pace))
        declare = partial(
            groups.declare_circuit,
            keys=context.keys,
            pipeline=self.pipeline,
            version=CIRCUIT_VERSION,
            holder=holder,
        )
        _retry_while_busy(context.clock, lambda: context.store.run(declare))

    def _declare(self, tx: Tx, context: "PipelineContext", group: GroupSpec, pace: Pace) -> None:
        name = group_id(self.pipeline, group.name)
        declare_schedule(tx, context.keys.triggers, context.keys.lots, pace, name)
        groups.declare(tx, context.keys, self.pipeline, group)

    def describe(self) -> dict[str, str]:
        return {
            "what": "views",
            "name": ", ".join(group.name for group in self.groups),
            "detail": ", ".join(name for name, _, _ in self.views),
            "where": self.views[0][1],
        }


def _retry_while_busy(clock: Clock, act: Callable[[], object], tries: int = 100) -> None:
    for _ in range(tries):
        if not isinstance(act(), Busy):
            return
        clock.sleep(0.1)
    raise StoreBusy(
        "another process is coordinating the views of this pipeline",
        hint="wait until it has finished, then retry",
    )


@dataclass(frozen=True)
class RemoveGroup:
    """Stop a group that has no more views, and remove its subscription."""

    pipeline: str
    name: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        try:
            groups.read(tx, keys, self.pipeline, self.name)
        except GroupUnknown:
            return StageStatus.SAME
        return StageStatus.REMOVED

    def apply(self, context: "PipelineContext", holder: str) -> None:
        def step(tx: Tx) -> None:
            groups.remove(tx, context.keys, self.pipeline, self.name)
            schedules.remove(tx, context.keys.triggers, group_id(self.pipeline, self.name))

        context.store.run(step)

    def describe(self) -> dict[str, str]:
        return {"what": "views", "name": self.name, "detail": "no longer declared", "where": ""}


@dataclass(frozen=True)
class RemovedView:
    """Show a view that is no longer declared. The stage of its group retires the view."""

    pipeline: str
    group: str
    name: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        try:
            stored = groups.read(tx, keys, self.pipeline, self.group)
        except GroupUnknown:
            return StageStatus.SAME
        return StageStatus.REMOVED if self.name in stored.spec.names else StageStatus.SAME

    def apply(self, context: "PipelineContext", holder: str) -> None:
        """Remove the plan of its query. Another stage declares or removes the group."""
        keys = context.keys
        key = keys.planned[self.pipeline, self.name]
        context.store.run(lambda tx: long_values.clear_long(tx, keys.more, key))

    def describe(self) -> dict[str, str]:
        detail = f"no longer declared; its last table stays readable; to delete it: tidemill drop {self.name}"
        return {"what": "view", "name": self.name, "detail": detail, "where": ""}


class ViewPlanner:
    """Plans the views of a pipeline, each after the views it reads."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pipeline = catalog.pipeline
        self.circuits: dict[str, circuits.ViewCircuit] = {}
        self.queries = PlannedQueries(self.pipeline.context, catalog.engine)
        self._views: dict[str, ViewProgram] = {}  # planned so far

    def plan(self) -> list[GroupProgram]:
        """Plan all views; return their groups."""
        for function in self.pipeline.functions.values():
            with errors_at(function.line):
                when_started(self.catalog.spark, f"function {function.name}", function.register)
        members_of: dict[str, list[ViewProgram]] = {}
        for decl in self._ordered():
            with errors_at(decl.line):
                members_of.setdefault(decl.group, []).append(self._view(decl))
        for members in members_of.values():
            self._refuse_recomputed(members)
        paces = {name: self._pace(name) for name in members_of}
        programs = [
            GroupProgram(spec=_group(self.pipeline.name, name, members, paces[name]), views=tuple(members))
            for name, members in members_of.items()
        ]
        self.catalog.stages += self._removed(members_of)
        if programs:
            self.catalog.stages.append(
                DeclareGroups(
                    pipeline=self.pipeline.name,
                    groups=tuple(group.spec for group in programs),
                    views=tuple(
                        (view.name, view.where, view.sql) for group in programs for view in group.views
                    ),
                    paces=tuple(paces.values()),
                )
            )
        self.catalog.stages += self._certifications([view for group in programs for view in group.views])
        return programs

    def _refuse_recomputed(self, members: Sequence[ViewProgram]) -> None:
        """Refuse views that are declared incremental but would be recomputed."""
        incremental = [view for view in members if view.refresh == "incremental"]
        if not incremental:
            return
        reasons = circuits.chain_of(self.catalog.spark, members, self.catalog.datasets).not_incremental
        for view in incremental:
            line = self.pipeline.views[view.name].line
            circuits.refuse_incremental(view.circuit, line, reasons.get(view.name, ""))

    def _pace(self, group: str) -> Pace:
        """Return the shortest pace that the views of a group declare."""
        members = [decl for decl in self.pipeline.views.values() if decl.group == group]
        with errors_at(members[0].line):
            return shortest([decl.pace for decl in members])

    def _removed(self, declared: Collection[str]) -> list[RemoveGroup | RemovedView]:
        """Return stages for views that are no longer declared, and for groups that have no views left."""
        context, name = self.pipeline.context, self.pipeline.name
        stored = context.store.run(lambda tx: groups.listed(tx, context.keys, name))
        views = [
            RemovedView(name, group.spec.name, view.name)
            for group in stored
            for view in group.spec.views
            if view.name not in self.pipeline.views
        ]
        return [
            *views,
            *(RemoveGroup(name, group.spec.name) for group in stored if group.spec.name not in declared),
        ]

    def _certifications(self, views: Sequence[ViewProgram]) -> Iterator[CertifyView | CertifyFunction]:
        """Return the stages that compare circuits with their queries, or test linear and keyed functions."""
        tests: list[tuple[ViewProgram, CircuitTest | FunctionTest]] = []
        copied = {name for view in views for name in view.copied}
        for view in views:
            decl = self.pipeline.views[view.name]
            if view.function is not None and decl.declared != "full":
                tests.append((view, self._function_test(view)))
            elif view.name in self.circuits and (decl.refresh != "full" or view.name in copied):
                tests.append((view, self._circuit_test(view)))
        stored = self._certificates([test.digest for _, test in tests])
        for view, test in tests:
            stage = CertifyFunction if isinstance(test, FunctionTest) else CertifyView
            yield stage(view.where, test, stored[test.digest])

    def _certificates(self, tested: Sequence[str]) -> dict[str, ViewCertificate | None]:
        """Read the certificates of tests in one transaction, by digest."""
        context = self.pipeline.context
        cluster = context.place.cluster
        if not tested:
            return {}
        return context.store.run(
            lambda tx: {digest: certificates.read(tx, cluster, digest) for digest in tested}
        )

    def _circuit_test(self, view: ViewProgram) -> CircuitTest:
        """Return the test that compares the circuit of a view with its query."""
        circuit = self.circuits[view.name]
        return CircuitTest(
            pipeline=self.pipeline.name,
            view=view.name,
            digest=certificates.digest_of(view.code, circuit.output, self.catalog.engine.version),
            group=self.pipeline.views[view.name].group,
            tables={
                name: self.catalog.tables[name].ddl for name in self._names(self.pipeline.views[view.name])
            },
            sql=view.sql,
            output=circuit.output,
            written=circuit.written,
        )

    def _function_test(self, view: ViewProgram) -> FunctionTest:
        """Return the test of a function which is declared linear or keyed."""
        decl = self.pipeline.views[view.name]
        tables = {name: self.catalog.tables[name].ddl for name in dict.fromkeys(view.reads)}
        assert view.function is not None
        return FunctionTest(
            pipeline=self.pipeline.name,
            view=view.name,
            digest=certificates.digest_of_function(
                view.code, decl.declared, tables, self.catalog.engine.version
            ),
            tables=tables,
            declared=decl.declared,
            function=view.function,
            reads=view.reads,
            keyed_by=() if decl.linear else decl.keyed_by,
        )

    def _ordered(self) -> list[ViewDecl]:
        """Return the views, each after the views it reads."""
        unordered = dict(self.pipeline.views)
        ordered: list[ViewDecl] = []
        reads = {
            view.name: {name.lower() for name in (*self._reads(view), *_waits_for(view))}
            for view in unordered.values()
        }
        while unordered:
            waiting = {name.lower() for name in unordered}
            ready = [view for view in unordered.values() if not reads[view.name] & waiting]
            if not ready:
                view = next(iter(unordered.values()))
                raise DeclarationError(
                    f"{view.line}: views form a cycle: {' -> '.join(unordered)}",
                    hint="remove one of these inputs to break the cycle",
                )
            ordered += [unordered.pop(view.name) for view in ready]
        return ordered

    def _reads(self, view: ViewDecl) -> list[str]:
        if view.function is not None:
            return list(view.reads)
        with circuits.query_errors_at(view.line, view.sql):
            return [table.name for table in queries.table_names(view.sql)]

    def _view(self, decl: ViewDecl) -> ViewProgram:
        """Plan one view. All its inputs are in the catalog."""
        with circuits.query_errors_at(decl.line, decl.sql):
            query = None if decl.function is not None else self._query(decl)
            names = self._names(decl)
            ddl = self._function_result(decl, names) if query is None else query.ddl
        if query is not None:
            functions = {function.name: function.digest for function in self._functions(decl)}
            self.circuits[decl.name] = replace(query.circuit, functions=functions)
        missing = [name for name in decl.keyed_by if name not in schema.parse(ddl).names]
        if missing:
            raise DeclarationError(
                f'view {decl.name} has no column "{missing[0]}" to use as a key',
                hint=f"use one of its columns: {ddl}",
            )
        views = [name for name in names if self.catalog.tables[name].dataset is None]
        used = tuple(name for name in views if self.pipeline.views[name].group == decl.group)
        others = [name for name in views if name not in used]
        copied = copied_views(decl.name, others, self._views, self.circuits)
        self.catalog.tables[decl.name] = KnownTable(None, ddl, retracts=True)
        bases = {
            name: table.dataset.id
            for name in names
            if (table := self.catalog.tables[name]).dataset is not None
        }
        for view in copied:
            bases |= view.datasets
        program = ViewProgram(
            name=decl.name,
            sql=decl.sql,
            schema=ddl,
            datasets=bases,
            views=used,
            where=str(decl.line),
            code=_view_code(decl, ddl, self._functions(decl), [view.code for view in copied]),
            function=decl.function,
            reads=tuple(queries.match(name, self.catalog.tables) for name in decl.reads),
            circuit=None if query is None else with_copied(query.circuit.output, copied, self.circuits),
            refresh=decl.refresh,
            clock=None if query is None else query.clock,
            copied=tuple(view.name for view in copied),
            checks=decl.checks,
            failures=decl.failures,
            checked=decl.checked,
        )
        self._views[decl.name] = program
        return program

    def _query(self, decl: ViewDecl) -> PlannedQuery:
        """Return the plan of a view's query."""
        text = decl.sql.lower()
        mentioned = [item for item in self.catalog.tables.items() if item[0].lower() in text]
        facts = (
            decl.sql,
            *self._functions(decl),
            *((name, *self._facts(table)) for name, table in mentioned),
        )
        return self.queries.get(
            decl.name, facts, partial(self._plan_query, decl), partial(self._clock_use, decl)
        )

    def _plan_query(self, decl: ViewDecl) -> PlannedQuery:
        catalog = self.catalog
        if decl.checked:
            self._verify_checks(self.pipeline.views[decl.checked])
        tables = LazyTables(catalog.tables, self._table)
        frames = LazyTables(catalog.tables, catalog.frame)
        tag = f"plan{len(catalog.tables)}"
        analysed: list[StructType] = []
        circuit = circuits.make(
            catalog.spark, decl.sql, tables, frames, tag, analysed.append, self._functions(decl)
        )
        columns = analysed[0]  # Spark analyses the query first, and then its operators
        weighted_rows.check_columns(decl.name, columns)
        return PlannedQuery(circuit, ddl_of(columns), self._clock_use(decl, circuit.output))

    def _verify_checks(self, decl: ViewDecl) -> None:
        """Raise `BadCheck` if the checks of a view do not fit its columns, or those of other tables."""
        tables = self.catalog.tables
        original = decl.name if decl.name in tables else unchecked_of(decl.name)
        verify(self.catalog.frame(original), decl.checks)
        for check in decl.checks:
            if check.kind != "foreign_key":
                continue
            table = queries.match(check.references, tables)
            missing = [name for name in check.to if name not in self.catalog.frame(table).columns]
            if missing:
                raise BadCheck(
                    f"the check {check.name} uses the column {missing[0]} of {table}, which does not exist",
                    hint=f"use one of {', '.join(self.catalog.frame(table).columns)}",
                )

    def _functions(self, decl: ViewDecl) -> tuple[UserFunction, ...]:
        """Return the declared functions that a query may call: its text has their names."""
        text = decl.sql.lower()
        declared = self.pipeline.functions.items()
        return tuple(function.declared for name, function in declared if name in text)

    def _clock_use(self, decl: ViewDecl, output: ViewOutput) -> ClockUse | None:
        tables = self.catalog.tables
        columns = [column for name in self._names(decl) for column in schema.parse(tables[name].ddl).names]
        return clock_use(decl.sql, output, columns)

    def _names(self, decl: ViewDecl) -> list[str]:
        """Return the tables that a view reads, without duplicates."""
        return list(dict.fromkeys(queries.match(name, self.catalog.tables) for name in self._reads(decl)))

    @staticmethod
    def _facts(table: KnownTable) -> tuple[str, tuple[str, ...], bool]:
        """Return what the plan of a query depends on: columns, key, and whether rows can be removed."""
        return table.ddl, () if table.dataset is None else tuple(table.dataset.key), table.retracts

    def _table(self, name: str) -> QueryTable:
        table = self.catalog.tables[name]
        _, key, _ = self._facts(table)
        return circuits.table_of(name, self.catalog.frame(name), key=key, append_only=not table.retracts)

    def _function_result(self, decl: ViewDecl, names: Sequence[str]) -> str:
        """Return the columns of a view's function, which Spark derives from empty tables."""
        function = decl.function
        assert function is not None
        question = ("function", code_digest(function), [self.catalog.tables[name].ddl for name in names])
        return self.catalog.ask(question, lambda: self._ask_function(decl, names), str)

    def _ask_function(self, decl: ViewDecl, names: Sequence[str]) -> str:
        assert decl.function is not None
        frames = {name: self.catalog.frame(name) for name in names}
        try:
            arguments = [frames[queries.match(name, self.catalog.tables)] for name in decl.reads]
            result = result_of(self.catalog.spark, decl.name, decl.function, arguments)
            weighted_rows.check_columns(decl.name, result.schema)
            return ddl_of(result.schema)
        except TidemillError:
            raise
        except Exception as error:
            raise DeclarationError(
                f"view {decl.name}: {short(error)}",
                hint="fix the function; this error message comes from Spark",
            ) from error


def _waits_for(view: ViewDecl | ViewProgram) -> tuple[str, ...]:
    """Return the view that must be computed before a view, although the view does not read it.

    A check can refuse the rows of the view. So the view with the rows that fail is computed first, and while
    that one is set aside, this one is too.
    """
    return (view.failures,) if can_refuse(view.checks) else ()


def _view_code(decl: ViewDecl, ddl: str, functions: Sequence[UserFunction], copied: Sequence[str]) -> str:
    """Return a digest of what determines a view's result: query or function, columns, pinned settings.

    - functions: the declared functions that it calls.
    - copied: the digests of the views of other groups that it reads.
    """
    source: object = (decl.sql, *functions) if functions else decl.sql
    if decl.function is not None:
        source = (code_digest(decl.function).hex(), decl.reads, decl.declared)
    facts = (source, ddl, sorted(PINNED.items()), *copied)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _group(pipeline: str, name: str, views: Sequence[ViewProgram], pace: Pace) -> GroupSpec:
    terms = terms_of(pace, (), name)
    return GroupSpec(
        name=name,
        views=tuple(_spec(view, alarm_of(pipeline, name)) for view in views),
        cadence_us=terms.cadence_us,
        debounce_us=terms.debounce_us,
        max_wait_us=terms.max_wait_us,
        gated=terms.gate is not None,
        most_failures=terms.most_failures,
        catch_up=terms.catch_up,
    )


def _spec(view: ViewProgram, alarm: DatasetId) -> ViewSpec:
    """Return the stored form of a view; a view that uses the clock also reads its group's alarm."""
    alarms = () if view.clock is None else (alarm,)
    return ViewSpec(
        name=view.name,
        code=view.code,
        reads=(*view.datasets.values(), *alarms),
        uses=(*view.views, *_waits_for(view)),
    )
