"""Views that are set aside: their own expressions or functions raise an error on their input (DBSP-40).

A failure belongs to one view. The group commits the step without that view, and without the views that read
it. These views keep their last table, so all of them show the same earlier step. Later steps of the group try
them again: such a try computes the whole view from the stored input and compares it with its table. So
nothing is lost, and the result equals that of a view that never failed.

A try reads the complete input, so its cost is bounded: after `FREE_TRIES` failures in a row, the view passes
over 1, 2, 4, … steps that have input for it, at most `MOST_PASSED`. It is tried at once when its declaration
changes, or when an operator requests it (`request_try`).
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from tidemill.cluster.leases import Busy
from tidemill.lots import base_lot, expiry
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.manifest import InputLot
from tidemill.store import Tx
from tidemill.views.steps import records
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.keys import StepKeys

FREE_TRIES = 8
"""How many failures in a row do not postpone the next try."""

MOST_PASSED = 64
"""The maximum number of steps with input between two tries."""

MOST_CHARS = 2000


class FailedInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input on which a view fails.

    - lots: the lots that arrived in the step that failed; only one if the row was found.
    - row: the row that raises the error, as text; empty if no single row does.
    """

    lots: tuple[InputLot, ...] = ()
    row: str = ""


class FailedView(msgspec.Struct, frozen=True, kw_only=True):
    """A view that is set aside.

    - code: the code that failed; another code is tried at once.
    - error: what failed; empty if the view waits for another one.
    - cause: the view that it reads and waits for; empty if its own computation fails.
    - current: the step of its table; 0 if it has none.
    - since: the first step that failed.
    - input: the input on which it failed first.
    - tries: how many computations failed in a row.
    - passes: how many steps with input to pass over before the next try.
    - requested: whether an operator requested a try, which then needs no new input.
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

    @property
    def text(self) -> str:
        """Say what failed, since when and on which input."""
        if self.cause:
            return f"set aside at step {self.since}: it reads the view {self.cause}, which failed"
        lots = ", ".join(f"{lot.dataset} {lot.lot}" for lot in self.input.lots)
        where = f" of lot {lots}" if lots else ""
        row = f", row {self.input.row}" if self.input.row else ""
        return f"set aside at step {self.since}{where}{row}: {self.error}"


_decoder = msgspec.msgpack.Decoder(FailedView)


def listed(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> dict[str, FailedView]:
    """Return the views of a group that are set aside, by name."""
    rows = [_decoder.decode(row.value) for row in tx.range(*keys.failed.under(pipeline, group))]
    return {row.view: row for row in rows}


def listed_all(tx: Tx, keys: StepKeys, pipeline: str) -> dict[str, FailedView]:
    """Return the views of a pipeline that are set aside, by name."""
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
    chosen = {rows[name].cause or name for name in rows if name in views} & rows.keys()
    if not chosen:
        return []
    lease = records.become_coordinator(tx, keys, pipeline, holder)
    if isinstance(lease, Busy):
        return lease
    for name in chosen:
        row = msgspec.structs.replace(rows[name], requested=True)
        tx.set(keys.failed[pipeline, group, name], msgspec.msgpack.encode(row), quiet=True)
    records.write_record(tx, keys, pipeline, lease, declared=True)
    records.resign_coordinator(tx, keys, pipeline, lease)
    return sorted(chosen)


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


def waiting(spec: GroupSpec, rows: Mapping[str, FailedView], moved: Collection[DatasetId]) -> frozenset[str]:
    """Return the views that a step does not compute: failed views that are not due, and their readers.

    - moved: the datasets with input in the step.
    """
    codes = {view.name: view.code for view in spec.views}
    return readers(
        spec,
        (
            name
            for name, row in rows.items()
            if not row.cause and codes.get(name) == row.code and not _is_due(spec, row, moved)
        ),
    )


def _is_due(spec: GroupSpec, row: FailedView, moved: Collection[DatasetId]) -> bool:
    return row.requested or (not row.passes and not inputs_of(spec, [row.view]).isdisjoint(moved))


def after_step(
    spec: GroupSpec,
    before: Mapping[str, FailedView],
    aside: Collection[str],
    failures: Mapping[str, FailedView],
    moved: Collection[DatasetId],
    positions: Mapping[str, int],
) -> dict[str, FailedView]:
    """Return which views are set aside after a step.

    - aside: the views that the step did not compute.
    - failures: the views that failed in this step.
    - moved: the datasets with input in the step.
    - positions: the step of each view's table before this step; no entry if it has none.
    """
    rows: dict[str, FailedView] = {}
    for view in spec.views:
        if view.name not in aside:
            continue
        old, failure = before.get(view.name), failures.get(view.name)
        own = old is not None and not old.cause and old.code == view.code
        if failure is not None:
            row = _failed_again(old, failure) if own and old is not None else failure
        elif own and old is not None:
            row = _passed(spec, old, moved)
        else:
            row = _waiting_row(view, rows)
        current = positions.get(view.name, 0) if old is None else old.current
        rows[view.name] = msgspec.structs.replace(row, current=current)
    return rows


def _failed_again(old: FailedView, failure: FailedView) -> FailedView:
    tries = old.tries + 1
    passes = min(MOST_PASSED, 2 ** (tries - FREE_TRIES - 1)) if tries > FREE_TRIES else 0
    return msgspec.structs.replace(failure, since=old.since, input=old.input, tries=tries, passes=passes)


def _passed(spec: GroupSpec, old: FailedView, moved: Collection[DatasetId]) -> FailedView:
    has_input = not inputs_of(spec, [old.view]).isdisjoint(moved)
    return msgspec.structs.replace(old, passes=max(0, old.passes - has_input))


def _waiting_row(view: ViewSpec, rows: Mapping[str, FailedView]) -> FailedView:
    """Return the row of a view that reads views that are set aside."""
    read = next(rows[used] for used in view.uses if used in rows)
    return FailedView(view=view.name, code=view.code, cause=read.cause or read.view, since=read.since)
