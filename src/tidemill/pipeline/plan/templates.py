"""Templates: an arc that is declared on a pattern of tables is one arc for each table that matches (HEAP-12).

Which children there are follows from names alone: of the tables that are declared here, of those in the store
that somebody else declared, and of what the children make themselves. Whoever runs meets children of tables
that came later, and `grow` makes them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tidemill import crash
from tidemill.errors import BadTemplate, DatasetUnknown, DeclarationError
from tidemill.lots import datasets
from tidemill.lots.datasets import Dataset
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import graph
from tidemill.pipeline.declarations import ArcDecl
from tidemill.pipeline.pace import terms_of
from tidemill.pipeline.plan.arcs import ArcPlanner
from tidemill.pipeline.plan.catalog import Catalog
from tidemill.pipeline.plan.stages import Stage
from tidemill.pipeline.plan.template_stages import DeclareTemplate, RemoveTemplate
from tidemill.pipeline.source_line import at
from tidemill.runner.children import Child
from tidemill.spark.sessions import kept
from tidemill.triggers import templates
from tidemill.triggers.patterns import Pattern
from tidemill.triggers.templates import Template

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.registry import Register

PAGE = 100


def is_pattern(name: str) -> bool:
    """Does this name tables by what they have in common?"""
    return "*" in name


def template_id(pipeline: "Register", name: str) -> str:
    """A template's name in the store; its children's begin with it."""
    return graph.arc_id(pipeline, name)


def template_of(pipeline: "Register", decl: ArcDecl) -> Template:
    """A template as the store has it."""
    first, *others = (sink.name for sink in decl.sinks)
    id_ = template_id(pipeline, decl.name)
    sources = tuple(graph.id_of(pipeline, name) for name in decl.reads[1:])
    return Template(
        name=id_,
        reads=decl.reads[0],
        writes=first,
        also=tuple(others),
        terms=terms_of(decl.pace, sources, id_),
        paused=not decl.enabled,
    )


def check(pipeline: "Register", decl: ArcDecl) -> None:
    """Is this a template that can be? What is wrong is told with the line of the declaration."""
    with at(decl.line):
        if not is_pattern(decl.reads[0]) or any(is_pattern(name) for name in decl.reads[1:]):
            raise BadTemplate(
                f"template {decl.name} reads {', '.join(decl.reads)}", hint="one pattern, and that first"
            )
        template = template_of(pipeline, decl)
        for sink in decl.sinks:
            Pattern.parse_target(sink.name)
        templates.check_circles(template, [template_of(pipeline, one) for one in pipeline.templates.values()])


def children_of(pipeline: "Pipeline", there: Iterable[str] = ()) -> dict[str, ArcDecl]:
    """The children of all templates, by name: for the tables declared here, and for those that are there."""
    if not pipeline.templates:
        return {}
    known = {decl.name: template_of(pipeline, decl) for decl in pipeline.templates.values()}
    made_by: dict[str, ArcDecl] = {}
    found: dict[str, ArcDecl] = {}
    left = [decl.dataset.id for decl in pipeline.datasets.values()]
    left += [DatasetId(sink.name) for arc in pipeline.arcs.values() for sink in arc.sinks]
    left += [DatasetId(name) for name in sorted(there)]
    while left:
        table = left.pop(0)
        for name, template in known.items():
            child = _child(pipeline.templates[name], template, table)
            if child is None or child.name in found:
                continue
            _refuse_taken(pipeline, child, table.name, made_by)
            made_by |= {sink.name: child for sink in child.sinks}
            found[child.name] = child
            left += [DatasetId(sink.name) for sink in child.sinks]
    return found


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
                f"{child.line}: the template {child.template} would write {sink.name} for {table}, which is"
                f" another table, see {before[0]}",
                hint="each table has one maker: another target, or another name of that table",
            )


def theirs(
    pipeline: "Pipeline", there: Mapping[str, Dataset], children: Mapping[str, ArcDecl]
) -> dict[str, Dataset]:
    """The tables that are there and that nothing here declares or makes."""
    made = {sink.name for arc in (*pipeline.arcs.values(), *children.values()) for sink in arc.sinks}
    return {name: one for name, one in there.items() if name not in made and name not in pipeline.datasets}


def stages(pipeline: "Pipeline", children: Mapping[str, ArcDecl]) -> Iterator[Stage]:
    """The stages of all templates: behind those of what they read and write."""
    for name in removed(pipeline):
        yield RemoveTemplate(name=name)
    for decl in pipeline.templates.values():
        matches = sum(child.template == decl.name for child in children.values())
        template = template_of(pipeline, decl)
        yield DeclareTemplate(template=template, where=str(decl.line), matches=matches, pace=decl.pace)


def removed(pipeline: "Pipeline") -> list[str]:
    """Templates of this pipeline that are not declared any more, by their names in the store."""
    site, prefix = pipeline.site, template_id(pipeline, "")
    living = {template_id(pipeline, name) for name in pipeline.templates}
    known = site.store.run(partial(templates.listed, keys=site.keys.triggers, limit=templates.MOST))
    return [one.name for one in known if one.name.startswith(prefix) and one.name not in living]


def stored(pipeline: "Pipeline") -> dict[str, Dataset]:
    """The tables in the store that templates of this pipeline match, by name."""
    found: dict[str, Dataset] = {}
    for decl in pipeline.templates.values():
        template = template_of(pipeline, decl)
        for dataset in _beginning(pipeline, template.pattern.prefix):
            if template.matches(dataset.id):
                found[dataset.name] = dataset
    return found


def _beginning(pipeline: "Pipeline", prefix: str) -> Iterator[Dataset]:
    """Datasets of the store whose names begin so, in pages."""
    site = pipeline.site
    after = DatasetId(prefix, "") if prefix else None
    while True:
        page = site.store.run(partial(datasets.listed, keys=site.keys.lots, after=after, limit=PAGE))
        for dataset in page:
            if not dataset.name.startswith(prefix):
                return
            yield dataset
        if len(page) < PAGE:
            return
        after = page[-1].id


def grow(pipeline: "Pipeline", arc: str) -> Child | None:
    """Make a child that nobody planned: its table came later. None when there is no such table.

    Its tables and its row are declared; other runners may do the same at the same time.
    """
    name = arc.removeprefix(graph.arc_id(pipeline, ""))
    decl = pipeline.templates[name.partition("[")[0]]
    table = name.removeprefix(f"{decl.name}[").removesuffix("]")
    site = pipeline.site

    def read(table: DatasetId) -> Dataset:
        return site.store.run(lambda tx: datasets.read(tx, site.keys.lots, table))

    try:
        tables = [read(DatasetId(table)), *(read(graph.id_of(pipeline, one)) for one in decl.reads[1:])]
    except DatasetUnknown:
        return None
    child = children_of(pipeline, [table]).get(name)
    if child is None:
        return None
    with site.spark() as spark, kept(spark), at(child.line):
        catalog = Catalog(pipeline, spark)
        for dataset in tables:
            catalog.adopt(dataset)
        program = ArcPlanner(catalog).arc(child)
        for stage in catalog.stages:
            crash.point("template.child.before")
            stage.apply(site, "")
        crash.point("template.child.after")
    return Child(program, catalog.datasets)
