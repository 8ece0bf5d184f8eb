"""Planning of views: their queries by Spark's own analysis, their circuits, and the groups they make."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from tidemill.errors import DeclarationError, TidemillError
from tidemill.futures.values.code_digests import code_digest
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.chaining import chain_of
from tidemill.pipeline.declarations import ViewDecl
from tidemill.pipeline.pace import Pace, shortest, terms_of
from tidemill.pipeline.plan import circuits
from tidemill.pipeline.plan.catalog import Catalog, Known, ddl_of, short
from tidemill.pipeline.plan.certification import CertifyFunction, CertifyView
from tidemill.pipeline.plan.stages import DeclareGroups
from tidemill.pipeline.plan.view_stages import RemoveGroup
from tidemill.pipeline.source_line import at
from tidemill.runner.program import GroupProgram, ViewProgram
from tidemill.spark import queries, schema
from tidemill.spark.sessions import PINNED
from tidemill.views.certify import certificates
from tidemill.views.spark import rows
from tidemill.views.spark.crossings import ClockUse, clock_use
from tidemill.views.spark.full import result_of
from tidemill.views.sql.catalog import Table
from tidemill.views.steps import groups
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.keys import alarm_of


class ViewPlanner:
    """Plans the views of a pipeline, each behind those it reads."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pipeline = catalog.pipeline
        self.circuits: dict[str, circuits.Made] = {}

    def plan(self) -> list[GroupProgram]:
        views = self._ordered()
        members_of: dict[str, list[ViewProgram]] = {}
        for decl in views:
            with at(decl.line):
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
                    groups=tuple(one.spec for one in programs),
                    views=tuple((view.name, view.where, view.sql) for one in programs for view in one.views),
                    paces=tuple(paces.values()),
                )
            )
        self.catalog.stages += self._certified([view for one in programs for view in one.views])
        return programs

    def _refuse_recomputed(self, members: Sequence[ViewProgram]) -> None:
        """Views that shall be incremental, and would not be."""
        wanted = [view for view in members if view.refresh == "incremental"]
        reasons = chain_of(self.catalog.spark, members, self.catalog.datasets).reasons if wanted else {}
        for view in wanted:
            line = self.pipeline.views[view.name].line
            circuits.refuse_incremental(view.circuit, line, reasons.get(view.name, ""))

    def _pace(self, group: str) -> Pace:
        """The shortest that the views of a group declare."""
        members = [decl for decl in self.pipeline.views.values() if decl.group == group]
        with at(members[0].line):
            return shortest([decl.pace for decl in members])

    def _removed(self, groups_: Collection[str]) -> list[RemoveGroup]:
        """Groups of this pipeline that had views once and have none any more."""
        site, name = self.pipeline.site, self.pipeline.name
        known = site.store.run(lambda tx: groups.listed(tx, site.keys, name))
        return [RemoveGroup(name, one.spec.name) for one in known if one.spec.name not in groups_]

    def _certified(self, views: Sequence[ViewProgram]) -> Iterator[CertifyView | CertifyFunction]:
        """The comparison of each circuit with its query, as far as it was made before."""
        site = self.pipeline.site
        for view in views:
            if view.function is not None and self.pipeline.views[view.name].declared != "full":
                yield self._tried(view)
                continue
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
                written=self.circuits[view.name].written,
                tables={name: self.catalog.known[name].ddl for name in (*view.datasets, *view.views)},
                known=site.store.run(partial(certificates.read, cluster=site.place.cluster, digest=digest)),
            )

    def _tried(self, view: ViewProgram) -> CertifyFunction:
        """A function that is declared linear or keyed, and what was found of it before."""
        site, decl = self.pipeline.site, self.pipeline.views[view.name]
        tables = {name: self.catalog.known[name].ddl for name in dict.fromkeys(view.reads)}
        digest = certificates.digest_of_function(view.code, decl.declared, tables)
        assert view.function is not None
        return CertifyFunction(
            pipeline=self.pipeline.name,
            view=view.name,
            declared=decl.declared,
            where=view.where,
            digest=digest,
            function=view.function,
            reads=view.reads,
            keyed_by=() if decl.linear else decl.keyed_by,
            tables=tables,
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
                tables = {name: self._table(name, known) for name, known in self.catalog.known.items()}
                frames = {name: self.catalog.frame(name) for name in self.catalog.known}
                made = circuits.make(
                    self.catalog.spark, decl.sql, tables, frames, f"plan{len(self.catalog.known)}"
                )
                self.circuits[decl.name] = made
            names = dict.fromkeys(queries.match(name, self.catalog.known) for name in read)
            ddl = self._result(decl, list(names))
        missing = [name for name in decl.keyed_by if name not in schema.parse(ddl).names]
        if missing:
            raise DeclarationError(
                f"view {decl.name} is keyed by {missing[0]}, which it has not", hint=f"it has {ddl}"
            )
        used = tuple(name for name in names if self.catalog.known[name].dataset is None)
        for name in used:
            if self.pipeline.views[name].group != decl.group:
                raise DeclarationError(
                    f"view {decl.name} reads {name} of the group {self.pipeline.views[name].group}",
                    hint="a view and what it reads step together: put them into one group",
                )
        self.catalog.known[decl.name] = Known(None, ddl, retracts=True)
        bases = {
            name: one.dataset.id for name in names if (one := self.catalog.known[name]).dataset is not None
        }
        return ViewProgram(
            name=decl.name,
            sql=decl.sql,
            schema=ddl,
            datasets=bases,
            views=used,
            where=str(decl.line),
            code=_view_code(decl, ddl),
            function=decl.function,
            reads=tuple(queries.match(name, self.catalog.known) for name in decl.reads),
            circuit=self.circuits[decl.name].output if decl.name in self.circuits else None,
            refresh=decl.refresh,
            clock=self._clock(decl, list(names)),
        )

    def _clock(self, decl: ViewDecl, names: Sequence[str]) -> ClockUse | None:
        """What a query asks of the clock. Of a function nobody can see it."""
        if decl.function is not None:
            return None
        columns = [one for name in names for one in schema.parse(self.catalog.known[name].ddl).names]
        return clock_use(decl.sql, self.circuits[decl.name].output, columns)

    def _table(self, name: str, known: Known) -> Table:
        key = () if known.dataset is None else known.dataset.key
        return circuits.table_of(name, self.catalog.frame(name), key=key, append_only=not known.retracts)

    def _result(self, decl: ViewDecl, names: Sequence[str]) -> str:
        """The columns of a view, by Spark's analysis on empty tables."""
        frames = {name: self.catalog.frame(name) for name in names}
        try:
            if decl.function is not None:
                given = [frames[queries.match(name, self.catalog.known)] for name in decl.reads]
                made = result_of(decl.name, decl.function, given)
                rows.check_columns(decl.name, made.schema)
                return ddl_of(made)
            with queries.over(
                self.catalog.spark, decl.sql, frames, f"plan{len(self.catalog.known)}"
            ) as frame:
                rows.check_columns(decl.name, frame.schema)
                return ddl_of(frame)
        except TidemillError:
            raise
        except Exception as error:
            raise DeclarationError(
                f"view {decl.name}: {short(error)}", hint="see Spark's words above"
            ) from error


def _view_code(decl: ViewDecl, ddl: str) -> str:
    """The digest of all that decides a view's result: its query or function, its columns, pinned settings."""
    what: object = decl.sql
    if decl.function is not None:
        what = (code_digest(decl.function).hex(), decl.reads, decl.declared)
    return hashlib.sha256(repr((what, ddl, sorted(PINNED.items()))).encode()).hexdigest()[:32]


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
    """A view as it is stored; one that asks the clock also reads its group's alarm."""
    woken = () if view.clock is None else (alarm,)
    return ViewSpec(
        name=view.name, code=view.code, reads=(*view.datasets.values(), *woken), uses=tuple(view.views)
    )
