"""What a run did, for people and programs."""

import msgspec

from tidemill.arcs.work import Ended
from tidemill.runner.tally import Tally


class ArcReport(msgspec.Struct, frozen=True, kw_only=True):
    """Count the lots of one arc in a run.

    >>> ArcReport(arc="clean", complete=3, rows={"clean_orders": 120}).complete
    3

    - rows: written, by table.
    - errors: the message of each lot that failed, by lot.
    """

    arc: str
    complete: int = 0
    partial: int = 0
    missing: int = 0
    rows: dict[str, int] = {}
    errors: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did. True when everything that has arrived is processed, but for what is to run later.

    >>> report = Report(pipeline="shop", seconds=1.5, files=3)
    >>> print(report)
    shop: caught up in 1.5 s
      3 files taken

    - later: in how many seconds those are to run that their own pace, or a barrier, puts off.
    """

    pipeline: str
    seconds: float
    files: int = 0
    lots: int = 0
    arcs: tuple[ArcReport, ...] = ()
    steps: dict[str, int] = {}
    failures: dict[str, str] = {}
    later: dict[str, float] = {}

    @property
    def ok(self) -> bool:
        return not self.failures and not any(arc.partial or arc.missing for arc in self.arcs)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [f"{self.pipeline}: {'caught up' if self.ok else 'not everything'} in {self.seconds:.1f} s"]
        if self.files:
            lines.append(f"  {self.files} files taken")
        for arc in self.arcs:
            words = [f"{arc.complete} lots"]
            words += [f"{sum(arc.rows.values()):,} rows"] if arc.rows else []
            words += [f"{arc.partial} partial"] if arc.partial else []
            words += [f"{arc.missing} missing"] if arc.missing else []
            lines.append(f"  {arc.arc}: {', '.join(words)}")
            lines += [f"    {lot}: {error}" for lot, error in arc.errors.items()]
        lines += [f"  {group}: {count} steps" for group, count in self.steps.items() if count]
        lines += [f"  {name} is to run in {seconds:,.0f} s" for name, seconds in self.later.items()]
        lines += [f"  {name} failed: {error}" for name, error in self.failures.items()]
        return "\n".join(lines)


def of(pipeline: str, tally: Tally, seconds: float) -> Report:
    """The report of what a loop has done."""
    found = [
        ArcReport(
            arc=name.partition("/")[2],
            complete=arc.ended[Ended.COMPLETE],
            partial=arc.ended[Ended.PARTIAL],
            missing=arc.ended[Ended.MISSING],
            rows=dict(arc.rows),
            errors=dict(arc.errors),
        )
        for name, arc in tally.arcs.items()
    ]
    return Report(
        pipeline=pipeline,
        seconds=seconds,
        files=tally.files,
        lots=tally.closed + sum(arc.complete for arc in found),
        arcs=tuple(sorted(found, key=lambda one: one.arc)),
        steps={name.partition("/")[2]: count for name, count in tally.steps.items()},
        later={name.partition("/")[2]: in_s for name, in_s in tally.later.items()},
        failures={name: said[-1] for name, said in tally.failures.items() if said},
    )
