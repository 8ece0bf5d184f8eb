"""Retry views that are set aside, or let them pass over the lots on which they fail (DBSP-40).

A retry needs no new input: it writes a record, and the step of that record computes the views again.

A view that passes over lots is computed without them, or with earlier generations of them, until the lots get
new generations or the view is edited. The other views still read the current generations.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidemill import crash
from tidemill.cluster.leases import Busy
from tidemill.errors import GroupUnknown, StoreBusy, UsageError
from tidemill.lots import lots as lot_rows
from tidemill.store import Tx
from tidemill.views.steps import failed_views, groups
from tidemill.views.steps.failed_views import FailedView, PassedLot

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

TRIES = 100
PAUSE_S = 0.1


def retry(pipeline: "Pipeline", name: str | None = None) -> list[str]:
    """Retry the views that are set aside: all of them, one view, or the views of a group.

    Returns the views that the next step computes again. A view that only waits for another one is not among
    them.
    """
    chosen: dict[str, set[str]] = {}
    for view, declared in pipeline.views.items():
        if name in (None, view, declared.group):
            chosen.setdefault(declared.group, set()).add(view)
    retried: list[str] = []
    for group, views in chosen.items():
        retried += _requested(
            pipeline,
            partial(
                failed_views.request_try,
                keys=pipeline.context.keys,
                pipeline=pipeline.name,
                group=group,
                views=views,
                holder=_holder(pipeline),
            ),
        )
    return retried


def pass_over(
    pipeline: "Pipeline", view: str, lots: Sequence[str] = (), generations: Mapping[str, int] | None = None
) -> list[PassedLot]:
    """Let a view that is set aside pass over lots; return these lots.

    Args:
        pipeline: the pipeline.
        view: the view. If it waits for another view that failed, name that view.
        lots: the lots to pass over; by default those on which the view failed.
        generations: lots of which the view reads an earlier generation instead.
    """
    declared = pipeline.views.get(view)
    if declared is None:
        raise UsageError(f"{view} is not a view", hint="pass the name of a view that is set aside")
    if declared.refresh == "incremental":
        raise UsageError(
            f"view {view} has refresh='incremental', but a view that passes over lots is recomputed",
            hint="declare it with refresh='auto', or correct the rows",
        )
    passed: list[PassedLot] = []

    def request(tx: Tx) -> list[str] | Busy:
        row = _failed(tx, pipeline, view)
        chosen = _chosen(row, lots, generations or {})
        passed[:] = _passed_lots(tx, pipeline, view, chosen)
        return failed_views.pass_over(
            tx, pipeline.context.keys, pipeline.name, declared.group, view, passed, _holder(pipeline)
        )

    _requested(pipeline, request)
    return passed


def _failed(tx: Tx, pipeline: "Pipeline", view: str) -> FailedView:
    row = failed_views.listed(tx, pipeline.context.keys, pipeline.name, pipeline.views[view].group).get(view)
    if row is None or not row.is_aside:
        raise UsageError(
            f"view {view} is not set aside", hint="tidemill status shows the views that are set aside"
        )
    if row.cause:
        raise UsageError(
            f"view {view} waits for the view {row.cause}, which failed", hint=f"retry the view {row.cause}"
        )
    return row


def _chosen(row: FailedView, lots: Sequence[str], generations: Mapping[str, int]) -> dict[str, int]:
    """Return the generation to use of each lot; -1 for none."""
    chosen = dict.fromkeys(lots, -1)
    if not lots and not generations:
        chosen = {lot.lot: -1 for lot in row.input.lots}
    chosen |= generations
    if not chosen:
        raise UsageError(
            f"it is not known on which lots the view {row.view} fails",
            hint=f"name them: tidemill retry {row.view} LOT --skip",
        )
    return chosen


def _passed_lots(tx: Tx, pipeline: "Pipeline", view: str, chosen: Mapping[str, int]) -> list[PassedLot]:
    """Find the lots in the datasets that the view reads."""
    keys = pipeline.context.keys
    try:
        spec = groups.read(tx, keys, pipeline.name, pipeline.views[view].group).spec
    except GroupUnknown:
        raise UsageError(f"view {view} has no step yet", hint="run the pipeline first") from None
    datasets = sorted(next(each.reads for each in spec.views if each.name == view))
    passed = []
    for lot, generation in chosen.items():
        rows = [row for dataset in datasets if (row := lot_rows.current(tx, keys.lots, dataset, lot))]
        if not rows:
            raise UsageError(
                f"view {view} reads no dataset with the lot {lot}",
                hint=f"it reads: {', '.join(dataset.name for dataset in datasets) or 'only other views'}",
            )
        for row in rows:
            if not -1 <= generation < row.generation:
                raise UsageError(
                    f"lot {lot} of {row.dataset.name} has no generation {generation} before the current one",
                    hint=f"the current generation is {row.generation}; use an earlier one, or --skip",
                )
            passed.append(PassedLot(row.dataset, lot, row.generation, generation))
    return passed


def _holder(pipeline: "Pipeline") -> str:
    return f"retry-{pipeline.context.chance.getrandbits(64):x}"


def _requested(pipeline: "Pipeline", request: Callable[[Tx], list[str] | Busy]) -> list[str]:
    """Run a request until no other process is the coordinator."""
    context = pipeline.context
    for _ in range(TRIES):
        crash.point("views.retry.before")
        views = context.store.run(request)
        crash.point("views.retry.after")
        if not isinstance(views, Busy):
            return views
        context.clock.sleep(PAUSE_S)
    raise StoreBusy(
        "another process is coordinating the views of this pipeline",
        hint="wait until it has finished, then retry",
    )
