"""Plan a pipeline: check its declarations, and derive what they would change in the store.

A plan is a list of stages. `Plan.apply` applies them, and `Plan.describe` describes them. Planning checks
everything that can be checked before a run: names, cycles, and which tables an arc or view may read. Spark
analyses queries and functions on empty tables (LOT-44). Every error names the line of its declaration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tidemill.errors import DatasetChanged, DeclarationError, SubscriptionChanged, TidemillError
from tidemill.events import Emit, ignore
from tidemill.lots import owners
from tidemill.lots.checks import can_drop
from tidemill.pipeline import descriptions, key_columns, retired
from tidemill.pipeline.plan import templates
from tidemill.pipeline.plan.arc_stages import DeclareArc
from tidemill.pipeline.plan.arcs import ArcPlanner
from tidemill.pipeline.plan.catalog import Catalog
from tidemill.pipeline.plan.certification import Certify
from tidemill.pipeline.plan.circuits import ViewCircuit, explained
from tidemill.pipeline.plan.costs import ViewCost, view_costs
from tidemill.pipeline.plan.planned_queries import PlannedQueries
from tidemill.pipeline.plan.sources import SourcePlanner
from tidemill.pipeline.plan.stages import DeclareDataset, PlanStage, RemovedSource, RetireDataset, StageStatus
from tidemill.pipeline.plan.views import ViewPlanner
from tidemill.pipeline.source_line import errors_at
from tidemill.runner.program import Program, TemplateArcs
from tidemill.spark import schema
from tidemill.spark.drift import effective
from tidemill.spark.expected_errors import expecting_errors
from tidemill.spark.ingest.origin_columns import SPELLED
from tidemill.store import Tx
from tidemill.views.circuit.explanation import CircuitExplanation
from tidemill.views.steps.keys import group_id

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext
    from tidemill.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Plan:
    """The program of a pipeline, and the changes to the store that applying the plan would make.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home", spark=spark)
    >>> orders = shop.dataset("orders", "id BIGINT")
    >>> [(stage["status"], stage["what"], stage["name"]) for stage in shop.plan().describe()]
    [('new', 'dataset', 'orders')]
    """

    program: Program
    stages: tuple[PlanStage, ...]
    context: "PipelineContext" = field(repr=False)
    circuits: Mapping[str, ViewCircuit] = field(default_factory=dict, repr=False)
    queries: PlannedQueries | None = field(default=None, repr=False)

    def status(self) -> list[tuple[PlanStage, StageStatus]]:
        """Return each stage with its status, such as new, unchanged or changed."""
        keys = self.context.keys
        return self.context.store.run(lambda tx: [(stage, stage.status(tx, keys)) for stage in self.stages])

    def describe(self) -> list[dict[str, str]]:
        """Describe each stage: what it declares, its name, details, line and status."""
        return [{**stage.describe(), "status": status.value} for stage, status in self.status()]

    def costs(self) -> list[ViewCost]:
        """Return the views that a run would load or rebuild, with the reason and the size of their input."""
        return view_costs(self.context, self.program)

    def refusals(self) -> list[TidemillError]:
        """Return the errors that `apply` would raise for the declarations it refuses."""
        keys = self.context.keys

        def read(tx: Tx) -> list[TidemillError]:
            errors: list[TidemillError] = []
            for stage in self.stages:
                if isinstance(stage, DeclareDataset | DeclareArc):
                    try:
                        stage.check(tx, keys)
                    except (DatasetChanged, DeclarationError, SubscriptionChanged) as error:
                        errors.append(error)
            return errors

        return self.context.store.run(read)

    def apply(self, holder: str, emit: Emit = ignore) -> None:
        """Apply the plan to the store. It is safe to do this again, and in several processes at once."""
        for stage in self.stages:
            event = stage.apply(self.context, holder)
            if event is not None:
                emit(event)
        descriptions.update(self.context, self.program, self.circuits)
        if self.queries is not None:
            self.queries.store()
        self.context.store_analyses()

    def explained(self, view: str, recomputed: Mapping[str, str]) -> CircuitExplanation:
        """Explain the circuit of a view, down to the datasets it reads.

        Args:
            view: the name of the view.
            recomputed: the views that each step recomputes, and why.
        """
        return explained(self.circuits, view, recomputed)

    def _repr_html_(self) -> str:
        from tidemill.pipeline.notebook import plan_html

        return plan_html(self.describe(), self.costs())

    def __repr__(self) -> str:
        lines = [
            f"{stage['status']:>8}  {stage['what']:<8} {stage['name']:<24} {stage['detail']}"
            for stage in self.describe()
        ]
        return "\n".join(lines) or "nothing is declared"


def make_plan(pipeline: "Pipeline") -> Plan:
    """Check the declarations of a pipeline and return its plan."""
    with pipeline.context.spark() as spark, expecting_errors():  # each error names its declaration
        catalog = Catalog(pipeline, spark)
        _plan_datasets(catalog)
        sources = {source.id: source for source in SourcePlanner(catalog).plan()}
        arc_planner, view_planner = ArcPlanner(catalog), ViewPlanner(catalog)
        stored = templates.stored_tables(pipeline)
        children = templates.children_of(pipeline, stored)
        foreign = templates.foreign_tables(pipeline, stored, children)
        for dataset in foreign.values():
            catalog.adopt(dataset)
        arcs = {arc.spec.id: arc for arc in arc_planner.plan(children, foreign)}
        groups = view_planner.plan()
        catalog.stages += templates.stages(pipeline, children)
        catalog.stages += arc_planner.removed(arcs)
        catalog.stages += _retired_datasets(catalog)
        catalog.stages += _removed_sources(catalog)
    program = Program(
        pipeline=pipeline.name,
        datasets=catalog.datasets,
        arcs=arcs,
        sources=sources,
        groups={group_id(pipeline.name, group.spec.name): group for group in groups},
        tests={stage.view: stage.test for stage in catalog.stages if isinstance(stage, Certify)},
        template_arcs=TemplateArcs(
            frozenset(templates.template_id(pipeline, name) for name in pipeline.templates),
            partial(templates.make_child, pipeline),
        ),
    )
    return Plan(program, tuple(catalog.stages), pipeline.context, view_planner.circuits, view_planner.queries)


def _retired_datasets(catalog: Catalog) -> list[RetireDataset]:
    """Return stages for datasets that the pipeline has declared, and declares no longer."""
    pipeline = catalog.pipeline
    context = pipeline.context
    planned = {stage.dataset.id for stage in catalog.stages if isinstance(stage, DeclareDataset)}
    return [
        RetireDataset(pipeline.name, dataset, retired.label(pipeline, dataset))
        for dataset, is_retired in owners.of_pipeline(context.store, context.keys.lots, pipeline.name).items()
        if not is_retired and dataset not in planned and not retired.is_declared(pipeline, dataset)
    ]


def _removed_sources(catalog: Catalog) -> list[RemovedSource]:
    """Return stages for sources that the last run had, and that are no longer declared."""
    pipeline = catalog.pipeline
    keys = descriptions.DescriptionKeys(pipeline.context.place.cluster)
    stored = pipeline.context.store.run(lambda tx: descriptions.sources(tx, keys))
    return [
        RemovedSource(pipeline.name, label, row.dataset or label, row.origin)
        for (name, label), row in stored.items()
        if name == pipeline.name and label not in pipeline.sources
    ]


def _plan_datasets(catalog: Catalog) -> None:
    for decl in catalog.pipeline.datasets.values():
        with errors_at(decl.line):
            dataset = catalog.add(effective(decl.dataset), decl.line)
            key_columns.check_columns(dataset)
            catalog.once(
                (dataset.schema, dataset.key, dataset.order_by),
                partial(key_columns.check_types, catalog.spark, dataset),
            )
            names = schema.parse(decl.schema).names
            reserved = [name for name in names if name.startswith("_") and name not in SPELLED]
            if reserved:
                raise DeclarationError(
                    f"{dataset.name} has a column with a reserved name: {reserved[0]}",
                    hint="rename it: names that begin with _ are reserved for Tidemill, except"
                    f" {', '.join(sorted(SPELLED))}",
                )
            catalog.expected(dataset, decl.checks)
            catalog.refuse_intervals(dataset, decl.checks)
            if can_drop(decl.expected) and not catalog.pipeline.sources_of(decl.dataset.name):
                catalog.quarantine(dataset.id, None, decl.line, f"checks of {dataset.name}")
