"""The report of a run: counts of files, lots and steps, and errors."""

import msgspec

from tidemill.arcs.work import LotEnd
from tidemill.obs.lines import counted
from tidemill.pipeline.notebook import preformatted
from tidemill.runner.run_totals import RunTotals


class ArcReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the lots of one arc in a run.

    >>> ArcReport(arc="clean", complete=3, rows={"clean_orders": 120}).complete
    3

    - rows: the number of rows written, by table.
    - errors: the error message of each failed lot, by lot.
    """

    arc: str
    complete: int = 0
    partial: int = 0
    missing: int = 0
    rows: dict[str, int] = {}
    errors: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and errors of a run. The report is true if the run caught up and nothing failed.

    >>> report = Report(pipeline="shop", seconds=1.5, files=3)
    >>> print(report)
    shop: caught up in 1.5 s
      3 files read

    - steps: the number of steps of each view group.
    - failures: the last error of each source, arc or group that failed.
    - later: for each arc or group that waits for its pace or for a barrier, the number of seconds until its
      next run.
    - interrupted: whether the run was stopped before it had processed all new data.
    """

    pipeline: str
    seconds: float
    files: int = 0
    lots: int = 0
    arcs: tuple[ArcReport, ...] = ()
    steps: dict[str, int] = {}
    failures: dict[str, str] = {}
    later: dict[str, float] = {}
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether all new data was processed, without failures."""
        return (
            not self.interrupted
            and not self.failures
            and not any(arc.partial or arc.missing for arc in self.arcs)
        )

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        ended = "caught up" if self.ok else "interrupted" if self.interrupted else "ended with failures"
        lines = [f"{self.pipeline}: {ended} {'after' if self.interrupted else 'in'} {self.seconds:.1f} s"]
        if self.interrupted:
            lines.append("  some data is not processed yet; the next run continues")
        if self.files:
            lines.append(f"  {counted(self.files, 'file')} read")
        for arc in self.arcs:
            counts = [counted(arc.complete, "lot")]
            counts += [counted(sum(arc.rows.values()), "row")] if arc.rows else []
            counts += [f"{arc.partial + arc.missing} failed"] if arc.partial or arc.missing else []
            lines.append(f"  {arc.arc}: {', '.join(counts)}")
            lines += [f"    {lot}: {error}" for lot, error in arc.errors.items()]
        lines += [f"  {group}: {counted(count, 'step')}" for group, count in self.steps.items() if count]
        lines += [f"  {name} runs again in {seconds:,.0f} s" for name, seconds in self.later.items()]
        lines += [f"  {name} failed: {error}" for name, error in self.failures.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return preformatted(str(self))


def report_of(pipeline: str, totals: RunTotals, seconds: float) -> Report:
    """Return the report of a run from its totals."""
    arcs = [
        ArcReport(
            arc=name.partition("/")[2],
            complete=arc.ended[LotEnd.COMPLETE],
            partial=arc.ended[LotEnd.PARTIAL],
            missing=arc.ended[LotEnd.MISSING],
            rows=dict(arc.rows),
            errors=dict(arc.errors),
        )
        for name, arc in totals.arcs.items()
    ]
    return Report(
        pipeline=pipeline,
        seconds=seconds,
        files=totals.files,
        lots=totals.closed + sum(arc.complete for arc in arcs),
        arcs=tuple(sorted(arcs, key=lambda arc: arc.arc)),
        steps={name.partition("/")[2]: count for name, count in totals.steps.items()},
        later={name.partition("/")[2]: in_s for name, in_s in totals.later.items()},
        failures={name: errors[-1] for name, errors in totals.failures.items() if errors},
        interrupted=totals.interrupted,
    )
