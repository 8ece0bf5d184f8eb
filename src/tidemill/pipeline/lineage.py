"""Describe the jobs and tables of a pipeline for lineage events."""

from typing import TYPE_CHECKING

from tidemill.obs.lineage import LineageGraph, LineageJob, LineageTable
from tidemill.runner.program import Program, ViewProgram
from tidemill.schemas import ddl
from tidemill.sources.source import source_id
from tidemill.views.circuit.column_lineage import column_lineage

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


def graph_of(pipeline: "Pipeline", program: Program) -> LineageGraph:
    """Return the jobs and tables of a planned pipeline."""
    views = [view for group in program.groups.values() for view in group.views]
    checks = {name: decl.checks for name, decl in pipeline.datasets.items()}
    checks |= {decl.dataset: decl.checks for decl in pipeline.sources.values()}
    for arc in program.arcs.values():
        checks |= arc.checks
    tables = {
        dataset.name: LineageTable(
            name=dataset.name, columns=_columns(dataset.schema), checks=checks.get(dataset.name, ())
        )
        for dataset in program.datasets.values()
    }
    tables |= {
        view.name: LineageTable(name=view.name, columns=_columns(view.schema), checks=view.checks)
        for view in views
    }
    return LineageGraph(
        pipeline=pipeline.name,
        tables=tables,
        arcs={
            id_: LineageJob(
                name=arc.spec.name,
                kind="ARC",
                reads=tuple(read.name for read in arc.spec.reads),
                writes=tuple(sink.dataset.name for sink in arc.spec.sinks),
            )
            for id_, arc in program.arcs.items()
        },
        sources={
            source_id(pipeline.name, label): LineageJob(
                name=f"{label}.source", kind="SOURCE", reads=(), writes=(decl.dataset,)
            )
            for label, decl in pipeline.sources.items()
        },
        views={view.name: _job_of(view) for view in views},
    )


def _job_of(view: ViewProgram) -> LineageJob:
    own = set(view.datasets) | set(view.views)
    return LineageJob(
        name=view.name,
        kind="VIEW",
        reads=tuple(sorted(own)),
        writes=(view.name,),
        sql=view.sql,
        columns=None if view.circuit is None else column_lineage(view.circuit),
    )


def _columns(schema: str) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type)) for field in ddl.parse(schema).columns)
