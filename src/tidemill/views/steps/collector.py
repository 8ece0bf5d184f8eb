"""Collection: files of views that nothing lists any more are removed, and no others (DBSP-37).

What a step replaces stays where it is: run files that a merge has put together, the lists of tables and the
version files of earlier steps. The collector looks through the folders of a pipeline's views, page by page:

1. list objects; 2. read the attempts that their names carry; 3. read what is current, in one transaction, and
then the lists it names; 4. delete what belongs to an ended attempt and is in none of these lists.

That order makes it safe. An attempt is entered before its first object, so what was listed belongs to one
that is known to be open (and is left alone) or has ended. A step's lists name what its own attempt wrote, and
what the lists before it named; so what an ended attempt wrote and the current list does not name, no later
list ever will.

Kept: what the current lists name and those before them, and the last list of a view that was taken out, until
somebody drops it; what readers have pinned; whatever is younger than a grace; the changes of every step whose
row is there, because consumers may read them after any position. The files of base datasets are in other
folders: input is not touched here at all (DBSP-28).

Any number of collectors may run at once, and each step may be repeated.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from tidemill import crash
from tidemill.clock import Clock
from tidemill.errors import AttemptUnknown, ManifestUnreadable, ObjectMissing, TraceError, TraceMissing
from tidemill.events import Emit, ignore
from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.objects.port import ObjectInfo, Objects
from tidemill.publish import attempts
from tidemill.publish.attempts import AnyAttempt, Published
from tidemill.publish.manifests import attempt_in
from tidemill.store import Store, Tx
from tidemill.views.steps import commits, groups, pins, retired
from tidemill.views.steps.events import FilesCollected
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.steps.keys import (
    StepKeys,
    changes_of,
    group_id,
    quarantine_of,
    state_of,
    step_of,
    table_of,
)
from tidemill.views.trace.version import read_version

GRACE_S = 600.0
PAGE = 500
"""Objects that are listed at once."""

MOST_PAGES = 16
"""Pages of one pass; the next one goes on behind them."""

BEFORE = 100
"""Commits that are looked through for what was current before."""


class _Folder(NamedTuple):
    """One place to look through: the data or the manifests of one dataset."""

    dataset: DatasetId
    view: str  # whose table or changes these are; empty for what is a group's
    group: str  # whose state this is; empty for what is a view's
    kind: str  # data or datasets
    gone: bool = False  # of a view or a group that is declared no more, or was once

    @property
    def prefix(self) -> str:
        name, version = self.dataset.parts
        return f"{self.kind}/name={layout.quote(name)}/version={layout.quote(version)}/"


class Collector:
    """Collects the files of one pipeline's views.

    - grace_s: what is younger stays, whatever lists it.
    """

    def __init__(
        self,
        store: Store,
        keys: StepKeys,
        pipeline: str,
        objects: Objects,
        clock: Clock,
        *,
        emit: Emit = ignore,
        grace_s: float = GRACE_S,
        page: int = PAGE,
    ) -> None:
        self._store = store
        self._keys = keys
        self._pipeline = pipeline
        self._objects = objects
        self._clock = clock
        self._emit = emit
        self._grace_s = grace_s
        self._page = page
        self._manifests = ManifestReader(objects)
        self._at: tuple[str, str] = ("", "")  # the folder we are in, and the last key we have had of it
        self._begun: set[str] = set()  # folders of what is gone that this round has seen from their beginning
        self._waiting: set[str] = set()  # folders in which something is left that may go later

    def collect(self, pages: int = MOST_PAGES) -> bool:
        """Some pages, behind those of the last pass; True when a round has not come to its end yet."""
        folders = sorted(self._folders(), key=lambda folder: folder.prefix)
        for _ in range(pages):
            ahead = [one for one in folders if one.prefix >= self._at[0]]
            if not ahead:
                self._end_round(folders)
                return False
            folder = ahead[0]
            after = self._at[1] if folder.prefix == self._at[0] else ""
            if folder.gone and not after:
                self._begun.add(folder.prefix)
            found = list(self._objects.list(folder.prefix, after=after or None, limit=self._page))
            self._collect(folder, found)
            if len(found) == self._page:
                self._at = (folder.prefix, found[-1].key)
            else:
                self._at = (folder.prefix + "\x7f", "")
        return True

    def _end_round(self, folders: Sequence[_Folder]) -> None:
        """What is gone, and has nothing left, is forgotten; and so are pins that have ended."""
        self._at = ("", "")
        over, self._begun, self._waiting = self._begun - self._waiting, set(), set()
        left = [one for one in folders if one.gone]
        stays = {(one.view, one.group) for one in left if one.prefix not in over}
        names = {(one.view, one.group) for one in left} - stays
        self._store.run(lambda tx: retired.collected(tx, self._keys, self._pipeline, names))
        self._store.run(lambda tx: pins.forget_ended(tx, self._keys, self._pipeline))

    def _folders(self) -> list[_Folder]:
        def read(tx: Tx) -> tuple[list[str], list[str], list[tuple[str, str]]]:
            declared = groups.listed(tx, self._keys, self._pipeline)
            views = [view.name for group in declared for view in group.spec.views]
            names = [group.spec.name for group in declared]
            return views, names, retired.to_collect(tx, self._keys, self._pipeline)

        views, names, left = self._store.run(read)
        found: dict[str, _Folder] = {}
        for kind in ("data", "datasets"):
            for view in views:
                _add(found, _Folder(table_of(self._pipeline, view), view, "", kind))
            for name in names:
                _add(found, _Folder(state_of(self._pipeline, name), "", name, kind))
            for view, group in left:
                of_view = [changes_of(self._pipeline, view), table_of(self._pipeline, view)] if view else []
                of_group = [state_of(self._pipeline, group), quarantine_of(self._pipeline, group)]
                for dataset in of_view or of_group:
                    _add(found, _Folder(dataset, view, group, kind, gone=True))
        return list(found.values())

    # --- one page

    def _collect(self, folder: _Folder, found: Sequence[ObjectInfo]) -> None:
        known = self._attempts({attempt_in(info.key) for info in found})
        try:
            kept, named = self._kept(folder, known)
        except (ObjectMissing, ManifestUnreadable):
            self._waiting.add(folder.prefix)
            return  # what cannot be read is no reason to delete
        youngest = self._clock.wall() - self._grace_s
        spare = []
        for info in found:
            attempt = known[attempt_in(info.key)]
            if info.key in kept or attempt_in(info.key) in named or "/state=removed/" in info.key:
                continue
            if info.modified_at > youngest or not (attempt is None or isinstance(attempt, Published)):
                self._waiting.add(folder.prefix)  # too young, open, or the cleaner's
                continue
            spare.append(info)
        if not spare:
            return
        crash.point("views.collect.before")
        self._objects.delete_many(info.key for info in spare)
        crash.point("views.collect.after")
        self._emit(
            FilesCollected(
                pipeline=self._pipeline,
                of=folder.view or folder.group,
                files=len(spare),
                size=sum(info.size for info in spare),
            )
        )

    def _attempts(self, ids: Iterable[str]) -> dict[str, AnyAttempt | None]:
        """The attempts by their ids; None for one that was forgotten, which is long after its end."""

        def read(tx: Tx) -> dict[str, AnyAttempt | None]:
            found: dict[str, AnyAttempt | None] = {}
            for one in ids:
                try:
                    found[one] = attempts.read(tx, self._keys, one)
                except AttemptUnknown:
                    found[one] = None
            return found

        return self._store.run(read)

    def _kept(self, folder: _Folder, known: dict[str, AnyAttempt | None]) -> tuple[set[str], set[str]]:
        """What is kept of a folder: objects by their keys, and all that some attempts wrote."""
        lists, named = self._store.run(lambda tx: self._current(tx, folder, known))
        kept = set(lists)
        for name, required in lists.items():
            try:
                files = listed_run_files(self._objects, name)
                if files is not None:
                    kept |= set(files)
                    continue
                parts = self._manifests.load(name).parts
                kept |= set(parts)
                for leaf in self._manifests.load_all(parts):
                    kept |= {item.uri for item in leaf.objects}
            except (ObjectMissing, ManifestUnreadable):
                if required:
                    raise
        return kept, named

    def _current(
        self, tx: Tx, folder: _Folder, known: dict[str, AnyAttempt | None]
    ) -> tuple[dict[str, bool], set[str]]:
        """The lists that are kept, and whether each must be there; and the attempts that rows of steps name.

        What is pinned, or was current before, may be gone with a view that was declared no more for a while.
        """
        keys, pipeline = self._keys, self._pipeline
        now: set[str] = set()
        before: set[str] = set()
        for group in groups.listed(tx, keys, pipeline):
            if folder.group == group.spec.name and group.version:
                now.add(group.version)
                before |= _earlier(tx, keys, pipeline, group.spec.name, "", group.version)
            table = group.tables.get(folder.view) if folder.view in group.spec.names else None
            if table:
                now.add(table)
                before |= _earlier(tx, keys, pipeline, group.spec.name, folder.view, table)
        last = retired.find(tx, keys, pipeline, folder.view) if folder.view else None
        if last is not None:  # nobody declares it any more, and it can be read
            now.add(last.table)
        of = table_of(pipeline, folder.view) if folder.view else state_of(pipeline, folder.group)
        name, version = (layout.quote(part) for part in of.parts)
        kind = "datasets" if folder.view else "data"
        before |= pins.pinned(tx, keys, pipeline, f"{kind}/name={name}/version={version}/")
        named: set[str] = set()
        if folder.dataset.version in ("changes", "quarantine"):
            rows = {one: _row_of(tx, keys, pipeline, attempt) for one, attempt in known.items()}
            named = {one for one, row in rows.items() if row is not None}
        return dict.fromkeys(before, False) | dict.fromkeys(now, True), named


def _add(found: dict[str, _Folder], folder: _Folder) -> None:
    old = found.get(folder.prefix)
    found[folder.prefix] = folder if old is None else old._replace(gone=old.gone or folder.gone)


def _earlier(tx: Tx, keys: StepKeys, pipeline: str, group: str, view: str, now: str) -> set[str]:
    """The list before the one that is current now; none when that is long ago, or was never."""
    for row in commits.newest(tx, keys, pipeline, group, BEFORE):
        tables = [one.table for one in row.outputs if one.view == view]
        for name in tables if view else [row.version]:
            if name and name != now:
                return {name}
    return set()


def _row_of(tx: Tx, keys: StepKeys, pipeline: str, attempt: AnyAttempt | None) -> commits.StepRow | None:
    """The commit that names an attempt; None when its group was removed since."""
    start = group_id(pipeline, "")
    if attempt is None or not attempt.draft.author.startswith(start):
        return None
    step = step_of(attempt.draft.lot)
    found = commits.rows(tx, keys, pipeline, attempt.draft.author.removeprefix(start), step - 1, step, 1)
    return found[0] if found and found[0].attempt == attempt.draft.id else None


def listed_run_files(objects: Objects, key: str) -> Collection[str] | None:
    """The run files that a version file lists; None for what is none, by its name.

    `ObjectMissing` when it is not there any more, `ManifestUnreadable` when it cannot be read.
    """
    named = layout.parse_key(key)
    if named["kind"] != "data" or named.get("version") != "state":
        return None
    try:
        return read_version(objects, key).files()
    except TraceMissing as error:
        raise ObjectMissing(error.message) from error
    except TraceError as error:
        raise ManifestUnreadable(error.message) from error
