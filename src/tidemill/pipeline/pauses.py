"""Pausing and resuming what runs: an arc, or a group of views (LOT-38).

What is paused is woken like anything else and loses nothing: everything that is published meanwhile is there
for it when it is resumed, and so is what was asked for. A lot or step that is under way comes to its end.
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
    """Run these no more, until they are resumed; the names of what was paused."""
    keys = pipeline.site.keys.triggers
    return _each(pipeline, names, lambda tx, one: subscriptions.pause(tx, keys, one))


def resume(pipeline: "Pipeline", names: Sequence[str], catch_up: CatchUpWord | None = None) -> list[str]:
    """Run these again; `catch_up` says what of that which was published meanwhile."""
    keys, lots = pipeline.site.keys.triggers, pipeline.site.keys.lots
    policy = None if catch_up is None else CatchUp(catch_up)
    return _each(pipeline, names, lambda tx, one: subscriptions.resume(tx, keys, lots, one, policy))


def _each(pipeline: "Pipeline", names: Sequence[str], act: Callable[[Tx, str], AnyRow]) -> list[str]:
    found = {id_: one for name in names for id_, one in _subscriptions(pipeline, name).items()}

    def step(tx: Tx) -> None:
        for id_, name in found.items():
            try:
                act(tx, id_)
            except SubscriptionUnknown:
                raise SubscriptionUnknown(
                    f"{name} has not been run yet", hint="run the pipeline once, or declare enabled=False"
                ) from None

    pipeline.site.store.run(step)
    return list(found.values())


def _subscriptions(pipeline: "Pipeline", name: str) -> dict[str, str]:
    """What runs an arc, a table that an arc makes, a view or a group of views; of a template, its children.
    With their names for people.
    """
    if name in pipeline.templates:
        keys, id_ = pipeline.site.keys.triggers, graph.arc_id(pipeline, name)
        found = pipeline.site.store.run(lambda tx: list(templates.children(tx, keys, id_)))
        return {one: one.partition("/")[2] for one in found}
    if name in graph.groups(pipeline):
        return {group_id(pipeline.name, graph.groups(pipeline)[name]): name}
    if name in pipeline.datasets:
        raise UsageError(f"{name} is written from outside", hint="pause the arcs that read it")
    return {graph.arc_id(pipeline, graph.maker(pipeline, name).name): name}
