"""The stages of a plan that declare templates, remove them, or show tables that a template cannot read."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidemill.errors import BadTemplate, DeclarationError, TemplateChanged
from tidemill.obs.lines import counted
from tidemill.pipeline.pace import FASTEST, Pace, declare_schedule
from tidemill.pipeline.plan.stages import StageStatus
from tidemill.store import Tx
from tidemill.triggers import schedules, templates
from tidemill.triggers.events import TemplateMatchless
from tidemill.triggers.templates import Template
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext


@dataclass(frozen=True)
class DeclareTemplate:
    """Declare a template; the scheduler creates the subscriptions of its arcs.

    - matches: how many known tables the template matches.
    """

    template: Template
    where: str
    matches: int
    pace: Pace = FASTEST

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        stored = templates.find(tx, keys.triggers, self.template.name)
        if stored is None:
            return StageStatus.NEW
        return StageStatus.SAME if stored == self.template else StageStatus.CHANGED

    def apply(self, context: "PipelineContext", holder: str) -> TemplateMatchless | None:
        name = self.template.name

        def step(tx: Tx) -> None:
            declare_schedule(tx, context.keys.triggers, context.keys.lots, self.pace, name)
            try:
                templates.declare(tx, context.keys.triggers, self.template)
            except TemplateChanged as error:
                raise TemplateChanged(
                    f"{self.where}: the tables that template {_short(name)} reads or writes have changed",
                    hint="use another name: name='…'; the existing tables stay as they are",
                ) from error
            except BadTemplate as error:
                raise DeclarationError(f"{self.where}: {error.message}", hint=error.hint) from error

        context.store.run(step)
        if self.matches:
            return None
        return TemplateMatchless(name=name, reads=self.template.reads, where=self.where)

    def describe(self) -> dict[str, str]:
        writes = ", ".join((self.template.writes, *self.template.also))
        tables = counted(self.matches, "table") if self.matches else "no table yet"
        return {
            "what": "template",
            "name": _short(self.template.name),
            "detail": f"{self.template.reads} -> {writes}: matches {tables}",
            "where": self.where,
        }


@dataclass(frozen=True)
class RemoveTemplate:
    """Stop the arcs of a template that is no longer declared; their lots stay."""

    name: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        exists = templates.find(tx, keys.triggers, self.name) is not None
        return StageStatus.REMOVED if exists else StageStatus.SAME

    def apply(self, context: "PipelineContext", holder: str) -> None:
        keys = context.keys.triggers

        def step(tx: Tx) -> None:
            templates.remove(tx, keys, self.name)
            schedules.remove(tx, keys, self.name)

        context.store.run(step)
        while context.store.run(partial(templates.remove_children, keys=keys, name=self.name)):
            pass

    def describe(self) -> dict[str, str]:
        detail = "no longer declared"
        return {"what": "template", "name": _short(self.name), "detail": detail, "where": ""}


@dataclass(frozen=True)
class RefusedChild:
    """Show a table of another pipeline that a template matches but cannot read.

    The template's arcs for other tables still run.
    """

    name: str
    why: str
    where: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        return StageStatus.REFUSED

    def apply(self, context: "PipelineContext", holder: str) -> None:
        """Do nothing: a runner reports the reason in each run, until the table can be read."""

    def describe(self) -> dict[str, str]:
        return {"what": "arc", "name": self.name, "detail": self.why, "where": self.where}


def _short(name: str) -> str:
    return name.partition("/")[2]
