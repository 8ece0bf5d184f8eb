"""The stages of a plan that are about templates: declared, gone, or of no use for a table that is there."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidemill.errors import BadTemplate, DeclarationError, TemplateChanged
from tidemill.pipeline.pace import FASTEST, Pace, declare_schedule
from tidemill.pipeline.plan.stages import Status
from tidemill.store import Tx
from tidemill.triggers import schedules, templates
from tidemill.triggers.events import TemplateMatchless
from tidemill.triggers.templates import Template
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from tidemill.pipeline.context import Site


@dataclass(frozen=True)
class DeclareTemplate:
    """A template; its subscriptions are made by whoever tends.

    - matches: how many tables it matches that are known.
    """

    template: Template
    where: str
    matches: int
    pace: Pace = FASTEST

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        known = templates.find(tx, keys.triggers, self.template.name)
        if known is None:
            return Status.NEW
        return Status.SAME if known == self.template else Status.CHANGED

    def apply(self, site: "Site", holder: str) -> TemplateMatchless | None:
        name = self.template.name

        def step(tx: Tx) -> None:
            declare_schedule(tx, site.keys.triggers, site.keys.lots, self.pace, name)
            try:
                templates.declare(tx, site.keys.triggers, self.template)
            except TemplateChanged as error:
                raise TemplateChanged(
                    f"{self.where}: the template {_short(name)} read or wrote other tables before",
                    hint="give it another name: name='…'; its children's tables stay as they are",
                ) from error
            except BadTemplate as error:
                raise DeclarationError(f"{self.where}: {error.message}", hint=error.hint) from error

        site.store.run(step)
        if self.matches:
            return None
        return TemplateMatchless(name=name, reads=self.template.reads, where=self.where)

    def describe(self) -> dict[str, str]:
        writes = ", ".join((self.template.writes, *self.template.also))
        tables = f"{self.matches} table{'s' if self.matches > 1 else ''}" if self.matches else "no table yet"
        return {
            "what": "template",
            "name": _short(self.template.name),
            "detail": f"{self.template.reads} -> {writes}: matches {tables}",
            "where": self.where,
        }


@dataclass(frozen=True)
class RemoveTemplate:
    """A template that is not declared any more: its children are run no more, their lots stay."""

    name: str

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        return Status.SAME if templates.find(tx, keys.triggers, self.name) is None else Status.REMOVED

    def apply(self, site: "Site", holder: str) -> None:
        keys = site.keys.triggers

        def step(tx: Tx) -> None:
            templates.remove(tx, keys, self.name)
            schedules.remove(tx, keys, self.name)

        site.store.run(step)
        while site.store.run(partial(templates.remove_children, keys=keys, name=self.name)):
            pass

    def describe(self) -> dict[str, str]:
        return {
            "what": "template",
            "name": _short(self.name),
            "detail": "no longer declared",
            "where": "",
        }


@dataclass(frozen=True)
class RefusedChild:
    """A table of somebody else's that a template matches and cannot read; others are run all the same."""

    name: str
    why: str
    where: str

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        return Status.REFUSED

    def apply(self, site: "Site", holder: str) -> None:
        """Nothing: whoever runs it tells why it cannot be run, again and again until it can."""

    def describe(self) -> dict[str, str]:
        return {"what": "arc", "name": self.name, "detail": self.why, "where": self.where}


def _short(name: str) -> str:
    return name.partition("/")[2]
