"""The cleaner: nothing stays that no manifest lists, and nothing goes that one does (LOT-19).

- An attempt whose node is gone, and that nobody adopted within a grace, is abandoned: a transaction that
  conflicts with adopting and publishing it. Only then is anything of it deleted.
- An abandoned attempt's data is deleted, then a `removed` manifest takes the place of its others.
- A published attempt's leftovers are deleted: what its failed or repeated parts wrote, intents, and manifests
  of former holders. What its own manifests list is kept, also when the lot's layout was revised since.
- Both are looked after again, at growing distances, because a zombie may still write: until its Spark
  application is gone, or a day has passed. Then an abandoned attempt is forgotten.

- A layout of a lot that was replaced by another (LOT-37) is deleted when its readers' grace is over.

Open attempts are never touched: they may be published, or their parts reused. Any number of cleaners may run
at once, on any node: each step may be repeated.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from tidemill import crash
from tidemill.errors import AttemptUnknown, ManifestUnreadable, ObjectMissing
from tidemill.lots import lots
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
"""After the first sweep; each later one is four times as far off."""

PAGE = 100

Gone: TypeAlias = Callable[[Draft], bool]
Drop: TypeAlias = Callable[[Draft], None]
Lists: TypeAlias = Callable[[str], Collection[str] | None]


def unknown(_: Draft) -> bool:
    """Nobody says whether an attempt's Spark application is gone: a day has to pass."""
    return False


def nothing(_: Draft) -> None:
    """An attempt that left nothing but objects."""


def no_others(_: str) -> Collection[str] | None:
    """Whatever a published attempt names is a manifest."""
    return None


class Cleaner:
    """Removes what ended attempts left.

    - gone: can nothing of this attempt write any more? Asked before a sweep, which is then the last one.
    - drop: let go of what else an ended attempt has, such as the results of its parts; may be repeated.
    - lists: the objects that a file lists which a published attempt names and which is no manifest, such as a
      version file; None for a manifest. `ObjectMissing` or `ManifestUnreadable` if that cannot be said.
    - grace_s: how long an attempt must be open before a dead node's one is given up.
    - readers_s: how long a layout that was replaced stays for readers that have begun with it.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        gone: Gone = unknown,
        drop: Drop = nothing,
        lists: Lists = no_others,
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
        self._after = ""  # the open attempt up to which we have looked

    def clean(self, limit: int = PAGE) -> bool:
        """One page of everything; True when there may be more to do now.

        Attempts are swept before a layout of theirs is removed: what one left is told by its manifest.
        """
        more = self.abandon_lost(limit)
        if self.sweep(limit) == limit:
            return True
        return self.remove_retired(limit) == limit or more

    def abandon_lost(self, limit: int = PAGE) -> bool:
        """Give up a page of the open attempts whose nodes are gone; False at the end of a round."""
        page = self._scope.store.run(lambda tx: attempts.open_ids(tx, self._keys, self._after, limit))
        for attempt in page:
            try:
                lost = self._publisher.abandon_lost(attempt, self._grace_us)
            except AttemptUnknown:
                continue  # it ended meanwhile, and was forgotten
            if lost is not None:
                self._scope.emit(abandoned_event(lost))
        self._after = page[-1] if len(page) == limit else ""
        return bool(self._after)

    def sweep(self, limit: int = PAGE) -> int:
        """Look after the ended attempts whose time has come; how many there were."""
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
            self._settle(ended, now, last)
        return len(page)

    def remove_retired(self, limit: int = PAGE) -> int:
        """Remove layouts that were replaced so long ago that nobody reads them any more; how many.

        Data first and what lists it last, so that whoever goes on after a death knows what is left.
        """
        lots_keys = self._keys.lots
        page = self._scope.store.run(
            lambda tx: lots.retired(tx, lots_keys, tx.now() - self._readers_us, limit)
        )
        left = 0
        for old in page:
            removed = 0
            try:
                root = self._manifests.load(old.manifest)
            except ObjectMissing:
                root = None  # somebody died behind this point
            except ManifestUnreadable:
                left += 1  # what it lists is not known; those behind it are no worse for that
                continue
            if root is not None:
                data = [item.uri for item in root.objects]
                for part in root.parts:
                    with contextlib.suppress(ObjectMissing):  # somebody died between two of them
                        data += [item.uri for item in self._manifests.load(part).objects]
                self._delete("retire-data", data)
                self._delete("retire-parts", root.parts)
                self._delete("retire-manifest", [old.manifest])
                removed = len(data) + len(root.parts) + 1
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
        return len(page) - left

    def _settle(self, ended: Published | Abandoned, now: int, last: bool) -> None:
        if last and isinstance(ended, Abandoned):
            with contextlib.suppress(AttemptUnknown):  # another cleaner was faster
                self._publisher.forget(ended.draft.id)
            return
        again = int(FIRST_AGAIN_S * SECOND_US) * 4 ** min(ended.sweeps, 10)
        at = None if last else min(now + again, ended.at + self._keep_us)
        self._scope.step("publish.swept", lambda tx: attempts.sweep_again(tx, self._keys, ended, at))

    def _sweep_abandoned(self, ended: Abandoned) -> int:
        removed = 0
        for target in ended.draft.targets:
            data = data_of(self._objects, ended.draft, target)
            bodies = manifest_keys(self._objects, ended.draft, target, _WRITTEN)
            if not data and not bodies:
                continue
            self._delete("remove-data", data)
            self._manifests.removed(ended.draft, target, ended.why)
            self._delete("remove-manifests", bodies)
            removed += len(data) + len(bodies)
        return removed

    def _sweep_published(self, ended: Published) -> int:
        removed = 0
        for target, manifest in zip(ended.draft.targets, ended.manifest_keys, strict=True):
            bodies = manifest_keys(self._objects, ended.draft, target, _WRITTEN)
            data = data_of(self._objects, ended.draft, target)
            try:
                kept = self._kept(ended.draft, manifest, read=bool(data))
            except (ObjectMissing, ManifestUnreadable):
                continue  # readers will say so; what cannot be read is no reason to delete
            left = [key for key in data if key not in kept]
            spare = [key for key in bodies if key not in kept]
            self._delete("remove-data", left)
            self._delete("remove-manifests", spare)
            removed += len(left) + len(spare)
        return removed

    def _kept(self, draft: Draft, manifest: str, *, read: bool) -> set[str]:
        """What one sink of a published attempt consists of: its manifests and, if `read`, what they list.

        A root may have parts of other attempts, such as appends: those list nothing of ours.
        """
        if not manifest:  # an optional sink that was left out
            return set()
        others = self._lists(manifest)
        if others is not None:
            return {manifest, *others}
        root = self._manifests.load(manifest)
        kept = {manifest, *root.parts}
        if read:
            own = [key for key in root.parts if attempt_in(key) == draft.id]
            kept |= {item.uri for item in root.objects}
            kept |= {item.uri for key in own for item in self._manifests.load(key).objects}
        return kept

    def _delete(self, step: str, keys: Iterable[str]) -> None:
        found = list(keys)
        if not found:
            return
        crash.point(f"publish.{step}.before")
        self._objects.delete_many(found)
        crash.point(f"publish.{step}.after")


_WRITTEN = (ManifestState.PARTIAL, ManifestState.COMPLETE, ManifestState.EMPTY)


def abandoned_event(abandoned: Abandoned) -> AttemptAbandoned:
    """Return the event of an attempt that was abandoned."""
    draft = abandoned.draft
    return AttemptAbandoned(
        attempt=draft.id, author=draft.author, lot=draft.lot, generation=draft.generation, why=abandoned.why
    )
