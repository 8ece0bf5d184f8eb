"""The stepper: one run of a group, from its ticket to its last commit.

    cut      write a record, if the group has applied all of them and its datasets moved on
    open     enter an attempt at the next batch of records
    compute  what the port does: objects and manifests
    commit   the group goes on (with the run's end, when no record is left)

Each durable step is one transaction between two crash points, `views.<step>.before` and `.after`. Whatever
happens between them, the run is over with its node's lease or by `runs.fail`; the next one finds the group
where the last commit left it, and the same records behind it.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tidemill.cluster.leases import Busy
from tidemill.errors import UsageError
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold
from tidemill.scope import Scope
from tidemill.triggers.runs import Ticket
from tidemill.views.steps import commits
from tidemill.views.steps.commits import (
    QuarantinedRows,
    StepAlarm,
    StepBatch,
    StepOutput,
    StepPart,
    StepState,
)
from tidemill.views.steps.events import RecordWritten, RowsSetAside, StepAbandoned, StepCommitted
from tidemill.views.steps.keys import StepKeys, group_id
from tidemill.views.steps.records import StepRecord


class Compute(Protocol):
    """Makes the outputs of a batch: objects and manifests, all under the attempt; nothing in the store.

    At most one `QuarantinedRows` and one `StepState` are among them.
    """

    def __call__(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]: ...


class Stepped(msgspec.Struct, frozen=True):
    """What a run did: where the group is now, how many commits that took, and how many had a job."""

    step: int
    commits: int
    jobs: int


class GroupStep:
    """Runs the steps of groups of one pipeline on one node."""

    def __init__(self, scope: Scope, pipeline: str, compute: Compute, *, most: int = 1) -> None:
        self._scope = scope
        self._keys = StepKeys(scope.cluster)
        self._pipeline = pipeline
        self._compute = compute
        self._most = most

    def run(self, ticket: Ticket, stop: Callable[[], bool] = lambda: False) -> Stepped:
        """Apply every record there is; the run is over when this returns.

        What the computation raises is raised again, with its attempt given up and the ticket still ours: the
        caller ends the run by `runs.fail`. `LeaseLost` says that it is over already.

        - stop: asked between commits; the group may be left at any step.
        """
        prefix = group_id(self._pipeline, "")
        if not ticket.name.startswith(prefix):
            raise UsageError(f"a run of {ticket.name}", hint=f"this steps the groups of {self._pipeline!r}")
        group, keys = ticket.name.removeprefix(prefix), self._keys
        record = self._scope.step(
            "views.cut", lambda tx: commits.next_record(tx, keys, self._pipeline, ticket, group)
        )
        if isinstance(record, StepRecord):
            self._scope.emit(
                RecordWritten(pipeline=self._pipeline, step=record.number, datasets=len(record.ranges))
            )
        done = jobs = 0
        while not stop():
            batch = self._scope.store.run(
                lambda tx: commits.next_batch(tx, keys, self._pipeline, group, most=self._most)
            )
            if batch is None:
                break
            jobs += batch.concerns
            done += 1
            self._apply(ticket, batch)
            if not batch.more:
                return Stepped(batch.step, done, jobs)
        busy = isinstance(record, Busy) and not done
        step = self._scope.step(
            "views.rest", lambda tx: commits.rest(tx, keys, self._pipeline, ticket, group, busy=busy)
        )
        return Stepped(step, done, jobs)

    def _apply(self, ticket: Ticket, batch: StepBatch) -> None:
        hold, outputs, aside, state, alarm = None, tuple[StepOutput, ...](), None, None, None
        if batch.concerns:
            attempt = self._scope.new_attempt()
            hold = self._scope.step(
                "views.open", lambda tx: commits.open_step(tx, self._keys, ticket, batch, attempt)
            )
            made = self._computed(batch, hold)
            outputs = tuple(one for one in made if isinstance(one, StepOutput))
            aside = next((one for one in made if isinstance(one, QuarantinedRows)), None)
            state = next((one for one in made if isinstance(one, StepState)), None)
            alarm = next((one for one in made if isinstance(one, StepAlarm)), None)
        row = self._scope.step(
            "views.commit" if batch.concerns else "views.pass",
            lambda tx: commits.commit(
                tx,
                self._keys,
                ticket,
                batch,
                hold,
                outputs,
                aside=aside,
                state=state,
                alarm=alarm,
                ends=not batch.more,
            ),
        )
        if aside is not None:
            self._scope.emit(
                RowsSetAside(
                    pipeline=self._pipeline, group=batch.spec.name, step=row.step, rows=dict(aside.rows)
                )
            )
        self._scope.emit(
            StepCommitted(
                pipeline=self._pipeline,
                group=batch.spec.name,
                step=row.step,
                after=row.after,
                attempt=row.attempt,
                views=tuple(one.view for one in outputs),
                rows=sum(one.rows for one in outputs),
            )
        )

    def _computed(self, batch: StepBatch, hold: Hold) -> tuple[StepPart, ...]:
        try:
            return self._compute(batch, hold.draft.id)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self._scope.step("views.abandon", lambda tx: attempts.abandon(tx, self._keys, hold, why))
            self._scope.emit(
                StepAbandoned(
                    pipeline=self._pipeline,
                    group=batch.spec.name,
                    step=batch.step,
                    attempt=hold.draft.id,
                    why=why,
                )
            )
            raise
