"""Planning: what declarations come to, and what they would change in the store.

A plan is a list of stages, small values with two interpreters: `Plan.apply` carries them out, `Plan.describe`
says what they are. Making one checks everything that can be checked before anything runs: names, circles,
who may read what, queries and functions by Spark's own analysis on empty tables (LOT-44). Every complaint
names the line of the declaration it is about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tidemill.errors import DeclarationError
from tidemill.events import Emit, ignore
from tidemill.lots.checks import drops
from tidemill.pipeline.plan import circuits
from tidemill.pipeline.plan import datasets as keyed
from tidemill.pipeline.plan import templates as fanout
from tidemill.pipeline.plan.arcs import ArcPlanner
from tidemill.pipeline.plan.catalog import Catalog
from tidemill.pipeline.plan.sources import SourcePlanner
from tidemill.pipeline.plan.stages import Stage, Status
from tidemill.pipeline.plan.views import ViewPlanner
from tidemill.pipeline.source_line import at
from tidemill.pipeline.writes import spelled
from tidemill.runner.children import Children
from tidemill.runner.program import Program
from tidemill.spark import schema
from tidemill.views.circuit.explain import Explained
from tidemill.views.steps.keys import group_id

if TYPE_CHECKING:
    from tidemill.pipeline.context import Site
    from tidemill.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Plan:
    """What a pipeline consists of, and what applying it would change in the store.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home", spark=spark)
    >>> orders = shop.dataset("orders", "id BIGINT")
    >>> [(stage["status"], stage["what"], stage["name"]) for stage in shop.plan().describe()]
    [('new', 'dataset', 'orders')]
    """

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
        catalog = Catalog(pipeline, spark)
        _plan_datasets(catalog)
        sources = {one.id: one for one in SourcePlanner(catalog).plan()}
        planner, views = ArcPlanner(catalog), ViewPlanner(catalog)
        there = fanout.stored(pipeline)
        children = fanout.children_of(pipeline, there)
        theirs = fanout.theirs(pipeline, there, children)
        for dataset in theirs.values():
            catalog.adopt(dataset)
        arcs = {one.spec.id: one for one in planner.plan(children, theirs)}
        groups = views.plan()
        catalog.stages += fanout.stages(pipeline, children)
        catalog.stages += planner.removed(arcs)
    program = Program(
        pipeline=pipeline.name,
        datasets=catalog.datasets,
        arcs=arcs,
        sources=sources,
        groups={group_id(pipeline.name, one.spec.name): one for one in groups},
        children=Children(
            frozenset(fanout.template_id(pipeline, name) for name in pipeline.templates),
            partial(fanout.grow, pipeline),
        ),
    )
    return Plan(program, tuple(catalog.stages), pipeline.site, views.circuits)


def _plan_datasets(catalog: Catalog) -> None:
    for decl in catalog.pipeline.datasets.values():
        with at(decl.line):
            dataset = catalog.add(spelled(decl.dataset), decl.line)
            keyed.check_columns(dataset)
            keyed.check_types(catalog.spark, dataset)
            ours = [name for name in schema.parse(decl.schema).names if name.startswith("_")]
            if ours:
                raise DeclarationError(
                    f"{dataset.name} has the column {ours[0]}",
                    hint="names that begin with _ are Tidemill's own",
                )
            catalog.expected(dataset, decl.checks)
            catalog.refuse_intervals(dataset, decl.checks)
            if drops(decl.expected) and decl.dataset.name not in catalog.pipeline.sources:
                catalog.quarantine(dataset.id, None, decl.line, f"checks of {dataset.name}")
