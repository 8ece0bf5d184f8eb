"""The collector: delete view files that are no longer needed, and no other files (DBSP-37).

A step does not delete what it replaces: merged run files, table manifests and version files of earlier steps.
Table manifests and version files are called *lists* here, because they list the files to keep. The collector
scans the folders of a pipeline's views, page by page:

1. List objects.
2. Look up the attempts whose ids appear in the names of these objects.
3. In one transaction, read which lists are current. Then read these lists.
4. Delete the objects that belong to ended attempts and that no list names.

This order makes deletion safe. An attempt is stored before its first object, so every object of step 1
belongs to a known attempt. The collector keeps the objects of attempts that are still open. The lists of a
step name only objects of its own attempt and objects that earlier lists named. So if an ended attempt wrote
an object and the current list does not name it, no later list will.

The collector keeps:

- the current lists, the lists before them, and the files that any of these name;
- the last table of a retired view, until a user drops it;
- the lists that readers or the versions of a group have pinned, and their files;
- the state of a shadow whose node works on it;
- everything younger than the grace period;
- the changes of every committed step, because consumers may read them from any position. If a view declares
  `keep=`, old commits expire (`step_expiry`); then the collector removes the changes that no table lists.

The files of base datasets are in other folders, which the collector never touches (DBSP-28).

Several collectors may run at the same time, and each of the four steps can be repeated.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill import crash
from tidemill.errors import AttemptUnknown, ManifestUnreadable, ObjectMissing, TraceError, TraceMissing
from tidemill.events import Emit, ignore
from tidemill.lots import layout, wall_clock
from tidemill.lots.keys import DatasetId
from tidemill.objects.port import ObjectInfo, Objects
from tidemill.publish import attempts
from tidemill.publish.attempts import AnyAttempt, Published
from tidemill.publish.manifests import attempt_in
from tidemill.store import Store, Tx
from tidemill.views.steps import commits, groups, pins, retired, shadow, step_expiry, versions
from tidemill.views.steps.events import FilesCollected
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.steps.keys import (
    StepKeys,
    changes_of,
    quarantine_of,
    state_of,
    step_of,
    table_of,
)
from tidemill.views.steps.versions import GroupVersion
from tidemill.views.trace.version_file import read_version

GRACE_S = 600.0
PAGE = 500
"""How many objects to list at once."""

MOST_PAGES = 16
"""How many pages one pass scans; the next pass continues after them."""

EARLIER_COMMITS = 100
"""How many commits to search for the list before the current one."""


class _Folder(NamedTuple):
    """A folder to scan: the data or the manifests of one dataset.

    - view: the view of this table or these changes; empty for a folder of a group.
    - group: the group of this state or quarantine; empty for a folder of a view.
    - kind: `data` or `datasets`.
    - marked: whether the view or group is marked for collection, because it is not declared, or was not
      declared for a while.
    - removable: in a folder of changes, the last step whose files may be removed because it has expired.
    """

    dataset: DatasetId
    view: str
    group: str
    kind: str
    marked: bool = False
    removable: int = 0

    @property
    def prefix(self) -> str:
        name, version = self.dataset.parts
        return f"{self.kind}/name={layout.quote(name)}/version={layout.quote(version)}/"


class Collector:
    """Collects the files of one pipeline's views.

    - grace_s: objects younger than this are always kept, even if the wall clock jumps ahead for a moment.
    - delete: False to emit the events, but delete nothing.
    """

    def __init__(
        self,
        store: Store,
        keys: StepKeys,
        pipeline: str,
        objects: Objects,
        *,
        emit: Emit = ignore,
        grace_s: float = GRACE_S,
        page: int = PAGE,
        delete: bool = True,
    ) -> None:
        self._store = store
        self._keys = keys
        self._pipeline = pipeline
        self._objects = objects
        self._emit = emit
        self._grace_s = grace_s
        self._page = page
        self._delete = delete
        self._manifests = ManifestReader(objects)
        self._cursor: tuple[str, str] = ("", "")  # the folder to scan next, and the last key scanned in it
        self._scanned: set[str] = set()  # marked folders that this round scans from their beginning
        self._pending: set[str] = set()  # folders with objects that a later round may remove

    def collect(self, pages: int = MOST_PAGES) -> bool:
        """Continue the scan where the last call stopped; return True if the round is not finished yet."""
        folders = sorted(self._folders(), key=lambda folder: folder.prefix)
        for _ in range(pages):
            ahead = [folder for folder in folders if folder.prefix >= self._cursor[0]]
            if not ahead:
                self._end_round(folders)
                return False
            folder = ahead[0]
            after = self._cursor[1] if folder.prefix == self._cursor[0] else ""
            if folder.marked and not after:
                self._scanned.add(folder.prefix)
            page = list(self._objects.list(folder.prefix, after=after or None, limit=self._page))
            self._collect(folder, page)
            if len(page) == self._page:
                self._cursor = (folder.prefix, page[-1].key)
            else:
                self._cursor = (folder.prefix + "\x7f", "")
        return True

    def _end_round(self, folders: Sequence[_Folder]) -> None:
        """Remove expired pins, and the marks of views and groups that have no files left."""
        self._cursor = ("", "")
        empty, self._scanned, self._pending = self._scanned - self._pending, set(), set()
        marked = [folder for folder in folders if folder.marked]
        remaining = {(folder.view, folder.group) for folder in marked if folder.prefix not in empty}
        names = {(folder.view, folder.group) for folder in marked} - remaining
        if not self._delete:
            return
        self._store.run(lambda tx: retired.unmark_collected(tx, self._keys, self._pipeline, names))
        self._store.run(lambda tx: pins.remove_expired(tx, self._keys, self._pipeline))

    def _folders(self) -> list[_Folder]:
        def read(tx: Tx) -> tuple[dict[str, int], list[str], list[tuple[str, str]]]:
            declared = groups.listed(tx, self._keys, self._pipeline)
            views: dict[str, int] = {}
            for group in declared:
                removable = step_expiry.removable(tx, self._keys, self._pipeline, group.spec.name)
                views |= dict.fromkeys((view.name for view in group.spec.views), removable)
            names = [group.spec.name for group in declared]
            return views, names, retired.to_collect(tx, self._keys, self._pipeline)

        views, names, marked = self._store.run(read)
        folders: dict[str, _Folder] = {}
        for kind in ("data", "datasets"):
            for view, removable in views.items():
                _add(folders, _Folder(table_of(self._pipeline, view), view, "", kind))
                if removable:
                    changes = changes_of(self._pipeline, view)
                    _add(folders, _Folder(changes, view, "", kind, removable=removable))
            for name in names:
                _add(folders, _Folder(state_of(self._pipeline, name), "", name, kind))
            for view, group in marked:
                of_view = [changes_of(self._pipeline, view), table_of(self._pipeline, view)] if view else []
                of_group = [state_of(self._pipeline, group), quarantine_of(self._pipeline, group)]
                for dataset in of_view or of_group:
                    _add(folders, _Folder(dataset, view, group, kind, marked=True))
        return list(folders.values())

    # --- one page

    def _collect(self, folder: _Folder, page: Sequence[ObjectInfo]) -> None:
        by_id = self._attempts({attempt_in(info.key) for info in page})
        try:
            listed, committed = self._listed(folder, {attempt_in(info.key): _step(info) for info in page})
        except (ObjectMissing, ManifestUnreadable):
            self._pending.add(folder.prefix)
            return  # delete nothing while a list cannot be read
        wall_us = self._store.run(lambda tx: wall_clock.believed(tx, self._keys.lots))
        youngest = wall_us / 1_000_000 - self._grace_s
        unlisted = []
        for info in page:
            attempt = by_id[attempt_in(info.key)]
            if info.key in listed or attempt_in(info.key) in committed:
                continue
            if "/state=removed/" in info.key and _step(info) > folder.removable:
                continue
            if folder.dataset.version == "changes" and not folder.marked and _step(info) > folder.removable:
                continue
            if info.modified_at > youngest or not (attempt is None or isinstance(attempt, Published)):
                self._pending.add(folder.prefix)  # too young, part of an open attempt, or left to the cleaner
                continue
            unlisted.append(info)
        if not unlisted:
            return
        if self._delete:
            crash.point("views.collect.before")
            self._objects.delete_many(info.key for info in unlisted)
            crash.point("views.collect.after")
        self._emit(
            FilesCollected(
                pipeline=self._pipeline,
                of=folder.view or folder.group,
                files=len(unlisted),
                size=sum(info.size for info in unlisted),
            )
        )

    def _attempts(self, ids: Iterable[str]) -> dict[str, AnyAttempt | None]:
        """Read attempts by id; None if the row no longer exists, because the attempt ended long ago."""

        def read(tx: Tx) -> dict[str, AnyAttempt | None]:
            by_id: dict[str, AnyAttempt | None] = {}
            for attempt in ids:
                try:
                    by_id[attempt] = attempts.read(tx, self._keys, attempt)
                except AttemptUnknown:
                    by_id[attempt] = None
            return by_id

        return self._store.run(read)

    def _listed(self, folder: _Folder, steps: Mapping[str, int]) -> tuple[set[str], set[str]]:
        """Return the keys to keep in a folder, and the attempts whose objects are all kept.

        - steps: the attempts of the page, each with its step.
        """
        lists, committed = self._store.run(lambda tx: self._current(tx, folder, steps))
        listed = set(lists)
        for name, required in lists.items():
            try:
                files = listed_run_files(self._objects, name)
                if files is not None:
                    listed |= set(files)
                    continue
                parts = self._manifests.load(name).parts
                listed |= set(parts)
                for leaf in self._manifests.load_all(parts):
                    listed |= {item.uri for item in leaf.objects}
            except (ObjectMissing, ManifestUnreadable):
                if required:
                    raise
        return listed, committed

    def _current(self, tx: Tx, folder: _Folder, steps: Mapping[str, int]) -> tuple[dict[str, bool], set[str]]:
        """Return the lists to keep, whether each one must exist, and the attempts that committed steps name.

        A pinned or earlier list may be missing, because the collector may have removed it while the view was
        not declared.
        """
        keys, pipeline = self._keys, self._pipeline
        now: set[str] = set()
        before: set[str] = set()
        declared = groups.listed(tx, keys, pipeline)

        def pinned_versions(group: ViewGroup) -> list[GroupVersion]:
            return versions.listed(tx, keys, pipeline, group.spec.name)

        for group in declared:
            copy = (
                shadow.kept(tx, keys, pipeline, group.spec.name) if folder.group == group.spec.name else None
            )
            before |= {copy.origin, copy.version} if copy is not None else set()
            if folder.group == group.spec.name and group.version:
                now.add(group.version)
                before |= _earlier(tx, keys, pipeline, group.spec.name, "", group.version)
                before |= {pin.version for pin in pinned_versions(group) if pin.version}
            table = group.tables.get(folder.view) if folder.view in group.spec.names else None
            if table:
                now.add(table)
                before |= _earlier(tx, keys, pipeline, group.spec.name, folder.view, table)
                before |= {pin.tables.get(folder.view, "") for pin in pinned_versions(group)} - {""}
        last = retired.find(tx, keys, pipeline, folder.view) if folder.view else None
        if last is not None:
            now.add(last.table)
        of = table_of(pipeline, folder.view) if folder.view else state_of(pipeline, folder.group)
        name, version = (layout.quote(part) for part in of.parts)
        kind = "datasets" if folder.view else "data"
        before |= pins.pinned(tx, keys, pipeline, f"{kind}/name={name}/version={version}/")
        committed: set[str] = set()
        if folder.dataset.version in ("changes", "quarantine"):
            names = [group.spec.name for group in declared]
            committed = {
                attempt
                for attempt, step in steps.items()
                if any(_is_committed(tx, keys, pipeline, name, step, attempt) for name in names)
            }
        return dict.fromkeys(before, False) | dict.fromkeys(now, True), committed


def _add(folders: dict[str, _Folder], folder: _Folder) -> None:
    old = folders.get(folder.prefix)
    if old is not None:
        folder = old._replace(
            marked=old.marked or folder.marked, removable=max(old.removable, folder.removable)
        )
    folders[folder.prefix] = folder


def _earlier(tx: Tx, keys: StepKeys, pipeline: str, group: str, view: str, now: str) -> set[str]:
    """Return the list before the current one, if one of the last commits has it."""
    for row in commits.newest(tx, keys, pipeline, group, EARLIER_COMMITS):
        tables = [output.table for output in row.outputs if output.view == view]
        for name in tables if view else [row.version]:
            if name and name != now:
                return {name}
    return set()


def _step(info: ObjectInfo) -> int:
    """Return the step that wrote an object. Its name says it, even after the attempt's row was deleted."""
    return step_of(layout.parse_key(info.key)["lot"])


def _is_committed(tx: Tx, keys: StepKeys, pipeline: str, group: str, step: int, attempt: str) -> bool:
    """Return whether a commit of this group names the attempt."""
    rows = commits.rows(tx, keys, pipeline, group, step - 1, step, 1)
    return bool(rows) and rows[0].attempt == attempt


def listed_run_files(objects: Objects, key: str) -> Collection[str] | None:
    """Return the run files that a version file lists; None if the key does not name a version file.

    Raises `ObjectMissing` if the file does not exist, and `ManifestUnreadable` if it cannot be read.
    """
    fields = layout.parse_key(key)
    if fields["kind"] != "data" or fields.get("version") != "state":
        return None
    try:
        return read_version(objects, key).files()
    except TraceMissing as error:
        raise ObjectMissing(error.message) from error
    except TraceError as error:
        raise ManifestUnreadable(error.message) from error
