"""The stages of a plan that declare and remove groups of views."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.cluster.leases import Busy
from tidemill.errors import GroupUnknown, StoreBusy
from tidemill.pipeline.pace import Pace, declare_schedule
from tidemill.pipeline.plan.stages import StageStatus
from tidemill.store import Tx
from tidemill.triggers import schedules
from tidemill.views.steps import groups
from tidemill.views.steps.groups import GroupSpec
from tidemill.views.steps.keys import StepKeys, group_id

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext

CIRCUIT_VERSION = "1"


@dataclass(frozen=True)
class DeclareGroups:
    """Declare all groups of views, and the circuit that they form together.

    - views: name, line and query of each view.
    - paces: of the groups, in their order.
    """

    pipeline: str
    groups: tuple[GroupSpec, ...]
    views: tuple[tuple[str, str, str], ...]
    paces: tuple[Pace, ...]

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        stored = {group.spec.name: group.spec for group in groups.listed(tx, keys, self.pipeline)}
        if not stored:
            return StageStatus.NEW
        same = all(stored.get(group.name) == group for group in self.groups)
        return StageStatus.SAME if same else StageStatus.CHANGED

    def apply(self, context: "PipelineContext", holder: str) -> None:
        for group, pace in zip(self.groups, self.paces, strict=True):
            context.store.run(partial(self._declare, context=context, group=group, pace=pace))
        declare = partial(
            groups.declare_circuit,
            keys=context.keys,
            pipeline=self.pipeline,
            version=CIRCUIT_VERSION,
            holder=holder,
        )
        _retry_while_busy(context.clock, lambda: context.store.run(declare))

    def _declare(self, tx: Tx, context: "PipelineContext", group: GroupSpec, pace: Pace) -> None:
        name = group_id(self.pipeline, group.name)
        declare_schedule(tx, context.keys.triggers, context.keys.lots, pace, name)
        groups.declare(tx, context.keys, self.pipeline, group)

    def describe(self) -> dict[str, str]:
        return {
            "what": "views",
            "name": ", ".join(group.name for group in self.groups),
            "detail": ", ".join(name for name, _, _ in self.views),
            "where": self.views[0][1],
        }


def _retry_while_busy(clock: Clock, act: Callable[[], object], tries: int = 100) -> None:
    for _ in range(tries):
        if not isinstance(act(), Busy):
            return
        clock.sleep(0.1)
    raise StoreBusy("another process holds the coordinator's lease")


@dataclass(frozen=True)
class RemoveGroup:
    """Stop a group that has no views any more, and remove its subscription."""

    pipeline: str
    name: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        try:
            groups.read(tx, keys, self.pipeline, self.name)
        except GroupUnknown:
            return StageStatus.SAME
        return StageStatus.REMOVED

    def apply(self, context: "PipelineContext", holder: str) -> None:
        def step(tx: Tx) -> None:
            groups.remove(tx, context.keys, self.pipeline, self.name)
            schedules.remove(tx, context.keys.triggers, group_id(self.pipeline, self.name))

        context.store.run(step)

    def describe(self) -> dict[str, str]:
        return {"what": "views", "name": self.name, "detail": "no longer declared", "where": ""}
