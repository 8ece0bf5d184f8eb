"""Version files: list the pieces of run files in each trace, and the step up to which the trace is current.

A version and the run files it lists are immutable; each step creates the next version. So a reader of a
version sees the state of one step, even while merges run. `apply` is the only transition from one version to
the next: it adds new runs, and replaces merged pieces with one piece that has the same rows. A merge is
applied only if all pieces that it replaces are still listed (DBSP-37); otherwise it is dropped.

A version file has two lines of JSON: format and checksum, then the version. `put_if_absent` writes it under a
unique name, which is also its nonce.
"""

import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemill import crash
from tidemill.errors import (
    BadKey,
    ObjectConflict,
    ObjectMissing,
    TraceCorrupt,
    TraceFormat,
    TraceMissing,
    TraceStale,
    UsageError,
)
from tidemill.objects.key import check_key
from tidemill.objects.port import Objects, Put
from tidemill.views.trace.hash_space import GRAINS, HashRange

FORMAT = 1


class RunEntry(NamedTuple):
    """A piece of a run file that belongs to a trace: the rows of one run in the grains `low` to `high`.

    Args:
        file: the key of the object.
        low: the first grain (see `hash_space`).
        high: the last grain.
        offset: where the run starts in the object.
        length: how many bytes the run has.
        head: how many of these bytes are the head of the run.
        rows: how many rows the piece has; an estimate after a cut, used to plan merges.
    """

    file: str
    low: int
    high: int
    offset: int
    length: int
    head: int
    rows: int

    def within(self, low: int, high: int) -> "RunEntry | None":
        """Return the part of the piece in these grains; None if there is none."""
        first, last = max(self.low, low), min(self.high, high)
        if first > last:
            return None
        share = (last - first + 1) / (self.high - self.low + 1)
        return self._replace(low=first, high=last, rows=round(self.rows * share))


class RunCut(NamedTuple):
    """The grains of a run that a merge replaces."""

    file: str
    offset: int
    low: int
    high: int


class AddedRun(NamedTuple):
    """A new run of a trace."""

    trace: str
    entry: RunEntry


class MergedRuns(NamedTuple):
    """A merge: one piece with the rows of all cuts; no piece if the rows cancelled out."""

    trace: str
    cuts: tuple[RunCut, ...]
    entry: RunEntry | None


class TraceChanges(NamedTuple):
    """The changes of a step to traces in one range, as a task reports them to `TraceVersion.apply`."""

    added: tuple[AddedRun, ...] = ()
    merged: tuple[MergedRuns, ...] = ()

    @classmethod
    def combine(cls, changes: Iterable["TraceChanges"]) -> "TraceChanges":
        """Combine the changes of several tasks or traces."""
        every = list(changes)
        return cls(
            tuple(added for each in every for added in each.added),
            tuple(merged for each in every for merged in each.merged),
        )

    def encode(self) -> bytes:
        """Encode the changes for a task's report."""
        return _json([self.added, self.merged])

    @classmethod
    def decode(cls, body: bytes) -> "TraceChanges":
        added, merged = json.loads(body)
        return cls(
            tuple(AddedRun(trace, RunEntry(*entry)) for trace, entry in added),
            tuple(
                MergedRuns(
                    trace, tuple(RunCut(*cut) for cut in cuts), None if entry is None else RunEntry(*entry)
                )
                for trace, cuts, entry in merged
            ),
        )


class AppliedChanges(NamedTuple):
    """The next version, and the merges that were dropped because they came too late."""

    version: "TraceVersion"
    late: tuple[MergedRuns, ...]


@dataclass(frozen=True)
class TraceVersion:
    """The state after a step.

    Args:
        step: the last step whose changes the version contains; 0 before the first step.
        code: identifies the code that wrote the version, for comparison.
        traces: the pieces of each trace.
        steps: the step up to which each trace is current; None for a stale trace.
    """

    step: int = 0
    code: str = ""
    traces: Mapping[str, tuple[RunEntry, ...]] = field(default_factory=dict)
    steps: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def empty(cls, traces: Iterable[str], *, step: int = 0, code: str = "") -> "TraceVersion":
        """Return a version in which these traces exist and have no rows."""
        return cls(step, code, {}, dict.fromkeys(traces, step))

    def entries(self, trace: str, within: HashRange, at: int) -> tuple[RunEntry, ...]:
        """Return the pieces of a trace in a range.

        Raises `TraceStale` unless the trace is current up to step `at` (DBSP-41). A trace that the version
        does not list was never built, so it is stale and not empty.
        """
        if trace not in self.steps:
            raise TraceStale(f"trace {trace} was never built")
        current = self.steps[trace]
        if current != at:
            state = "stale" if current is None else f"at step {current}"
            raise TraceStale(f"trace {trace} is {state}, not at step {at}")
        pieces = (entry.within(*within.grains) for entry in self.traces.get(trace, ()))
        return tuple(piece for piece in pieces if piece is not None)

    @property
    def size(self) -> int:
        """The bytes of all runs that the version lists."""
        return sum(entry.length for entries in self.traces.values() for entry in entries)

    def files(self) -> frozenset[str]:
        """Return the keys of all run files that the version lists."""
        return frozenset(entry.file for entries in self.traces.values() for entry in entries)

    def apply(
        self,
        step: int,
        added: Iterable[AddedRun] = (),
        merged: Iterable[MergedRuns] = (),
        *,
        rebuilt: Collection[str] = (),
        stale: Collection[str] = (),
        dropped: Collection[str] = (),
        code: str | None = None,
    ) -> AppliedChanges:
        """Return the version after `step`.

        Args:
            step: its number; traces that are current stay current, changed or not.
            added: the new runs, of traces that exist or are rebuilt.
            merged: the merges; a merge is dropped if one of its cuts is no longer listed.
            rebuilt: traces whose old rows are replaced by the runs in `added`.
            stale: traces that the step did not keep current.
            dropped: traces to remove.
            code: a digest of the code that writes the version; None keeps the present one.
        """
        removed = {*rebuilt, *dropped}
        traces = {name: list(entries) for name, entries in self.traces.items() if name not in removed}
        late = tuple(merge for merge in merged if not _apply_merge(traces, merge))
        names = {*self.steps, *rebuilt} - {*dropped}
        for name, entry in added:
            if name not in names:
                raise UsageError(
                    f"cannot add a run file: trace {name} was never built", hint="add the trace to rebuilt="
                )
            traces.setdefault(name, []).append(entry)
        current = {name for name in names if name in rebuilt or self.steps[name] == self.step} - {*stale}
        steps = {name: step if name in current else None for name in sorted(names)}
        listed = {name: tuple(entries) for name, entries in traces.items() if entries}
        return AppliedChanges(TraceVersion(step, self.code if code is None else code, listed, steps), late)

    # --- as a file

    def encode(self, name: str) -> bytes:
        files = sorted(self.files())
        number = {file: at for at, file in enumerate(files)}
        traces = {
            trace: [[number[entry.file], *entry[1:]] for entry in entries]
            for trace, entries in sorted(self.traces.items())
        }
        head = {"name": name, "step": self.step, "code": self.code}
        body = _json({**head, "steps": dict(sorted(self.steps.items())), "files": files, "traces": traces})
        return _json({"format": FORMAT, "crc": zlib.crc32(body)}) + b"\n" + body


def _apply_merge(traces: dict[str, list[RunEntry]], merge: MergedRuns) -> bool:
    """Replace a merge's cuts with its piece; return False, and change nothing, if a cut is not listed."""
    left = traces.get(merge.trace, [])
    for cut in merge.cuts:
        rest: list[RunEntry] = []
        missing = cut.high - cut.low + 1
        for entry in left:
            if (entry.file, entry.offset) != (cut.file, cut.offset) or entry.within(
                cut.low, cut.high
            ) is None:
                rest.append(entry)
                continue
            missing -= min(entry.high, cut.high) - max(entry.low, cut.low) + 1
            around = (entry.within(entry.low, cut.low - 1), entry.within(cut.high + 1, entry.high))
            rest.extend(piece for piece in around if piece is not None)
        if missing:
            return False
        left = rest
    traces[merge.trace] = left if merge.entry is None else [*left, merge.entry]
    return True


def write_version(objects: Objects, key: str, version: TraceVersion) -> None:
    """Write a version file under a new key, which contains the attempt that writes it."""
    crash.point("views.trace.before_version")
    put = objects.put_if_absent(key, version.encode(key), nonce=json.dumps(key).encode())
    if put is Put.OTHER:
        raise ObjectConflict(f"{objects.url} already has a version file {key!r} with different content")
    crash.point("views.trace.after_version")


def read_version(objects: Objects, key: str) -> TraceVersion:
    """Read a version file; errors name the file."""
    try:
        body, _ = objects.get(key)
    except ObjectMissing as error:
        raise TraceMissing(f"{objects.url} has no version file {key!r}") from error
    return decode_version(body, key)


def decode_version(body: bytes, name: str) -> TraceVersion:
    """Decode a version file."""
    first, _, rest = body.partition(b"\n")
    try:
        head = json.loads(first)
        form, crc = int(head["format"]), head.get("crc")
    except _DAMAGE as error:
        raise TraceCorrupt(f"version file {name!r} is damaged: {error!r:.300}") from error
    if form > FORMAT:
        raise TraceFormat(f"version file {name!r} has format {form}; this release reads up to {FORMAT}")
    if form < 1 or zlib.crc32(rest) != crc:
        raise TraceCorrupt(f"version file {name!r} is damaged: its content does not match its checksum")
    try:
        fields: Any = json.loads(rest)
        files = _files(fields["files"])
        traces = {
            trace: tuple(_entry(files[number], numbers) for number, *numbers in entries)
            for trace, entries in fields["traces"].items()
        }
        return TraceVersion(int(fields["step"]), str(fields["code"]), traces, _steps(fields["steps"]))
    except _DAMAGE as error:
        raise TraceCorrupt(f"version file {name!r} is damaged: {error!r:.300}") from error


_DAMAGE = (BadKey, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)


def _files(files: Any) -> list[str]:
    for file in files:
        if not isinstance(file, str):
            raise ValueError("the name of a file is not text")  # noqa: TRY004 - one kind of damage
        check_key(file)
    return list(files)


def _entry(file: str, numbers: list[Any]) -> RunEntry:
    if not all(type(number) is int for number in numbers):
        raise ValueError("an entry has a value that is not an integer")
    entry = RunEntry(file, *numbers)
    in_hash_space = 0 <= entry.low <= entry.high < GRAINS
    if not in_hash_space or entry.offset < 0 or not 0 < entry.head <= entry.length or entry.rows < 0:
        raise ValueError(f"an entry has impossible values: {entry}")
    return entry


def _steps(steps: Any) -> dict[str, int | None]:
    if not all(step is None or type(step) is int for step in steps.values()):
        raise ValueError("a step is not an integer")
    return dict(steps)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
