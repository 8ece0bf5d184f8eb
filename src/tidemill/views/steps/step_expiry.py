"""Expiry of steps: remove the commits, the records and the changes of old steps (LOT-39, DBSP-30).

A view's changes expire if its group keeps them for a limited time. The table of the view and the state of the
group stay as they are. A group keeps the changes of all its views for the longest time that one of them
declares, because one row holds the outputs of a step for all views. It always keeps its last 100 commits,
among which the collector finds the lists before the current ones.

The commits go first. From then on, no reader finds the changes. The collector removes their files a day
later, for readers that have already listed them, and only those that no table lists. A record is removed
when every group of the pipeline has expired its step.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tidemill.lots import expiry
from tidemill.lots.expiry import Expired, KeepPolicy
from tidemill.lots.keys import DatasetId
from tidemill.store import Tx, long_values
from tidemill.triggers import subscriptions
from tidemill.views.steps import commits, groups
from tidemill.views.steps.commits import StepRow
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.keys import StepKeys, changes_of, group_source

KEPT_COMMITS = 100
PAGE = 100
READERS_US = 24 * 3600 * 1_000_000


def keep_of(policies: Mapping[DatasetId, KeepPolicy], pipeline: str, group: ViewGroup) -> int | None:
    """Return for how long a group keeps changes (µs): the longest time of its views; None for ever."""
    kept = [policies.get(changes_of(pipeline, view.name)) for view in group.spec.views]
    times = [keep.keep_us for keep in kept if keep is not None]
    return max(times) if times and len(times) == len(kept) else None


def removable(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> int:
    """Return the last step whose files may be removed: it expired at least a day ago."""
    expired = expiry.read(tx, keys.lots, group_source(pipeline, group))
    due = [step for step, at in expired.pending if at + READERS_US <= tx.now()]
    return max([expired.removable, *due])


def bound(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> tuple[int, str]:
    """Return the last step that all subscribers and consumers have read, and who has read the least."""
    source = group_source(pipeline, group.spec.name)
    least, holder = group.step, ""
    for row in tx.range(*keys.triggers.subscriber.under(*source.parts)):
        name = str(keys.triggers.subscriber.unpack(row.key)[2])
        progress = subscriptions.must_read(tx, keys.triggers, name).tally.seen.get(source, 0)
        least, holder = min((least, holder), (progress, name))
    for view in group.spec.views:
        for consumer, position in expiry.consumers(tx, keys.lots, changes_of(pipeline, view.name)).items():
            least, holder = min((least, holder), (position, f"consumer {consumer}"))
    return least, holder


def expiring(
    tx: Tx,
    keys: StepKeys,
    pipeline: str,
    group: ViewGroup,
    after: int,
    *,
    before: int,
    bound: int,
    limit: int = PAGE,
) -> list[StepRow]:
    """Return the next commits that expire: older than a time (store time, µs), and not above the bound."""
    last = commits.newest(tx, keys, pipeline, group.spec.name, KEPT_COMMITS)
    if len(last) < KEPT_COMMITS:
        return []
    to = min(bound, last[-1].step - 1)
    page = commits.rows(tx, keys, pipeline, group.spec.name, after, to, limit)
    old = []
    for row in page:
        if row.at >= before:
            break
        old.append(row)
    return old


def expire(tx: Tx, keys: StepKeys, pipeline: str, group: str, page: Sequence[StepRow]) -> None:
    """Remove a page of commits, in the transaction that selected them. Their files stay for readers."""
    source, now = group_source(pipeline, group), tx.now()
    expired = expiry.read(tx, keys.lots, source)
    if page:
        last = page[-1].step
        lo, hi = keys.step[pipeline, group, 0], keys.step[pipeline, group, last + 1]
        long_values.clear_long_range(tx, keys.more, lo, hi)
        expired = msgspec.structs.replace(expired, position=last, lots=expired.lots + len(page))
    expired = _later(expired, removable(tx, keys, pipeline, group), now)
    if expired != expiry.read(tx, keys.lots, source):
        expiry.write(tx, keys.lots, source, expired)


def _later(expired: Expired, removable: int, now: int) -> Expired:
    """Note at most once an hour which steps have expired, to remove their files a day later."""
    pending = tuple(item for item in expired.pending if item[0] > removable)
    last, at = pending[-1] if pending else (removable, 0)
    if expired.position > last and now - at >= READERS_US // 24:
        pending = (*pending, (expired.position, now))
    return msgspec.structs.replace(expired, removable=removable, pending=pending)


def expire_records(tx: Tx, keys: StepKeys, pipeline: str, limit: int = PAGE) -> bool:
    """Remove a page of records whose steps have expired in every group; return True if there may be more.

    For each dataset, the newest position at or before the last of these steps stays, because the steps after
    it begin there.
    """
    declared = groups.listed(tx, keys, pipeline)
    sources = [group_source(pipeline, group.spec.name) for group in declared]
    to = min((expiry.read(tx, keys.lots, source).position for source in sources), default=0)
    lo, hi = keys.record[pipeline, 0], keys.record[pipeline, to + 1]
    page = tx.range(lo, hi, limit=limit)
    if page:
        tx.clear_range(lo, page[-1].key + b"\x00")
    more = len(page) == limit
    for row in tx.range(*keys.base.under(pipeline)):
        _, name, version = keys.base.unpack(row.key)
        more |= _expire_ranges(tx, keys, pipeline, DatasetId(str(name), str(version)), to, limit)
    return more


def _expire_ranges(tx: Tx, keys: StepKeys, pipeline: str, dataset: DatasetId, to: int, limit: int) -> bool:
    lo, _ = keys.range.under(pipeline, *dataset.parts)
    newest = tx.range(lo, keys.range[(pipeline, *dataset.parts, to + 1)], limit=1, reverse=True)
    if not newest:
        return False
    page = tx.range(lo, newest[0].key, limit=limit)
    if page:
        tx.clear_range(lo, page[-1].key + b"\x00")
    return len(page) == limit
