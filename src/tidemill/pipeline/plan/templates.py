"""Plan the arcs of templates: an arc that reads a pattern becomes one arc for each matching table (HEAP-12).

The arcs of a template depend only on the names of tables: tables that this pipeline declares, tables of other
pipelines in the store, and tables that the arcs themselves write. If a table is created later, a runner calls
`make_child`, which plans and declares the table's arc.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tidemill import crash
from tidemill.errors import BadTemplate, DatasetUnknown, DeclarationError
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import graph
from tidemill.pipeline.declarations import ArcDecl
from tidemill.pipeline.pace import terms_of
from tidemill.pipeline.plan.arcs import ArcPlanner
from tidemill.pipeline.plan.catalog import Catalog
from tidemill.pipeline.plan.stages import PlanStage
from tidemill.pipeline.plan.template_stages import DeclareTemplate, RemoveTemplate
from tidemill.pipeline.source_line import errors_at
from tidemill.runner.program import TemplateArc
from tidemill.spark.sessions import repinned
from tidemill.triggers import templates
from tidemill.triggers.patterns import Pattern
from tidemill.triggers.templates import Template

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.registry import Registry

PAGE = 100


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern for several tables."""
    return "*" in name


def template_id(pipeline: "Registry", name: str) -> str:
    """Return a template's name in the store. The stored names of its arcs begin with this name."""
    return graph.arc_id(pipeline, name)


def template_of(pipeline: "Registry", decl: ArcDecl) -> Template:
    """Return the stored form of a template."""
    first, *also = (sink.name for sink in decl.sinks)
    id_ = template_id(pipeline, decl.name)
    sources = tuple(graph.id_of(pipeline, name) for name in decl.reads[1:])
    return Template(
        name=id_,
        reads=decl.reads[0],
        writes=first,
        also=tuple(also),
        terms=terms_of(decl.pace, sources, id_),
        paused=not decl.enabled,
    )


def check(pipeline: "Registry", decl: ArcDecl) -> None:
    """Check a template; errors name the line of the declaration."""
    with errors_at(decl.line):
        if not is_pattern(decl.reads[0]) or any(is_pattern(name) for name in decl.reads[1:]):
            raise BadTemplate(
                f"template {decl.name} has an invalid list of inputs: {', '.join(decl.reads)}",
                hint="in reads=, the first table must be a pattern, and all others must be plain names",
            )
        template = template_of(pipeline, decl)
        for sink in decl.sinks:
            Pattern.parse_target(sink.name)
        templates.check_cycles(
            template, [template_of(pipeline, other) for other in pipeline.templates.values()]
        )


def children_of(pipeline: "Pipeline", stored: Iterable[str] = ()) -> dict[str, ArcDecl]:
    """Return the arcs of all templates, by name, for tables of this pipeline and for stored tables."""
    if not pipeline.templates:
        return {}
    declared = {decl.name: template_of(pipeline, decl) for decl in pipeline.templates.values()}
    made_by: dict[str, ArcDecl] = {}
    children: dict[str, ArcDecl] = {}
    tables = [decl.dataset.id for decl in pipeline.datasets.values()]
    tables += [DatasetId(sink.name) for arc in pipeline.arcs.values() for sink in arc.sinks]
    tables += [DatasetId(name) for name in sorted(stored)]
    while tables:
        table = tables.pop(0)
        for name, template in declared.items():
            child = _child(pipeline.templates[name], template, table)
            if child is None or child.name in children:
                continue
            _refuse_taken(pipeline, child, table.name, made_by)
            made_by |= {sink.name: child for sink in child.sinks}
            children[child.name] = child
            tables += [DatasetId(sink.name) for sink in child.sinks]
    return children


def _child(decl: ArcDecl, template: Template, table: DatasetId) -> ArcDecl | None:
    part = template.pattern.match(table.name)
    if part is None or not template.matches(table):
        return None
    sinks = tuple(replace(sink, name=Pattern.parse_target(sink.name).fill(part)) for sink in decl.sinks)
    return replace(
        decl,
        name=f"{decl.name}[{table.name}]",
        reads=(table.name, *decl.reads[1:]),
        sinks=sinks,
        template=decl.name,
    )


def _refuse_taken(pipeline: "Pipeline", child: ArcDecl, table: str, made_by: dict[str, ArcDecl]) -> None:
    for sink in child.sinks:
        before = [where for _, where in pipeline.declared_at(sink.name)]
        if sink.name in made_by:
            before.append(made_by[sink.name].line)
        if before:
            raise DeclarationError(
                f"{child.line}: the template {child.template} would write {sink.name} for {table}, but"
                f" {sink.name} is declared at {before[0]}",
                hint="change the target of the template, or rename that table",
            )


def foreign_tables(
    pipeline: "Pipeline", stored: Mapping[str, DatasetRow], children: Mapping[str, ArcDecl]
) -> dict[str, DatasetRow]:
    """Return the stored tables that this pipeline neither declares nor writes."""
    written = {sink.name for arc in (*pipeline.arcs.values(), *children.values()) for sink in arc.sinks}
    return {
        name: table for name, table in stored.items() if name not in written and name not in pipeline.datasets
    }


def stages(pipeline: "Pipeline", children: Mapping[str, ArcDecl]) -> Iterator[PlanStage]:
    """Return the stages of all templates. They must come after the stages of the tables they use."""
    for name in _removed(pipeline):
        yield RemoveTemplate(name=name)
    for decl in pipeline.templates.values():
        matches = sum(child.template == decl.name for child in children.values())
        template = template_of(pipeline, decl)
        yield DeclareTemplate(template=template, where=str(decl.line), matches=matches, pace=decl.pace)


def _removed(pipeline: "Pipeline") -> list[str]:
    """Return the stored names of templates of this pipeline that are no longer declared."""
    context, prefix = pipeline.context, template_id(pipeline, "")
    declared = {template_id(pipeline, name) for name in pipeline.templates}
    stored = context.store.run(partial(templates.listed, keys=context.keys.triggers, limit=templates.MOST))
    return [row.name for row in stored if row.name.startswith(prefix) and row.name not in declared]


def stored_tables(pipeline: "Pipeline") -> dict[str, DatasetRow]:
    """Return the tables in the store that templates of this pipeline match, by name."""
    tables: dict[str, DatasetRow] = {}
    for decl in pipeline.templates.values():
        template = template_of(pipeline, decl)
        for dataset in _tables_with_prefix(pipeline, template.pattern.prefix):
            if template.matches(dataset.id):
                tables[dataset.name] = dataset
    return tables


def _tables_with_prefix(pipeline: "Pipeline", prefix: str) -> Iterator[DatasetRow]:
    """Yield the stored datasets whose names begin with a prefix, page by page."""
    context = pipeline.context
    after = DatasetId(prefix, "") if prefix else None
    while True:
        page = context.store.run(partial(datasets.listed, keys=context.keys.lots, after=after, limit=PAGE))
        for dataset in page:
            if not dataset.name.startswith(prefix):
                return
            yield dataset
        if len(page) < PAGE:
            return
        after = page[-1].id


def make_child(pipeline: "Pipeline", arc: str) -> TemplateArc | None:
    """Plan and declare the arc of a template for a table that was created after the plan.

    Return None if one of the tables does not exist, or if the template does not match.

    Other runners may declare the same arc at the same time: equal declarations change nothing.
    """
    name = arc.removeprefix(graph.arc_id(pipeline, ""))
    decl = pipeline.templates[name.partition("[")[0]]
    table = name.removeprefix(f"{decl.name}[").removesuffix("]")
    context = pipeline.context

    def read(table: DatasetId) -> DatasetRow:
        return context.store.run(lambda tx: datasets.read(tx, context.keys.lots, table))

    try:
        tables = [read(DatasetId(table)), *(read(graph.id_of(pipeline, other)) for other in decl.reads[1:])]
    except DatasetUnknown:
        return None
    child = children_of(pipeline, [table]).get(name)
    if child is None:
        return None
    with context.spark() as spark, repinned(spark), errors_at(child.line):
        catalog = Catalog(pipeline, spark)
        for dataset in tables:
            catalog.adopt(dataset)
        program = ArcPlanner(catalog).arc(child)
        for stage in catalog.stages:
            crash.point("template.child.before")
            stage.apply(context, "")
        crash.point("template.child.after")
    return TemplateArc(program, catalog.datasets)
