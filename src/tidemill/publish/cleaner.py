"""The cleaner: deletes objects that no manifest lists, and only those (LOT-19).

- It abandons an attempt if its node is gone and no other node took it over in time. It does this in a
  transaction that conflicts with a takeover and with a publication. It deletes objects of the attempt only
  after this transaction has committed.
- It deletes the data of an abandoned attempt, then replaces its manifests with one that has the state
  `removed`.
- It deletes what a published attempt left behind: data of failed or repeated parts, intents, and manifests of
  earlier holders. It keeps everything that the attempt's own manifests list, even if the lot has a newer
  layout.
- It visits abandoned and published attempts again, at growing intervals, because a stale holder may still
  write. It stops when the Spark application that ran the attempt is gone, or after a day. Then it deletes the
  rows of the attempt, because lots and commits name everything that a published attempt has added. It also
  deletes the `removed` manifests of an abandoned attempt, or they would stay for ever.
- It deletes a replaced layout of a lot (LOT-37), and an expired lot (LOT-39), after the grace period of its
  readers.

It never touches open attempts: they may be published, or their parts reused. Any number of cleaners can run
at the same time, on any node, because each step can be repeated.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from tidemill import crash
from tidemill.errors import AttemptUnknown, ManifestUnreadable, ObjectMissing
from tidemill.lots import layout, lots
from tidemill.lots.lots import Retired
from tidemill.lots.manifest import ManifestState
from tidemill.publish import attempts
from tidemill.publish.attempts import Abandoned, Draft, Published
from tidemill.publish.events import AttemptAbandoned, AttemptCleaned, LayoutRemoved
from tidemill.publish.keys import PublishKeys
from tidemill.publish.manifests import Manifests, attempt_in, data_of, manifest_keys
from tidemill.publish.publisher import Publisher
from tidemill.scope import Scope

SECOND_US = 1_000_000
KEEP_S = 24 * 3600.0
GRACE_S = 600.0
READERS_S = 24 * 3600.0
FIRST_AGAIN_S = 60.0
"""The time from the first sweep to the second. Each later interval is four times as long."""

PAGE = 100

IsGone: TypeAlias = Callable[[Draft], bool]
Drop: TypeAlias = Callable[[Draft], None]
ListedBy: TypeAlias = Callable[[str], Collection[str] | None]


def _never_gone(_: Draft) -> bool:
    return False


def _drop_nothing(_: Draft) -> None:
    pass


def _only_manifests(_: str) -> Collection[str] | None:
    return None


class Cleaner:
    """Deletes what attempts left behind after they ended.

    - gone: returns True if all processes of the attempt have stopped writing for good; then the next sweep is
      the last. By default this is unknown, and sweeps continue for `keep_s`.
    - drop: deletes other data of an ended attempt, such as the results of its parts; can be repeated.
    - lists: takes the name of a file that a published attempt refers to. For a version file, it returns the
      objects that the file lists; for a manifest, it returns None. It raises `ObjectMissing` or
      `ManifestUnreadable` if it cannot read the file.
    - grace_s: how long an attempt must be open before it is abandoned because its node is gone.
    - readers_s: how long a replaced layout stays for readers that started with it.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        gone: IsGone = _never_gone,
        drop: Drop = _drop_nothing,
        lists: ListedBy = _only_manifests,
        keep_s: float = KEEP_S,
        grace_s: float = GRACE_S,
        readers_s: float = READERS_S,
    ) -> None:
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)
        self._objects = scope.objects
        self._manifests = Manifests(scope.objects, scope.clock)
        self._publisher = Publisher(scope)
        self._gone = gone
        self._drop = drop
        self._lists = lists
        self._keep_us = int(keep_s * SECOND_US)
        self._grace_us = int(grace_s * SECOND_US)
        self._readers_us = int(readers_s * SECOND_US)
        self._after = ""  # the last open attempt that was checked
        self._forgotten_to: str | None = ""  # the last row checked by `forget_published`; None at the end

    def clean(self, limit: int = PAGE) -> bool:
        """Do one page of each kind of work; return True if there may be more to do now.

        Attempts are swept before their layouts are removed, because a sweep reads their manifests.
        """
        more = self.abandon_lost(limit)
        if self.sweep(limit) == limit:
            return True
        more = self.forget_published(limit) or more
        return self.remove_retired(limit) == limit or more

    def forget_published(self, limit: int = PAGE) -> bool:
        """Delete a page of rows that no sweep will visit: those of attempts that an earlier release kept.

        Each cleaner reads the rows of all attempts once. Return True if there are more.
        """
        if self._forgotten_to is None:
            return False
        after, keep_us = self._forgotten_to, self._keep_us
        ids, last = self._scope.store.run(
            lambda tx: attempts.published_before(tx, self._keys, tx.now() - keep_us, after, limit)
        )
        for attempt in ids:
            self._forget(attempt)
        self._forgotten_to = last or None
        return bool(last)

    def _forget(self, attempt: str) -> None:
        with contextlib.suppress(AttemptUnknown):  # another cleaner was faster
            self._publisher.forget(attempt)

    def abandon_lost(self, limit: int = PAGE) -> bool:
        """Check a page of open attempts, and abandon those whose node is gone.

        Return False after the last page.
        """
        page = self._scope.store.run(lambda tx: attempts.open_ids(tx, self._keys, self._after, limit))
        for attempt in page:
            try:
                lost = self._publisher.abandon_lost(attempt, self._grace_us)
            except AttemptUnknown:
                continue  # it has ended, and its rows are deleted
            if lost is not None:
                self._scope.emit(abandoned_event(lost))
        self._after = page[-1] if len(page) == limit else ""
        return bool(self._after)

    def sweep(self, limit: int = PAGE) -> int:
        """Sweep the ended attempts that are due; return their number."""
        page, now = self._scope.store.run(lambda tx: (attempts.to_sweep(tx, self._keys, limit), tx.now()))
        for ended in page:
            last = now >= ended.at + self._keep_us or self._gone(ended.draft)
            if ended.sweeps == 0 or last:
                self._drop(ended.draft)
            removed = (
                self._sweep_published(ended) if isinstance(ended, Published) else self._sweep_abandoned(ended)
            )
            if removed:
                self._scope.emit(AttemptCleaned(attempt=ended.draft.id, objects=removed))
            self._schedule_next(ended, now, last)
        return len(page)

    def remove_retired(self, limit: int = PAGE, *, delete: bool = True) -> int:
        """Delete replaced layouts and expired lots after the grace period of their readers; return how many.

        It deletes the data before the manifests that list it, so a cleaner that resumes knows what is left.

        - delete: False to emit the events, but delete nothing.
        """
        lots_keys = self._keys.lots
        page = self._scope.store.run(
            lambda tx: lots.retired(tx, lots_keys, tx.now() - self._readers_us, limit)
        )
        unreadable = 0
        for old in page:
            removed = 0
            data: list[str] = []
            try:
                root = self._manifests.load(old.manifest)
                data += [item.uri for item in root.objects]
                for part in root.parts:
                    with contextlib.suppress(ObjectMissing):  # an earlier cleaner deleted it
                        data += [item.uri for item in self._manifests.load(part).objects]
            except ObjectMissing:
                root = None  # another cleaner died after it had deleted the manifest
            except ManifestUnreadable:
                unreadable += 1  # its objects are unknown; continue with the others
                continue
            if root is not None:
                other = self._other_manifests(old)
                if delete:
                    self._delete("retire-data", data)
                    self._delete("retire-parts", [*root.parts, *other])
                    self._delete("retire-manifest", [old.manifest])
                removed = len(data) + len(root.parts) + len(other) + 1
            if delete:
                self._scope.step(
                    "publish.retired",
                    lambda tx, old=old: lots.forget_retired(tx, lots_keys, old),  # type: ignore[misc]
                )
            self._scope.emit(
                LayoutRemoved(
                    dataset=str(old.dataset),
                    lot=old.lot,
                    generation=old.generation,
                    revision=old.revision,
                    objects=removed,
                )
            )
        return len(page) - unreadable

    def _other_manifests(self, old: Retired) -> list[str]:
        """Return what is left of a lot that has expired: projections, and manifests of removed attempts.

        A lot with a row, or with an attempt that is open, keeps them.
        """
        lots_keys, prefix = self._keys.lots, layout.lot_prefix(*old.dataset.parts, old.lot)
        if self._scope.store.run(lambda tx: lots.exists(tx, lots_keys, old.dataset, old.lot)):
            return []
        return [
            info.key
            for info in self._objects.list(prefix)
            if info.key != old.manifest and ("/state=removed/" in info.key or "/attempt=" not in info.key)
        ]

    def _schedule_next(self, ended: Published | Abandoned, now: int, last: bool) -> None:
        if last:
            if isinstance(ended, Abandoned):
                records = [
                    self._manifests.deletion_key(ended.draft, target) for target in ended.draft.targets
                ]
                self._delete("remove-manifests", records)
            self._forget(ended.draft.id)
            return
        pause_us = int(FIRST_AGAIN_S * SECOND_US) * 4 ** min(ended.sweeps, 10)
        at = min(now + pause_us, ended.at + self._keep_us)
        self._scope.step("publish.swept", lambda tx: attempts.sweep_again(tx, self._keys, ended, at))

    def _sweep_abandoned(self, ended: Abandoned) -> int:
        removed = 0
        for target in ended.draft.targets:
            data = data_of(self._objects, ended.draft, target)
            manifests = manifest_keys(self._objects, ended.draft, target, _WRITTEN)
            if not data and not manifests:
                continue
            self._delete("remove-data", data)
            self._manifests.write_deletion(ended.draft, target, ended.why)
            self._delete("remove-manifests", manifests)
            removed += len(data) + len(manifests)
        return removed

    def _sweep_published(self, ended: Published) -> int:
        removed = 0
        for target, manifest in zip(ended.draft.targets, ended.manifest_keys, strict=True):
            manifests = manifest_keys(self._objects, ended.draft, target, _WRITTEN)
            data = data_of(self._objects, ended.draft, target)
            try:
                in_use = self._in_use(ended.draft, manifest, read=bool(data))
            except (ObjectMissing, ManifestUnreadable):
                continue  # readers will report it; delete nothing without knowing what is in use
            unused_data = [key for key in data if key not in in_use]
            unused_manifests = [key for key in manifests if key not in in_use]
            self._delete("remove-data", unused_data)
            self._delete("remove-manifests", unused_manifests)
            removed += len(unused_data) + len(unused_manifests)
        return removed

    def _in_use(self, draft: Draft, manifest: str, *, read: bool) -> set[str]:
        """Return the manifests of one sink of a published attempt and, if `read`, the objects they list.

        A root manifest may list parts of other attempts, such as appends. The manifests of such parts list no
        objects of this attempt.
        """
        if not manifest:  # an optional sink that was left out
            return set()
        listed = self._lists(manifest)
        if listed is not None:
            return {manifest, *listed}
        root = self._manifests.load(manifest)
        in_use = {manifest, *root.parts}
        if read:
            own = [key for key in root.parts if attempt_in(key) == draft.id]
            in_use |= {item.uri for item in root.objects}
            in_use |= {item.uri for key in own for item in self._manifests.load(key).objects}
        return in_use

    def _delete(self, step: str, keys: Iterable[str]) -> None:
        unused = list(keys)
        if not unused:
            return
        crash.point(f"publish.{step}.before")
        self._objects.delete_many(unused)
        crash.point(f"publish.{step}.after")


_WRITTEN = (ManifestState.PARTIAL, ManifestState.COMPLETE, ManifestState.EMPTY)


def abandoned_event(abandoned: Abandoned) -> AttemptAbandoned:
    """Return the event of an attempt that was abandoned."""
    draft = abandoned.draft
    return AttemptAbandoned(
        attempt=draft.id, author=draft.author, lot=draft.lot, generation=draft.generation, why=abandoned.why
    )
