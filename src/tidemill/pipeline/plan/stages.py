"""The stages of a plan: each is a value that can be carried out, and described."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tidemill.arcs import asks, standings
from tidemill.arcs import declarations as arc_rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.clock import Clock
from tidemill.cluster.leases import Busy
from tidemill.errors import (
    ArcUnknown,
    AttemptUnknown,
    DatasetChanged,
    DatasetUnknown,
    DeclarationError,
    StoreBusy,
    SubscriptionChanged,
)
from tidemill.events import Event
from tidemill.lots import datasets, events, lots, staging
from tidemill.lots.datasets import Dataset, Drift
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.pace import FASTEST, Pace, declare_schedule, terms_of
from tidemill.publish import attempts
from tidemill.spark.drift import evolved
from tidemill.store import Store, Tx
from tidemill.triggers import schedules, subscriptions
from tidemill.triggers.terms import Terms
from tidemill.views.steps import groups
from tidemill.views.steps.groups import GroupSpec
from tidemill.views.steps.keys import StepKeys, group_id

if TYPE_CHECKING:
    from tidemill.pipeline.context import Site


MOST_RETRIED = 200
"""Lots that are tried again by themselves when an arc has changed; others are asked for."""


class Status(StrEnum):
    """What a stage would do."""

    NEW = "new"
    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    REFUSED = "refused"


class Stage(Protocol):
    """One thing a plan does."""

    def status(self, tx: Tx, keys: StepKeys) -> Status: ...

    def apply(self, site: "Site", holder: str) -> Event | None:
        """Carry it out; what there is to tell about that."""
        ...

    def describe(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class DeclareDataset:
    """A table that lots go into."""

    dataset: Dataset
    where: str
    made_by: str = ""

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        try:
            known = datasets.read(tx, keys.lots, self.dataset.id)
        except DatasetUnknown:
            return Status.NEW
        changed = datasets.differences(known, self.dataset) or known.drift is not self.dataset.drift
        return Status.CHANGED if changed else Status.SAME

    def apply(self, site: "Site", holder: str) -> None:
        def step(tx: Tx) -> None:
            try:
                datasets.declare(tx, site.keys.lots, self.dataset, evolved)
            except DatasetChanged as error:
                hint = error.hint
                if self.dataset.drift is not Drift.EVOLVE:
                    hint += "; drift='evolve' takes new columns and wider types"
                raise DatasetChanged(f"{self.where}: {error.message}", hint=hint) from error
            if self.dataset.unit is not None and not self.made_by:
                staging.begin(tx, site.keys.lots, self.dataset.id)

        site.store.run(step)

    def describe(self) -> dict[str, str]:
        made = f" (by {self.made_by})" if self.made_by else ""
        return {
            "what": "dataset",
            "name": self.dataset.name,
            "detail": self.dataset.schema + made,
            "where": self.where,
        }


@dataclass(frozen=True)
class DeclareSource:
    """What arrives from outside; it has no row of its own, and is known when its dataset is."""

    dataset: DatasetId
    detail: str
    where: str

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        try:
            datasets.read(tx, keys.lots, self.dataset)
        except DatasetUnknown:
            return Status.NEW
        return Status.SAME

    def apply(self, site: "Site", holder: str) -> None:
        """Nothing: its dataset is declared by a stage of its own."""

    def describe(self) -> dict[str, str]:
        detail = f"{self.detail} -> {self.dataset.name}"
        return {"what": "source", "name": self.dataset.name, "detail": detail, "where": self.where}


@dataclass(frozen=True)
class DeclareArc:
    """A function from lots to lots, and its subscription.

    - template: it descends from one; then whoever tends has made its subscription, or will.
    """

    spec: ArcSpec
    where: str
    pace: Pace = FASTEST
    template: str = ""

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        try:
            known = arc_rows.read(tx, ArcKeys(keys.lots.cluster), self.spec.id)
        except ArcUnknown:
            return Status.NEW
        if known != self.spec:
            return Status.CHANGED
        row = subscriptions.read(tx, keys.triggers, self.spec.id)
        same = self.template or (row is not None and row.tally.terms == self._terms)
        return Status.SAME if same else Status.CHANGED

    @property
    def _terms(self) -> Terms:
        return terms_of(self.pace, self.spec.reads, self.spec.id)

    def apply(self, site: "Site", holder: str) -> None:
        keys = ArcKeys(site.place.cluster)

        def step(tx: Tx) -> bool:
            if not self.template:
                self._subscribe(tx, site)
            self._refuse_taken(tx, keys)
            self._switch(tx, site, keys)
            return arc_rows.declare(tx, keys, self.spec)

        if site.store.run(step):
            _retry_all(site.store, keys, self.spec.id)

    def _subscribe(self, tx: Tx, site: "Site") -> None:
        name, keys, lots_ = self.spec.id, site.keys.triggers, site.keys.lots
        declare_schedule(tx, keys, lots_, self.pace, name)
        try:
            subscriptions.subscribe(tx, keys, lots_, name, self._terms, attach=True)
        except SubscriptionChanged as error:
            raise SubscriptionChanged(
                f"{self.where}: arc {self.spec.name} read other tables before",
                hint="give it another name: it is another arc",
            ) from error

    def _refuse_taken(self, tx: Tx, keys: ArcKeys) -> None:
        """A new arc whose first lot is there already, made by another: one that was renamed, most likely. It
        would make every lot once more, and each would be refused at its end.
        """
        try:
            arc_rows.read(tx, keys, self.spec.id)
            return
        except ArcUnknown:
            pass
        lots_keys = keys.publish.lots
        first = events.first_unseen(tx, lots_keys, self.spec.reads[0], 0)
        if first is None:
            return
        for sink in self.spec.sinks:
            row = lots.current(tx, lots_keys, sink.dataset, first.lot)
            if row is not None:
                raise DeclarationError(
                    f"{self.where}: arc {self.spec.name} is new, and lots of {sink.dataset.name} that it"
                    f" would make are there, made by {_author(tx, keys, row.attempt)}",
                    hint="an arc keeps its lots by its name: name='…' gives it the one it had; a new arc"
                    " writes another table",
                )

    def _switch(self, tx: Tx, site: "Site", keys: ArcKeys) -> None:
        """Pause or resume it where the declaration says something else than before; else it stays as it is,
        so that what somebody paused by hand stays paused (LOT-38).
        """
        try:
            before = arc_rows.read(tx, keys, self.spec.id).enabled
        except ArcUnknown:
            before = True
        if self.template and subscriptions.read(tx, site.keys.triggers, self.spec.id) is None:
            return  # its template has it born so
        if before and not self.spec.enabled:
            subscriptions.pause(tx, site.keys.triggers, self.spec.id)
        elif self.spec.enabled and not before:
            subscriptions.resume(tx, site.keys.triggers, site.keys.lots, self.spec.id)

    def describe(self) -> dict[str, str]:
        reads = ", ".join(one.name for one in self.spec.reads)
        sinks = ", ".join(one.dataset.name for one in self.spec.sinks)
        return {"what": "arc", "name": self.spec.name, "detail": f"{reads} -> {sinks}", "where": self.where}


def _author(tx: Tx, keys: ArcKeys, attempt: str) -> str:
    try:
        return attempts.read(tx, keys.publish, attempt).draft.author
    except AttemptUnknown:
        return "somebody else"


def _retry_all(store: Store, keys: ArcKeys, arc: str) -> None:
    """The arc is another one now: what failed before is worth another try."""

    def step(tx: Tx) -> None:
        for standing in standings.troubled(tx, keys, arc, MOST_RETRIED):
            asks.ask(tx, keys, arc, standing.lot)

    store.run(step)


@dataclass(frozen=True)
class RemoveArc:
    """An arc that is not declared any more: its lots stay, and it is run no more."""

    name: str

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        there = subscriptions.read(tx, keys.triggers, self.name) is not None
        return Status.REMOVED if there else Status.SAME

    def apply(self, site: "Site", holder: str) -> None:
        def step(tx: Tx) -> None:
            subscriptions.remove(tx, site.keys.triggers, self.name)
            schedules.remove(tx, site.keys.triggers, self.name)

        site.store.run(step)

    def describe(self) -> dict[str, str]:
        name = self.name.partition("/")[2]
        return {"what": "arc", "name": name, "detail": "no longer declared", "where": ""}


@dataclass(frozen=True)
class DeclareGroups:
    """The groups of views, and the circuit they make together."""

    pipeline: str
    groups: tuple[GroupSpec, ...]
    views: tuple[tuple[str, str, str], ...]
    paces: tuple[Pace, ...]

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        known = {group.spec.name: group.spec for group in groups.listed(tx, keys, self.pipeline)}
        if not known:
            return Status.NEW
        return Status.SAME if all(known.get(one.name) == one for one in self.groups) else Status.CHANGED

    def apply(self, site: "Site", holder: str) -> None:
        for group, pace in zip(self.groups, self.paces, strict=True):
            site.store.run(partial(self._declare, site=site, group=group, pace=pace))
        version = "1"
        _until_free(
            site.clock,
            lambda: site.store.run(
                lambda tx: groups.declare_circuit(tx, site.keys, self.pipeline, version, holder)
            ),
        )

    def _declare(self, tx: Tx, site: "Site", group: GroupSpec, pace: Pace) -> None:
        name = group_id(self.pipeline, group.name)
        declare_schedule(tx, site.keys.triggers, site.keys.lots, pace, name)
        groups.declare(tx, site.keys, self.pipeline, group)

    def describe(self) -> dict[str, str]:
        names = ", ".join(name for name, _, _ in self.views)
        return {
            "what": "views",
            "name": ", ".join(group.name for group in self.groups),
            "detail": names,
            "where": self.views[0][1],
        }


def _until_free(clock: Clock, act: Callable[[], object], tries: int = 100) -> None:
    for _ in range(tries):
        if not isinstance(act(), Busy):
            return
        clock.sleep(0.1)
    raise StoreBusy("the coordinator's office is held by somebody else")
