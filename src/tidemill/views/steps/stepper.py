"""The stepper: one run of a group, from its ticket to its last commit.

    cut      write a record, if the group has applied all records and its datasets have new lots
    open     store an attempt at the next batch of records
    compute  write the objects and manifests of the batch (`Compute`)
    commit   move the group to the batch's step, and end the run when no record is left

Each of these phases except compute is one transaction between two crash points, `views.<name>.before` and
`.after`. If the process fails between phases, the run ends when its node's lease ends, or through
`runs.fail`. The next run resumes at the last commit, with the same records.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import UNSET

from tidemill.cluster.leases import Busy
from tidemill.errors import UsageError, ViewCheckFailed, ViewError, describe
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold
from tidemill.scope import Scope
from tidemill.triggers.runs import Ticket
from tidemill.views.steps import commits, failed_views
from tidemill.views.steps.commits import StepBatch, StepPart, StepResult
from tidemill.views.steps.events import (
    RecordWritten,
    RowsSetAside,
    StepAbandoned,
    StepCommitted,
    ViewChecked,
    ViewSetAside,
    ViewsResumed,
)
from tidemill.views.steps.failed_views import FailedInput, FailedView
from tidemill.views.steps.failure_search import FailureSearch
from tidemill.views.steps.keys import StepKeys, group_id
from tidemill.views.steps.records import StepRecord


class Compute(Protocol):
    """Computes a batch: writes objects and manifests under the attempt's path, and nothing to the store."""

    def __call__(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]: ...


class FindInput(Protocol):
    """Finds the lots and the row of a batch on which a view fails."""

    def __call__(self, batch: StepBatch, view: str) -> FailedInput: ...


class RunSummary(msgspec.Struct, frozen=True):
    """The outcome of a run: the group's step, how many commits the run made, and how many needed a job."""

    step: int
    commits: int
    jobs: int


class Stepper:
    """Runs the steps of the groups of one pipeline on one node.

    - most: one step may apply at most this many records that have work.
    - find_input: finds the row on which a view fails; None to find no rows.
    """

    def __init__(
        self,
        scope: Scope,
        pipeline: str,
        compute: Compute,
        *,
        most: int = 1,
        find_input: FindInput | None = None,
    ) -> None:
        self._scope = scope
        self._keys = StepKeys(scope.cluster)
        self._pipeline = pipeline
        self._compute = compute
        self._most = most
        self._find_input = find_input

    def run(self, ticket: Ticket, stop: Callable[[], bool] = lambda: False) -> RunSummary:
        """Apply all records; when this returns, the run has ended.

        If the computation raises an error, its attempt is abandoned and the error is raised again. The run
        then still holds its ticket, and the caller ends the run with `runs.fail`. `LeaseLost` means that the
        run has already ended.

        - stop: called between commits; True ends the run. A group may stop at any step.
        """
        prefix = group_id(self._pipeline, "")
        if not ticket.name.startswith(prefix):
            raise UsageError(
                f"{ticket.name!r} is not a group of pipeline {self._pipeline!r}",
                hint="pass a ticket for a group of this pipeline",
            )
        group, keys = ticket.name.removeprefix(prefix), self._keys
        record = self._scope.step(
            "views.cut", lambda tx: commits.next_record(tx, keys, self._pipeline, ticket, group)
        )
        if isinstance(record, StepRecord):
            self._scope.emit(
                RecordWritten(pipeline=self._pipeline, step=record.number, datasets=len(record.ranges))
            )
        committed = jobs = 0
        while not stop():
            batch = self._scope.store.run(
                lambda tx: commits.next_batch(tx, keys, self._pipeline, group, most=self._most)
            )
            if batch is None:
                break
            jobs += batch.has_work
            committed += 1
            self._apply(ticket, batch)
            if not batch.more:
                return RunSummary(batch.step, committed, jobs)
        busy = isinstance(record, Busy) and not committed
        step = self._scope.step(
            "views.rest", lambda tx: commits.end_run(tx, keys, self._pipeline, ticket, group, busy=busy)
        )
        return RunSummary(step, committed, jobs)

    def _apply(self, ticket: Ticket, batch: StepBatch) -> None:
        result: StepResult | None = None
        failures: dict[str, FailedView] = {}
        if batch.has_work:
            batch, result, failures = self._compute_views(ticket, batch)
        row = self._scope.step(
            "views.commit" if batch.has_work else "views.pass",
            lambda tx: commits.commit(
                tx, self._keys, ticket, batch, result, ends=not batch.more, failures=failures
            ),
        )
        if row.quarantined is not None:
            self._scope.emit(
                RowsSetAside(
                    pipeline=self._pipeline,
                    group=batch.spec.name,
                    step=row.step,
                    rows=dict(row.quarantined.rows),
                )
            )
        for failed in failures.values():
            self._scope.emit(
                ViewSetAside(
                    pipeline=self._pipeline,
                    group=batch.spec.name,
                    step=row.step,
                    view=failed.view,
                    why=failed.text,
                )
            )
        for checked in () if result is None else result.checked:
            before = batch.checked.get(checked.view)
            if checked.rows != (before.rows if before else {}):
                self._scope.emit(
                    ViewChecked(
                        pipeline=self._pipeline,
                        group=batch.spec.name,
                        step=row.step,
                        view=checked.view,
                        failures=checked.failures,
                        rows=checked.rows,
                        refused=checked.refused,
                    )
                )
        if batch.resumed:
            self._scope.emit(
                ViewsResumed(
                    pipeline=self._pipeline,
                    group=batch.spec.name,
                    step=row.step,
                    views=tuple(sorted(batch.resumed)),
                )
            )
        self._scope.emit(
            StepCommitted(
                pipeline=self._pipeline,
                group=batch.spec.name,
                step=row.step,
                after=row.after,
                attempt=row.attempt,
                views=tuple(output.view for output in row.outputs),
                rows=sum(output.rows for output in row.outputs),
                changes={output.view: output.rows for output in row.outputs},
                positions={
                    str(dataset): (batch.before.get(dataset, 0), to)
                    for dataset, to in batch.positions.items()
                    if dataset in batch.moved
                },
            )
        )

    def _compute_views(
        self, ticket: Ticket, batch: StepBatch
    ) -> tuple[StepBatch, StepResult, dict[str, FailedView]]:
        """Compute a batch without the views that fail on their input; return those as well.

        A view that is left out because its rows fail a check is computed if the rows pass in this step.
        """
        failures: dict[str, FailedView] = {}
        find_input, spec = self._find_input, batch.spec

        def blame(view: str, error: ViewError) -> None:
            if not self._scope.store.run(lambda tx: failed_views.can_resume(tx, self._keys.lots, spec, view)):
                raise error
            code = next(each.code for each in spec.views if each.name == view)
            text = error.message[: failed_views.MOST_CHARS]
            known, checks = batch.failed.get(view), isinstance(error, ViewCheckFailed)
            again = known is not None and (known.error, known.code) == (text, code) and not known.requested
            failures[view] = FailedView(
                view=view,
                code=code,
                error=text,
                since=batch.step,
                input=FailedInput() if again or checks or find_input is None else find_input(batch, view),
                tries=1,
                checks=checks or UNSET,
            )

        tried: set[str] = set()
        while True:
            search = self._search(ticket, batch, blame)
            result = search.run()
            passing = {each.view for each in result.checked if not each.refused}
            passing = {name for name in passing & batch.aside - tried if batch.failed[name].checks is True}
            if not passing:
                return msgspec.structs.replace(batch, aside=search.aside), result, failures
            tried |= passing
            aside = failed_views.without(batch.spec, batch.failed, batch.aside, tried)
            batch = msgspec.structs.replace(batch, aside=aside)
            batch = msgspec.structs.replace(batch, stale=batch.stale | batch.resumed)

    def _search(
        self, ticket: Ticket, batch: StepBatch, blame: Callable[[str, ViewError], None]
    ) -> FailureSearch[StepResult]:
        return FailureSearch(
            batch.spec,
            batch.aside,
            batch.resumed,
            lambda aside: self._attempt(ticket, msgspec.structs.replace(batch, aside=aside)),
            blame,
        )

    def _attempt(self, ticket: Ticket, batch: StepBatch) -> StepResult:
        attempt = self._scope.new_attempt()
        hold = self._scope.step(
            "views.open", lambda tx: commits.open_step(tx, self._keys, ticket, batch, attempt)
        )
        return StepResult.of(hold, self._run_compute(batch, hold))

    def _run_compute(self, batch: StepBatch, hold: Hold) -> tuple[StepPart, ...]:
        try:
            return self._compute(batch, hold.draft.id)
        except Exception as error:
            why = describe(error)
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
