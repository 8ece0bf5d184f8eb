"""The size of a run's totals does not depend on the number of lots."""

from tidemill.arcs.work import LotEnd, LotOutcome
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.run_report import report_of
from tidemill.runner.run_totals import MOST_ERRORS, RunTotals

SINK = DatasetId("clean")


def outcome(number: int, *, error: str = "") -> LotOutcome:
    ended = LotEnd.PARTIAL if error else LotEnd.COMPLETE
    return LotOutcome(arc="arc:p/a", lot=f"A{number:017}", ended=ended, rows={SINK: 2}, error=error)


def test_lots_are_counted_and_only_the_newest_errors_are_kept() -> None:
    totals = RunTotals()
    totals.add(outcome(number) for number in range(5000))
    totals.add([outcome(number, error=f"e{number}") for number in range(3 * MOST_ERRORS)])
    totals.add([outcome(2 * MOST_ERRORS, error="again")])
    (arc,) = totals.arcs.values()
    assert (arc.ended[LotEnd.COMPLETE], arc.rows["clean"]) == (5000, 2 * (5000 + 3 * MOST_ERRORS + 1))
    assert len(arc.errors) == MOST_ERRORS
    assert list(arc.errors)[-1] == f"A{2 * MOST_ERRORS:017}", "the newest is the last"
    report = report_of("p", totals, 1.0)
    assert [(arc.arc, arc.complete, arc.partial) for arc in report.arcs] == [("a", 5000, 3 * MOST_ERRORS + 1)]
    assert report.arcs[0].errors[f"A{2 * MOST_ERRORS:017}"] == "again"
