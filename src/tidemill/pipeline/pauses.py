"""Pause and resume arcs and groups of views (LOT-38).

A pause loses nothing: lots that are published or requested during the pause are processed after it. A lot or
step that is running when the pause begins finishes.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.errors import SubscriptionUnknown, UsageError
from tidemill.pipeline import graph
from tidemill.pipeline.pace import CatchUpWord
from tidemill.store import Tx
from tidemill.triggers import subscriptions, templates
from tidemill.triggers.subscriptions import AnyRow
from tidemill.triggers.terms import CatchUp
from tidemill.views.steps.keys import group_id

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


def pause(pipeline: "Pipeline", names: Sequence[str]) -> list[str]:
    """Pause arcs or groups; return the names of what was paused."""
    keys = pipeline.context.keys.triggers
    return _each(pipeline, names, lambda tx, name: subscriptions.pause(tx, keys, name))


def resume(pipeline: "Pipeline", names: Sequence[str], catch_up: CatchUpWord | None = None) -> list[str]:
    """Resume arcs or groups; `catch_up` says which lots published during the pause to process."""
    keys, lots = pipeline.context.keys.triggers, pipeline.context.keys.lots
    policy = None if catch_up is None else CatchUp(catch_up)
    return _each(pipeline, names, lambda tx, name: subscriptions.resume(tx, keys, lots, name, policy))


def _each(pipeline: "Pipeline", names: Sequence[str], act: Callable[[Tx, str], AnyRow]) -> list[str]:
    subscriptions = {id_: label for name in names for id_, label in _subscriptions(pipeline, name).items()}

    def step(tx: Tx) -> None:
        for id_, name in subscriptions.items():
            try:
                act(tx, id_)
            except SubscriptionUnknown:
                raise SubscriptionUnknown(
                    f"{name} has not run yet", hint="run the pipeline once, or declare enabled=False"
                ) from None

    pipeline.context.store.run(step)
    return list(subscriptions.values())


def _subscriptions(pipeline: "Pipeline", name: str) -> dict[str, str]:
    """Return the subscriptions of an arc, a table, a view, a group or a template, with names to show."""
    if name in pipeline.templates:
        keys, id_ = pipeline.context.keys.triggers, graph.arc_id(pipeline, name)
        children = pipeline.context.store.run(lambda tx: list(templates.children(tx, keys, id_)))
        return {child: child.partition("/")[2] for child in children}
    if name in graph.groups(pipeline):
        return {group_id(pipeline.name, graph.groups(pipeline)[name]): name}
    if name in pipeline.datasets:
        raise UsageError(f"{name} is a dataset, which nothing runs", hint="pause the arcs that read it")
    return {graph.arc_id(pipeline, graph.maker(pipeline, name).name): name}
