"""The stage of a plan that retires a group of views."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.errors import GroupUnknown
from tidemill.pipeline.plan.stages import Status
from tidemill.store import Tx
from tidemill.triggers import schedules
from tidemill.views.steps import groups
from tidemill.views.steps.keys import StepKeys, group_id

if TYPE_CHECKING:
    from tidemill.pipeline.context import Site


@dataclass(frozen=True)
class RemoveGroup:
    """A group that no view is declared in any more: it is stepped no more, and loses its subscription."""

    pipeline: str
    name: str

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        try:
            groups.read(tx, keys, self.pipeline, self.name)
        except GroupUnknown:
            return Status.SAME
        return Status.REMOVED

    def apply(self, site: "Site", holder: str) -> None:
        def step(tx: Tx) -> None:
            groups.remove(tx, site.keys, self.pipeline, self.name)
            schedules.remove(tx, site.keys.triggers, group_id(self.pipeline, self.name))

        site.store.run(step)

    def describe(self) -> dict[str, str]:
        return {"what": "views", "name": self.name, "detail": "no longer declared", "where": ""}
