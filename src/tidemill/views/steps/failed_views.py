"""Views that are set aside: their own expressions or functions raise an error on their input (DBSP-40).

A failure belongs to one view. The group commits the step without that view, and without the views that read
it. These views keep their last table, so all of them show the same earlier step. Later steps of the group try
them again: such a try computes the whole view from the stored input and compares it with its table. So
nothing is lost, and the result equals that of a view that never failed.

A try reads the complete input, so its cost is bounded: after `FREE_TRIES` failures in a row, the view passes
over 1, 2, 4, … steps that have input for it, at most `MOST_PASSED`. It is tried at once when a lot that it
reads is replaced or removed, when its declaration changes, or when an operator requests it (`request_try`).

A view whose rows fail a check (`checks`) is set aside in the same way, but tries are not needed: every step
counts the rows that fail, without the view. The step in which they pass computes the view.

An operator can also let a view pass over lots (`pass_over`): from then on, the view is computed without these
generations of the lots, or with other generations of them. The other views still read the current ones. The
view reads a lot again when the lot gets a new generation, or when the view is edited.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from tidemill.cluster.leases import Busy
from tidemill.lots import base_lot, events, expiry, lots
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.manifest import InputLot
from tidemill.store import Tx
from tidemill.views.steps import records
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.keys import StepKeys
from tidemill.views.steps.records import StepRecord

FREE_TRIES = 8
"""How many failures in a row do not postpone the next try."""

MOST_PASSED = 64
"""The maximum number of steps with input between two tries."""

MOST_CHARS = 2000
MOST_EVENTS = 100


class FailedInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input on which a view fails.

    - lots: the lots that arrived in the step that failed; only one if the row was found.
    - row: the row that raises the error, as text; empty if no single row does.
    """

    lots: tuple[InputLot, ...] = ()
    row: str = ""


class PassedLot(msgspec.Struct, frozen=True, array_like=True):
    """A generation of a lot that a view passes over.

    - used: the generation to read instead; -1 for none.
    """

    dataset: DatasetId
    lot: str
    generation: int
    used: int = -1

    def __str__(self) -> str:
        instead = f" (generation {self.used} instead)" if self.used >= 0 else ""
        return f"{self.dataset.name} {self.lot}{instead}"


class FailedView(msgspec.Struct, frozen=True, kw_only=True):
    """A view that is set aside, or that passes over lots on which it failed.

    - code: the code that failed; another code is tried at once.
    - error: what failed; empty if the view waits for another one.
    - cause: the view that it reads and waits for; empty if its own computation fails.
    - current: the step of its table; 0 if it has none.
    - since: the first step that failed.
    - input: the input on which it failed when this error was raised first.
    - tries: how many computations failed in a row.
    - passes: how many steps with input to pass over before the next try.
    - requested: whether an operator requested a try, which then needs no new input.
    - passed: the lots that the view passes over.
    - checks: True if its rows fail a check; otherwise not stored.
    """

    view: str
    code: str
    error: str = ""
    cause: str = ""
    current: int = 0
    since: int = 0
    input: FailedInput = FailedInput()
    tries: int = 0
    passes: int = 0
    requested: bool = False
    passed: tuple[PassedLot, ...] = ()
    checks: bool | UnsetType = UNSET

    @property
    def is_aside(self) -> bool:
        """Whether the view is set aside; otherwise it only passes over lots."""
        return bool(self.error or self.cause)

    @property
    def text(self) -> str:
        """Say what failed, since when and on which input."""
        if not self.is_aside:
            return f"it passes over {', '.join(map(str, self.passed))}"
        if self.cause:
            return f"set aside at step {self.since}: it reads the view {self.cause}, which failed"
        lots = ", ".join(f"{lot.dataset} {lot.lot}" for lot in self.input.lots)
        where = f" of lot {lots}" if lots else ""
        row = f", row {self.input.row}" if self.input.row else ""
        return f"set aside at step {self.since}{where}{row}: {self.error}"


_decoder = msgspec.msgpack.Decoder(FailedView)


def listed(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> dict[str, FailedView]:
    """Return the views of a group that are set aside or pass over lots, by name."""
    rows = [_decoder.decode(row.value) for row in tx.range(*keys.failed.under(pipeline, group))]
    return {row.view: row for row in rows}


def listed_all(tx: Tx, keys: StepKeys, pipeline: str) -> dict[str, FailedView]:
    """Return the views of a pipeline that are set aside or pass over lots, by name."""
    rows = [_decoder.decode(row.value) for row in tx.range(*keys.failed.under(pipeline), snapshot=True)]
    return {row.view: row for row in rows}


def store(
    tx: Tx,
    keys: StepKeys,
    pipeline: str,
    group: str,
    before: Mapping[str, FailedView],
    after: Mapping[str, FailedView],
) -> None:
    """Store which views are set aside; write only the rows that differ."""
    for view in before.keys() - after.keys():
        tx.clear(keys.failed[pipeline, group, view], quiet=True)
    for view, row in after.items():
        if before.get(view) != row:
            tx.set(keys.failed[pipeline, group, view], msgspec.msgpack.encode(row), quiet=True)


def request_try(
    tx: Tx, keys: StepKeys, pipeline: str, group: str, views: Collection[str], holder: str
) -> list[str] | Busy:
    """Make the next step try these views, and the views that they wait for; return the names.

    The step needs no new input. Returns `Busy`, and changes nothing, while another process is the
    coordinator: the caller retries.
    """
    rows = listed(tx, keys, pipeline, group)
    aside = {name: row for name, row in rows.items() if row.is_aside}
    chosen = {row.cause or name for name, row in aside.items() if name in views} & aside.keys()
    if not chosen:
        return []
    lease = records.become_coordinator(tx, keys, pipeline, holder)
    if isinstance(lease, Busy):
        return lease
    requested = {name: msgspec.structs.replace(aside[name], requested=True) for name in chosen}
    store(tx, keys, pipeline, group, {}, requested)
    records.write_record(tx, keys, pipeline, lease, declared=True)
    records.resign_coordinator(tx, keys, pipeline, lease)
    return sorted(chosen)


def pass_over(
    tx: Tx, keys: StepKeys, pipeline: str, group: str, view: str, passed: Collection[PassedLot], holder: str
) -> list[str] | Busy:
    """Let a view that is set aside pass over lots, and make the next step try it; see `request_try`."""
    row = listed(tx, keys, pipeline, group)[view]
    replaced = {(lot.dataset, lot.lot) for lot in passed}
    kept = [lot for lot in row.passed if (lot.dataset, lot.lot) not in replaced]
    row = msgspec.structs.replace(row, passed=(*kept, *passed))
    tx.set(keys.failed[pipeline, group, view], msgspec.msgpack.encode(row), quiet=True)
    return request_try(tx, keys, pipeline, group, [view], holder)


def passed_lots(
    tx: Tx, keys: LotKeys, spec: GroupSpec, rows: Mapping[str, FailedView]
) -> dict[str, tuple[PassedLot, ...]]:
    """Return for each view which lots it still passes over: lots that have no newer generation."""
    codes = {view.name: view.code for view in spec.views}
    passed = {}
    for name, row in rows.items():
        still_passed = tuple(lot for lot in row.passed if _is_current(tx, keys, lot))
        if still_passed and codes.get(name) == row.code:
            passed[name] = still_passed
    return passed


def _is_current(tx: Tx, keys: LotKeys, passed: PassedLot) -> bool:
    row = lots.current(tx, keys, passed.dataset, passed.lot)
    return row is not None and row.generation == passed.generation


def readers(spec: GroupSpec, views: Iterable[str]) -> frozenset[str]:
    """Return these views and the views that read them, directly or through other views."""
    names = set(views)
    for view in spec.views:  # a view comes after the views that it reads
        if not names.isdisjoint(view.uses):
            names.add(view.name)
    return frozenset(names)


def inputs_of(spec: GroupSpec, views: Iterable[str]) -> frozenset[DatasetId]:
    """Return the datasets that these views read, directly or through other views of the group."""
    names = set(views)
    for view in reversed(spec.views):
        if view.name in names:
            names.update(view.uses)
    return frozenset(dataset for view in spec.views if view.name in names for dataset in view.reads)


def can_resume(tx: Tx, keys: LotKeys, spec: GroupSpec, view: str) -> bool:
    """Return whether a view and its readers could be computed later: all rows that they read are stored."""
    return all(
        expiry.read(tx, keys, dataset).lots == base_lot.read(tx, keys, dataset).lots
        for dataset in inputs_of(spec, readers(spec, [view]))
    )


def waiting(
    spec: GroupSpec,
    rows: Mapping[str, FailedView],
    moved: Collection[DatasetId],
    corrected: Collection[DatasetId] = (),
) -> frozenset[str]:
    """Return the views that a step does not compute: failed views that are not due, and their readers.

    - moved: the datasets with input in the step.
    - corrected: the datasets of which the step replaces or removes lots.
    """
    codes = {view.name: view.code for view in spec.views}
    return readers(
        spec,
        (
            name
            for name, row in rows.items()
            if row.error and codes.get(name) == row.code and not _is_due(spec, row, moved, corrected)
        ),
    )


def without(
    spec: GroupSpec, rows: Mapping[str, FailedView], aside: Collection[str], due: Collection[str]
) -> frozenset[str]:
    """Return the views to leave out, if some of the views that are left out are due after all.

    - aside: the views that are left out.
    - due: failed views among them that are due.
    """
    codes = {view.name: view.code for view in spec.views}
    failed = (name for name, row in rows.items() if row.error and codes.get(name) == row.code)
    return readers(spec, (name for name in failed if name in aside and name not in due))


def corrected(
    tx: Tx, keys: StepKeys, page: Iterable[StepRecord], bases: frozenset[DatasetId]
) -> frozenset[DatasetId]:
    """Return the datasets of which these records replace or remove lots."""
    return frozenset(
        each.dataset
        for record in page
        for each in record.ranges
        if each.dataset in bases
        and any(
            event.generation
            for event in events.read(
                tx, keys.lots, each.dataset, each.after, min(MOST_EVENTS, each.to - each.after)
            )
        )
    )


def _is_due(
    spec: GroupSpec, row: FailedView, moved: Collection[DatasetId], corrected: Collection[DatasetId]
) -> bool:
    if row.checks is True:
        return row.requested
    inputs = inputs_of(spec, [row.view])
    return row.requested or not inputs.isdisjoint(corrected if row.passes else moved)


def after_step(
    spec: GroupSpec,
    before: Mapping[str, FailedView],
    aside: Collection[str],
    failures: Mapping[str, FailedView],
    moved: Collection[DatasetId],
    positions: Mapping[str, int],
    passed: Mapping[str, tuple[PassedLot, ...]],
) -> dict[str, FailedView]:
    """Return which views are set aside or pass over lots after a step.

    - aside: the views that the step did not compute.
    - failures: the views that failed in this step.
    - moved: the datasets with input in the step.
    - positions: the step of each view's table before this step; no entry if it has none.
    - passed: the lots that views pass over in this step.
    """
    rows: dict[str, FailedView] = {}
    for view in spec.views:
        still_passed = passed.get(view.name, ())
        if view.name not in aside:
            if still_passed:
                rows[view.name] = FailedView(view=view.name, code=view.code, passed=still_passed)
            continue
        old, failure = before.get(view.name), failures.get(view.name)
        old = None if old is None or not old.is_aside else old
        own = old is not None and not old.cause and old.code == view.code
        if failure is not None:
            row = _failed_again(old, failure) if own and old is not None else failure
        elif own and old is not None:
            row = _passed(spec, old, moved)
        else:
            row = _waiting_row(view, rows)
        current = positions.get(view.name, 0) if old is None else old.current
        rows[view.name] = msgspec.structs.replace(row, current=current, passed=still_passed)
    return rows


def _failed_again(old: FailedView, failure: FailedView) -> FailedView:
    tries = old.tries + 1
    passes = min(MOST_PASSED, 2 ** (tries - FREE_TRIES - 1)) if tries > FREE_TRIES else 0
    known = failure.input if failure.input.lots else old.input
    return msgspec.structs.replace(failure, since=old.since, input=known, tries=tries, passes=passes)


def _passed(spec: GroupSpec, old: FailedView, moved: Collection[DatasetId]) -> FailedView:
    has_input = not inputs_of(spec, [old.view]).isdisjoint(moved)
    return msgspec.structs.replace(old, passes=max(0, old.passes - has_input))


def _waiting_row(view: ViewSpec, rows: Mapping[str, FailedView]) -> FailedView:
    """Return the row of a view that reads views that are set aside."""
    read = next(rows[used] for used in view.uses if used in rows and rows[used].is_aside)
    return FailedView(view=view.name, code=view.code, cause=read.cause or read.view, since=read.since)
