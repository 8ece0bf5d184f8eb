"""Change the number of ranges of a pipeline's steps while it runs (DBSP-3)."""

from typing import TYPE_CHECKING

import msgspec

from tidemill.views.steps import range_setting
from tidemill.views.steps.coordinator import Coordinator

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    """A new number of ranges.

    - before, ranges: how many ranges a step had at least, and has now; 0 if its size decides.
    - step: the step at which all groups of views stopped. Later steps have the new number.
    """

    before: int
    ranges: int
    step: int


def scale(pipeline: "Pipeline", ranges: int, wait_s: float) -> Scaled:
    """Stop all groups at one step, set the number of ranges, and start the groups again."""
    context = pipeline.context
    keys, name = context.keys, pipeline.name
    before = context.store.run(lambda tx: range_setting.read(tx, keys, name))
    range_setting.check(ranges)
    coordinator = Coordinator(context.scope, name, wait_s=wait_s)
    step = coordinator.run_round(lambda tx: range_setting.write(tx, keys, name, ranges))
    return Scaled(before=before, ranges=ranges, step=step)
