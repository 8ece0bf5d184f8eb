"""Versions: the pieces of run files in each trace, and the step up to which the trace is current.

A version and the run files it lists are immutable; each step creates the next version. So a reader of a
version sees the state of one step, even while merges run. `apply` is the only transition from one version to
the next: it adds new runs, and replaces merged pieces with one piece that has the same rows. A merge is
applied only if all pieces that it replaces are still listed (DBSP-37); otherwise it is dropped.

`version_file` stores versions.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemill.errors import TraceStale, UsageError
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.run_table import AddedRun, MergedRuns, RunCut, RunEntry, RunTable

FORMAT = 2
"""The format in which a new group stores its versions. A group with format 1 keeps it."""


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
        return json.dumps([self.added, self.merged], separators=(",", ":")).encode()

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
        steps: the step up to which each trace is current; None for a stale trace.
        runs: the pieces of run files in each trace.
        format: the format of its file, which the next version has too.
    """

    step: int = 0
    code: str = ""
    steps: Mapping[str, int | None] = field(default_factory=dict)
    runs: RunTable = field(default_factory=RunTable)
    format: int = FORMAT

    @classmethod
    def empty(cls, traces: Iterable[str], *, step: int = 0, code: str = "") -> "TraceVersion":
        """Return a version in which these traces exist and have no rows."""
        return cls(step, code, dict.fromkeys(traces, step))

    @property
    def traces(self) -> dict[str, tuple[RunEntry, ...]]:
        """The pieces of each trace that has any."""
        return {name: entries for name in self.runs.traces if (entries := self.runs.entries(name))}

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
        return self.runs.of_trace(trace, *within.grains)

    @property
    def size(self) -> int:
        """The bytes of all runs that the version lists."""
        return self.runs.size

    def files(self) -> frozenset[str]:
        """Return the keys of all run files that the version lists."""
        return self.runs.listed()

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
        names = {*self.steps, *rebuilt} - {*dropped}
        runs = tuple(added)
        for name in {run.trace for run in runs} - names:
            raise UsageError(
                f"cannot add a run file: trace {name} was never built", hint="add the trace to rebuilt="
            )
        changed, late = self.runs.changed(runs, merged, without={*rebuilt, *dropped})
        current = {name for name in names if name in rebuilt or self.steps[name] == self.step} - {*stale}
        steps = {name: step if name in current else None for name in sorted(names)}
        next_code = self.code if code is None else code
        return AppliedChanges(replace(self, step=step, code=next_code, steps=steps, runs=changed), late)
