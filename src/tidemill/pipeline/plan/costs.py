"""Estimate what a run would rebuild: which views, why, and how much of their input it reads again.

A view without a table is new, and is loaded once. A view whose code changed, or that reads such a view, is
rebuilt: its state is loaded again, and the result is compared with its table. The input of both is the
complete content of the datasets that it reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.descriptions import DescriptionKeys, read_view
from tidemill.runner.program import Program, ViewProgram
from tidemill.views.steps import groups

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext

ROWS_PER_S = 200_000
"""How many rows a load reads per second, roughly: on two cores, with joins and aggregates."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a dataset."""

    lots: int = 0
    rows: int = 0
    size: int = 0


class ViewCost(msgspec.Struct, frozen=True, kw_only=True):
    """A view that a run would load.

    - rebuilds: whether the view has a table, which the result is compared with.
    - why: the reason.
    - lots, rows, size: the input; a dataset that several views read counts for each.
    - seconds: a rough estimate.
    """

    view: str
    rebuilds: bool
    why: str
    lots: int
    rows: int
    size: int
    seconds: float


def view_costs(context: "PipelineContext", program: Program) -> list[ViewCost]:
    """Return the views that a run would load, inputs first."""
    stored = context.store.run(lambda tx: groups.listed(tx, context.keys, program.pipeline))
    codes = {built.view: built.code for group in stored for built in group.built}
    loaded = {
        view.name: (view, why)
        for group in program.groups.values()
        for view, why in _loaded(context, program.pipeline, group.views, codes)
    }
    bases = {name: _bases(view, program) for name, (view, _) in loaded.items()}
    inputs = {dataset: _input(context, dataset) for dataset in set().union(*bases.values())}
    costs = []
    for name, (_, why) in loaded.items():
        read = [inputs[dataset] for dataset in bases[name]]
        rows = sum(each.rows for each in read)
        costs.append(
            ViewCost(
                view=name,
                rebuilds=name in codes,
                why=why,
                lots=sum(each.lots for each in read),
                rows=rows,
                size=sum(each.size for each in read),
                seconds=round(rows / ROWS_PER_S, 1),
            )
        )
    return costs


def _loaded(
    context: "PipelineContext", pipeline: str, views: Iterable[ViewProgram], codes: Mapping[str, str]
) -> Iterator[tuple[ViewProgram, str]]:
    """Yield the views of a group whose tables are missing or come from other code, and why."""
    changed: set[str] = set()
    for view in views:
        if view.name not in codes:
            why = "it is new"
        elif codes[view.name] != view.code:
            why = _difference(context, pipeline, view)
        elif not changed.isdisjoint(view.views):
            why = f"it reads {min(changed.intersection(view.views))}, which is rebuilt"
        else:
            continue
        if view.name in codes:
            changed.add(view.name)
        yield view, why


def _difference(context: "PipelineContext", pipeline: str, view: ViewProgram) -> str:
    keys = DescriptionKeys(context.place.cluster)
    row = context.store.run(lambda tx: read_view(tx, keys, pipeline, view.name))
    if view.function is not None:
        return "its function or its columns changed"
    if row is not None and row.sql == view.sql:
        return "its columns, a function that it calls, or settings of Spark changed"
    return "its query changed"


def _input(context: "PipelineContext", dataset: DatasetId) -> Input:
    """Count the lots of a dataset, in pages."""
    counted, last = Input(), ""
    while True:
        page = context.store.run(partial(lots.briefs, keys=context.keys.lots, dataset=dataset, after=last))
        if not page:
            return counted
        last = page[-1].lot
        counted = Input(
            lots=counted.lots + len(page),
            rows=counted.rows + sum(lot.rows for lot in page),
            size=counted.size + sum(lot.size for lot in page),
        )


def _bases(view: ViewProgram, program: Program) -> set[DatasetId]:
    """Return the datasets that a view reads, directly or through other views of its group."""
    views = {each.name: each for group in program.groups.values() for each in group.views}
    bases, names = set[DatasetId](), [view.name]
    while names:
        each = views[names.pop()]
        bases.update(each.datasets.values())
        names += each.views
    return bases
