"""Version files: which pieces of which run files make up each trace, and to which step it is current.

A version is immutable, and so are the run files it names; a step makes the next one. Whoever reads a version
sees the state of one step, whatever merges do meanwhile. `apply` is the only way from one to the next: new
runs are added, a merge exchanges pieces for one that holds the same rows. A merge counts only if all it
replaces is still listed (DBSP-37), and not at all otherwise.

A version file is two lines of JSON: format and checksum, then the version. It is written under a name of its
own by `put_if_absent`, whose nonce is that name.
"""

import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemill import crash
from tidemill.errors import (
    ObjectConflict,
    ObjectMissing,
    TraceCorrupt,
    TraceFormat,
    TraceMissing,
    TraceStale,
    UsageError,
)
from tidemill.objects.port import Objects, Put
from tidemill.views.trace.hash_space import HashRange

FORMAT = 1


class RunEntry(NamedTuple):
    """A piece of a run file that belongs to a trace: the rows of one run whose hash is in some grains.

    Args:
        file: the key of the object.
        low: the first grain (see `slices`).
        high: the last grain.
        offset: where the run begins in the object.
        length: how many bytes it has.
        head: how many of them are its head.
        rows: how many rows the piece has; after a cut an estimate, which only merges go by.
    """

    file: str
    low: int
    high: int
    offset: int
    length: int
    head: int
    rows: int

    def within(self, low: int, high: int) -> "RunEntry | None":
        """What of it lies in these grains."""
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
    """A merge: the same rows as what it cuts out, in one piece, or in none if nothing was left of them."""

    trace: str
    cuts: tuple[RunCut, ...]
    entry: RunEntry | None


class TraceChanges(NamedTuple):
    """What a step adds to traces in one range: a task tells it, and `Version.apply` takes it."""

    added: tuple[AddedRun, ...] = ()
    merged: tuple[MergedRuns, ...] = ()

    @classmethod
    def together(cls, many: Iterable["TraceChanges"]) -> "TraceChanges":
        """What several tasks or traces kept."""
        every = list(many)
        return cls(
            tuple(added for each in every for added in each.added),
            tuple(merged for each in every for merged in each.merged),
        )

    def encode(self) -> bytes:
        """As bytes, for a task's manifest row."""
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
    """The next version, and the merges that came too late and are not in it."""

    version: "TraceVersion"
    late: tuple[MergedRuns, ...]


@dataclass(frozen=True)
class TraceVersion:
    """The state after a step.

    Args:
        step: the last step that is in it; 0 when there was none.
        code: which code wrote it, for those who compare.
        traces: the pieces of each trace.
        steps: to which step each trace is current; None when it is stale.
    """

    step: int = 0
    code: str = ""
    traces: Mapping[str, tuple[RunEntry, ...]] = field(default_factory=dict)
    steps: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def empty(cls, traces: Iterable[str], *, step: int = 0, code: str = "") -> "TraceVersion":
        """The version of traces that are known, and have no rows."""
        return cls(step, code, {}, dict.fromkeys(traces, step))

    def entries(self, trace: str, within: HashRange, at: int) -> tuple[RunEntry, ...]:
        """The pieces of a trace in a range; `TraceStale` unless it is current to step `at` (DBSP-41).

        A trace that the version does not know is refused as well: it is not empty, nobody has built it.
        """
        if trace not in self.steps:
            raise TraceStale(f"trace {trace} was never built")
        current = self.steps[trace]
        if current != at:
            known = "stale" if current is None else f"at step {current}"
            raise TraceStale(f"trace {trace} is {known}, not at step {at}")
        found = (entry.within(*within.grains) for entry in self.traces.get(trace, ()))
        return tuple(entry for entry in found if entry is not None)

    def files(self) -> frozenset[str]:
        """The keys of all run files that it needs."""
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
        """The version after `step`.

        Args:
            step: its number; the traces that are current move along, changed or not.
            added: the new runs, of traces that are known or rebuilt.
            merged: the merges; those whose cuts are not listed any more are left out whole.
            rebuilt: traces that `added` gives anew: what they had is forgotten.
            stale: traces that the step did not keep current.
            dropped: traces that nobody needs any more.
            code: which code writes it; None is the same as before.
        """
        gone = {*rebuilt, *dropped}
        traces = {name: list(entries) for name, entries in self.traces.items() if name not in gone}
        late = tuple(merge for merge in merged if not _exchange(traces, merge))
        known = {*self.steps, *rebuilt} - {*dropped}
        for name, entry in added:
            if name not in known:
                raise UsageError(f"a run of trace {name}, which was never built", hint="name it in rebuilt=")
            traces.setdefault(name, []).append(entry)
        current = {name for name in known if name in rebuilt or self.steps[name] == self.step} - {*stale}
        steps = {name: step if name in current else None for name in sorted(known)}
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


def _exchange(traces: dict[str, list[RunEntry]], merge: MergedRuns) -> bool:
    """Replace what a merge cuts out; nothing happens and the answer is False if that is not all listed."""
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
    """Write a version file; the key is new, and names the attempt that writes it."""
    crash.point("views.trace.before_version")
    put = objects.put_if_absent(key, version.encode(key), nonce=json.dumps(key).encode())
    if put is Put.OTHER:
        raise ObjectConflict(f"there is another version file {key!r} in {objects.url}")
    crash.point("views.trace.after_version")


def read_version(objects: Objects, key: str) -> TraceVersion:
    """The version in a file; errors name the file."""
    try:
        body, _ = objects.get(key)
    except ObjectMissing as error:
        raise TraceMissing(f"no version file {key!r} in {objects.url}") from error
    return decode_version(body, key)


def decode_version(body: bytes, name: str) -> TraceVersion:
    """A version out of the bytes of its file."""
    first, _, rest = body.partition(b"\n")
    try:
        head = json.loads(first)
        form, crc = int(head["format"]), head.get("crc")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceCorrupt(f"version file {name!r} is damaged: {error!r}") from error
    if form > FORMAT:
        raise TraceFormat(f"version file {name!r} has format {form}; this release reads up to {FORMAT}")
    if form < 1 or zlib.crc32(rest) != crc:
        raise TraceCorrupt(f"version file {name!r} is damaged: its checksum is another")
    try:
        found: Any = json.loads(rest)
        files = found["files"]
        traces = {
            trace: tuple(RunEntry(files[number], *map(int, rest)) for number, *rest in entries)
            for trace, entries in found["traces"].items()
        }
        return TraceVersion(int(found["step"]), str(found["code"]), traces, dict(found["steps"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise TraceCorrupt(f"version file {name!r} is damaged: {error!r}") from error


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
