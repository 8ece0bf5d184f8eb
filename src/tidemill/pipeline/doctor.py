"""Examine what a pipeline has stored: find missing and damaged files, wrong digests, and orphans.

The store says which files must exist. An examination reads it while runners work: it lists the objects first,
and looks up each one that seems to be missing again, because it may be newer than the list. With `deep`, it
also reads all run files and verifies their checksums.

What can be repaired: a group of views goes back to its last version, if its steps since then can be repeated.
Otherwise its state is computed again from the lots, if they are complete. Orphans are deleted. A missing file
of a lot or of a view's table can only be restored from a backup.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import ManifestUnreadable, ObjectMissing, TidemillError, TraceError
from tidemill.events import Event
from tidemill.lots import layout, lots
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, StoredObject
from tidemill.pipeline import reader
from tidemill.pipeline.spark_advice import Advice, advice_for
from tidemill.pipeline.upgrades import go_back
from tidemill.store import Tx
from tidemill.views.spark import digests
from tidemill.views.steps import commits, divergence, groups
from tidemill.views.steps.collector import Collector
from tidemill.views.steps.events import FilesCollected
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.inputs import InputReader, ManifestReader
from tidemill.views.steps.keys import changes_of, state_of, table_of
from tidemill.views.trace.run_file import check_run
from tidemill.views.trace.run_table import RunEntry
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

PAGE = 500
MASK = 2**128 - 1
GO_BACK_S = 10.0
"""How long to wait until all groups have stopped, so that one goes back to its last version."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem.

    - kind: `missing-file`, `wrong-size`, `unreadable`, `damaged-state`, `diverged`, `wrong-digest` or
      `spark-setting`.
    - of: the table, the view, or the group of views.
    - key: the object.
    - repaired: whether the problem was repaired.
    - hint: what to do, if it was not repaired.
    """

    kind: str
    of: str
    key: str
    message: str
    repaired: bool = False
    hint: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an examination.

    - lots, steps, objects: how many of them were examined.
    - advice: what settings of the Spark session cost.
    - orphans: how many files of views nothing lists. Runners delete them later, and a repair deletes them.
    """

    findings: tuple[Finding, ...]
    lots: int
    steps: int
    objects: int
    orphans: int = 0
    advice: tuple[Advice, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is left to repair."""
        return all(finding.repaired for finding in self.findings)


RESTORE = "restore the object from a backup"
REBUILD = "tidemill doctor --repair computes the state again, if all lots still exist"


def examine(pipeline: "Pipeline", *, deep: bool = False, repair: bool = False) -> Diagnosis:
    """Examine a pipeline, and repair what can be repaired if `repair` is set."""
    doctor = _Doctor(pipeline, deep=deep)
    findings = list(doctor.examine())
    if repair:
        findings = [doctor.repaired(finding) for finding in findings]
    return Diagnosis(
        findings=tuple(findings),
        lots=doctor.lots,
        steps=doctor.steps,
        objects=len(doctor.seen),
        orphans=doctor.orphans(delete=repair),
        advice=tuple(each for each in advice_for(pipeline.context) if not each.refused),
    )


class _Doctor:
    """One examination: counts what it has seen."""

    def __init__(self, pipeline: "Pipeline", *, deep: bool) -> None:
        self._pipeline = pipeline
        self._context = pipeline.context
        self._objects = pipeline.context.objects
        self._keys = pipeline.context.keys
        self._deep = deep
        self._manifests = ManifestReader(self._objects)
        self._present: dict[str, int] = {}
        self.seen: set[str] = set()
        self._restored: dict[str, bool] = {}
        self.lots = self.steps = 0

    def examine(self) -> Iterator[Finding]:
        for each in advice_for(self._context):
            if each.refused:
                yield Finding(
                    kind="spark-setting", of="spark", key=each.setting, message=each.message, hint=each.hint
                )
        for name in self._pipeline.names:
            if name not in self._pipeline.views:
                row = self._dataset(name)
                if row is not None:
                    yield from self._examine_dataset(name, row)
        for group in self._groups():
            yield from self._examine_group(group)

    def orphans(self, *, delete: bool) -> int:
        """Count, and perhaps delete, the files of views that nothing lists and no attempt may publish."""
        collected: list[Event] = []
        collector = Collector(
            self._context.store,
            self._keys,
            self._pipeline.name,
            self._objects,
            emit=collected.append,
            delete=delete,
        )
        while collector.collect():
            continue
        return sum(event.files for event in collected if isinstance(event, FilesCollected))

    def _dataset(self, name: str) -> DatasetRow | None:
        try:
            return reader.stored_dataset(self._pipeline, name)
        except TidemillError:  # nothing is stored yet
            return None

    def _groups(self) -> list[ViewGroup]:
        return self._context.store.run(lambda tx: groups.listed(tx, self._keys, self._pipeline.name))

    # --- lots

    def _examine_dataset(self, name: str, dataset: DatasetRow) -> Iterator[Finding]:
        self._list(dataset.id)
        for row in self._lots_of(dataset.id):
            self.lots += 1
            if row.manifest:
                yield from self._examine_manifest(name, row.manifest)

    def _lots_of(self, dataset: DatasetId) -> Iterator[LotRow]:
        after = ""
        while True:
            page = self._context.store.run(
                lambda tx, after=after: lots.listed(tx, self._keys.lots, dataset, after, PAGE)  # type: ignore[misc]
            )
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].lot

    def _examine_manifest(self, of: str, key: str) -> Iterator[Finding]:
        """Examine a manifest, its parts, and the objects that they list."""
        top = self._load(key)
        if not isinstance(top, Manifest):
            yield Finding(
                kind=top, of=of, key=key, message=f"the manifest {key} is {_word(top)}", hint=RESTORE
            )
            return
        self.seen.add(key)
        leaves = [(part, self._load(part)) for part in top.parts] or [(key, top)]
        for part, leaf in leaves:
            if isinstance(leaf, Manifest):
                self.seen.add(part)
                yield from self._examine_objects(of, leaf.objects)
            else:
                yield Finding(
                    kind=leaf, of=of, key=part, message=f"the manifest {part} is {_word(leaf)}", hint=RESTORE
                )

    def _load(self, key: str) -> Manifest | str:
        try:
            return self._manifests.load(key)
        except ObjectMissing:
            return "missing-file"
        except ManifestUnreadable:
            return "unreadable"

    def _examine_objects(self, of: str, items: Iterable[StoredObject]) -> Iterator[Finding]:
        for item in items:
            self.seen.add(item.uri)
            size = self._size(item.uri)
            if size is None:
                yield Finding(
                    kind="missing-file", of=of, key=item.uri, message=f"{item.uri} is missing", hint=RESTORE
                )
            elif item.size and size != item.size:
                yield Finding(
                    kind="wrong-size",
                    of=of,
                    key=item.uri,
                    message=f"{item.uri} has {size:,} bytes; its manifest says {item.size:,}",
                    hint=RESTORE,
                )

    def _list(self, dataset: DatasetId) -> None:
        name, version = (layout.quote(part) for part in dataset.parts)
        prefix = f"data/name={name}/version={version}/"
        self._present |= {info.key: info.size for info in self._objects.list(prefix)}

    def _size(self, key: str) -> int | None:
        if key not in self._present:
            try:
                self._present[key] = self._objects.head(key).size
            except ObjectMissing:
                return None
        return self._present[key]

    # --- views

    def _examine_group(self, group: ViewGroup) -> Iterator[Finding]:
        name = group.spec.name
        self._list(state_of(self._pipeline.name, name))
        if group.version:
            yield from self._examine_state(name, group.version)
        row = self._context.store.run(
            lambda tx: divergence.diverged(tx, self._keys, self._pipeline.name, name)
        )
        if row is not None:
            yield Finding(
                kind="diverged",
                of=name,
                key="",
                message=f"step {row.step} gave other rows of {', '.join(row.views)} when it was repeated; the"
                " group publishes nothing",
                hint=REBUILD,
            )
        for view, table in group.tables.items():
            self._list(table_of(self._pipeline.name, view))
            self._list(changes_of(self._pipeline.name, view))
            yield from self._examine_manifest(view, table)
        yield from self._examine_steps(group)

    def _examine_state(self, group: str, version: str) -> Iterator[Finding]:
        def damaged(key: str, message: str) -> Finding:
            return Finding(kind="damaged-state", of=group, key=key, message=message, hint=REBUILD)

        try:
            runs = read_version(self._objects, version).runs
        except TraceError as error:
            yield damaged(version, error.message)
            return
        self.seen.add(version)
        for entry in dict.fromkeys(entry for trace in runs.traces for entry in runs.entries(trace)):
            self.seen.add(entry.file)
            problem = self._problem_of(entry)
            if problem:
                yield damaged(entry.file, problem)

    def _problem_of(self, entry: RunEntry) -> str:
        size = self._size(entry.file)
        if size is None:
            return f"run file {entry.file} is missing"
        if size < entry.offset + entry.length:
            return f"run file {entry.file} is cut short: it has {size:,} bytes"
        if self._deep:
            try:
                body = self._objects.get_range(entry.file, entry.offset, entry.length)
                check_run(body, f"run file {entry.file} at byte {entry.offset}")
            except TraceError as error:
                return error.message
            except ObjectMissing:
                return f"run file {entry.file} is missing"
        return ""

    def _examine_steps(self, group: ViewGroup) -> Iterator[Finding]:
        """Examine the changes of all steps, and whether their digests add up to those of the tables."""
        name, after = group.spec.name, 0
        contents: dict[str, int] = {}
        while page := self._context.store.run(
            lambda tx, after=after: commits.rows(  # type: ignore[misc]
                tx, self._keys, self._pipeline.name, name, after, group.step
            )
        ):
            for row in page:
                self.steps += 1
                for output in row.outputs:
                    if output.changes:
                        yield from self._examine_manifest(output.view, output.changes)
                    leaf = self._load(output.changes) if output.changes else None
                    change = digests.number_of(leaf.digest) if isinstance(leaf, Manifest) else 0
                    content = self._content(output.table)
                    before = contents.get(output.view, content)
                    if content is None or before is None:
                        contents.pop(output.view, None)
                        continue
                    if content not in (before, change) and content != (before + change) & MASK:
                        yield Finding(
                            kind="wrong-digest",
                            of=output.view,
                            key=output.table,
                            message=f"the changes of step {row.step} do not lead to its table",
                            hint="declare the view with a new name, and compare both",
                        )
                    contents[output.view] = content
            after = page[-1].step

    def _content(self, table: str) -> int | None:
        """Return the digest of a table; None if its manifest was collected."""
        loaded = self._load(table)
        return digests.number_of(loaded.digest) if isinstance(loaded, Manifest) else None

    # --- repair

    def repaired(self, finding: Finding) -> Finding:
        """Repair a problem if that is possible, and return the finding with the outcome."""
        if finding.kind in ("damaged-state", "diverged") and self._restore_state(finding.of):
            return msgspec.structs.replace(finding, repaired=True, hint="")
        return finding

    def _restore_state(self, name: str) -> bool:
        """Go back to the last version of a group, or let its next step build the state from all lots."""
        if name not in self._restored:
            self._restored[name] = self._goes_back(name) or self._forget_state(name)
        return self._restored[name]

    def _goes_back(self, name: str) -> bool:
        try:
            go_back(self._pipeline, name, wait_s=GO_BACK_S)
        except TidemillError:  # such as: the version is damaged too, or a group cannot stop
            return False
        return True

    def _forget_state(self, name: str) -> bool:
        """Let the next step of a group compute its state again; return False if lots are missing for that."""
        context, pipeline = self._context, self._pipeline.name
        inputs = InputReader(context.store, context.keys.lots, self._manifests)

        def forget(tx: Tx) -> None:
            group = groups.read(tx, context.keys, pipeline, name)
            if group.version:
                groups.write(tx, context.keys, pipeline, msgspec.structs.replace(group, version=""))
            divergence.clear_diverged(tx, context.keys, pipeline, name)

        group = context.store.run(lambda tx: groups.read(tx, context.keys, pipeline, name))
        if not inputs.is_complete(group.spec.bases):
            return False
        context.store.run(forget)
        return True


def _word(kind: str) -> str:
    return "missing" if kind == "missing-file" else "unreadable"
