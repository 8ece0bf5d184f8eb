"""The stages of a plan that declare and remove arcs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.arcs import declarations as arc_rows
from tidemill.arcs import lot_requests, lot_status
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.errors import ArcUnknown, AttemptUnknown, DeclarationError, SubscriptionChanged
from tidemill.lots import events, lots
from tidemill.pipeline.pace import FASTEST, Pace, declare_schedule, terms_of
from tidemill.pipeline.plan.stages import StageStatus
from tidemill.publish import attempts
from tidemill.store import Store, Tx
from tidemill.triggers import schedules, subscriptions
from tidemill.triggers.terms import Terms
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext


MAX_RETRIED = 200
"""How many failed lots are retried automatically when the code of an arc changes."""


@dataclass(frozen=True)
class DeclareArc:
    """Declare an arc and its subscription.

    - template: the template that created the arc; empty if there is none. For an arc of a template, the
      scheduler creates the subscription.
    """

    spec: ArcSpec
    where: str
    pace: Pace = FASTEST
    template: str = ""

    def check(self, tx: Tx, keys: StepKeys) -> None:
        """If `apply` would refuse the arc, raise the same error."""
        self._refuse_renamed(tx, ArcKeys(keys.lots.cluster))
        row = subscriptions.read(tx, keys.triggers, self.spec.id)
        if not self.template and row is not None and row.tally.terms.tables != self._terms.tables:
            raise self._changed_inputs()

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        try:
            self.check(tx, keys)
            stored = arc_rows.read(tx, ArcKeys(keys.lots.cluster), self.spec.id)
        except (DeclarationError, SubscriptionChanged):
            return StageStatus.REFUSED
        except ArcUnknown:
            return StageStatus.NEW
        if stored != self.spec:
            return StageStatus.CHANGED
        row = subscriptions.read(tx, keys.triggers, self.spec.id)
        same = self.template or (row is not None and row.tally.terms == self._terms)
        return StageStatus.SAME if same else StageStatus.CHANGED

    @property
    def _terms(self) -> Terms:
        return terms_of(self.pace, self.spec.reads, self.spec.id)

    def apply(self, context: "PipelineContext", holder: str) -> None:
        keys = ArcKeys(context.place.cluster)

        def step(tx: Tx) -> bool:
            if not self.template:
                self._subscribe(tx, context)
            self._refuse_renamed(tx, keys)
            self._switch(tx, context, keys)
            return arc_rows.declare(tx, keys, self.spec)

        if context.store.run(step):
            _retry_failed(context.store, keys, self.spec.id)

    def _subscribe(self, tx: Tx, context: "PipelineContext") -> None:
        name, keys, lot_keys = self.spec.id, context.keys.triggers, context.keys.lots
        declare_schedule(tx, keys, lot_keys, self.pace, name)
        try:
            subscriptions.subscribe(tx, keys, lot_keys, name, self._terms, creation=subscriptions.SCHEDULED)
        except SubscriptionChanged as error:
            raise self._changed_inputs() from error

    def _changed_inputs(self) -> SubscriptionChanged:
        return SubscriptionChanged(
            f"{self.where}: the tables that arc {self.spec.name} reads have changed",
            hint="restore reads=, or rename the arc; Tidemill then treats it as a new arc",
        )

    def _refuse_renamed(self, tx: Tx, keys: ArcKeys) -> None:
        """Refuse a new arc if another writer has already published the new arc's first lot.

        Most likely the arc was renamed. Under its new name it would make every lot again, and the store would
        refuse each of these lots at the end.
        """
        try:
            arc_rows.read(tx, keys, self.spec.id)
            return
        except ArcUnknown:
            pass
        lot_keys = keys.publish.lots
        first = next(iter(events.read(tx, lot_keys, self.spec.reads[0], 0, 1)), None)
        if first is None:
            return
        for sink in self.spec.sinks:
            row = lots.current(tx, lot_keys, sink.dataset, first.lot)
            if row is not None:
                raise DeclarationError(
                    f"{self.where}: arc {self.spec.name} is new, but {_author(tx, keys, row.attempt)} has"
                    f" already written lots to {sink.dataset.name}",
                    hint="if you renamed the arc, keep its old name with name='…'; otherwise write to a new"
                    " table",
                )

    def _switch(self, tx: Tx, context: "PipelineContext", keys: ArcKeys) -> None:
        """Pause or resume the arc if `enabled` has changed in its declaration.

        If a user paused the arc, it stays paused (LOT-38).
        """
        try:
            before = arc_rows.read(tx, keys, self.spec.id).enabled
        except ArcUnknown:
            before = True
        if self.template and subscriptions.read(tx, context.keys.triggers, self.spec.id) is None:
            return  # the template creates the subscription in the right state
        if before and not self.spec.enabled:
            subscriptions.pause(tx, context.keys.triggers, self.spec.id)
        elif self.spec.enabled and not before:
            subscriptions.resume(tx, context.keys.triggers, context.keys.lots, self.spec.id)

    def describe(self) -> dict[str, str]:
        reads = ", ".join(dataset.name for dataset in self.spec.reads)
        writes = ", ".join(sink.dataset.name for sink in self.spec.sinks)
        return {"what": "arc", "name": self.spec.name, "detail": f"{reads} -> {writes}", "where": self.where}


def _author(tx: Tx, keys: ArcKeys, attempt: str) -> str:
    try:
        return attempts.read(tx, keys.publish, attempt).draft.author
    except AttemptUnknown:
        return "another writer"


def _retry_failed(store: Store, keys: ArcKeys, arc: str) -> None:
    """Request a retry of the lots that failed, because the code of the arc changed."""

    def step(tx: Tx) -> None:
        for lot in lot_status.failed(tx, keys, arc, MAX_RETRIED):
            lot_requests.request_retry(tx, keys, arc, lot.lot)

    store.run(step)


@dataclass(frozen=True)
class RemoveArc:
    """Stop an arc that is no longer declared; the tables that it wrote stay."""

    name: str
    writes: tuple[str, ...] = ()

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        exists = subscriptions.read(tx, keys.triggers, self.name) is not None
        return StageStatus.REMOVED if exists else StageStatus.SAME

    def apply(self, context: "PipelineContext", holder: str) -> None:
        def step(tx: Tx) -> None:
            subscriptions.remove(tx, context.keys.triggers, self.name)
            schedules.remove(tx, context.keys.triggers, self.name)

        context.store.run(step)

    def describe(self) -> dict[str, str]:
        name = self.name.partition("/")[2]
        detail = f"no longer declared; these tables stay: {', '.join(self.writes)}"
        return {"what": "arc", "name": name, "detail": detail, "where": ""}
