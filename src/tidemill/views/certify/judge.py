"""The judge: after every step, compare a view with the result of plain Spark over the complete tables.

Certification, tests and fuzzing all use this comparison. A *case* is the query of a view and what to compare
it with: another query (a circuit as Spark SQL), or a function that receives each step and returns the
contents of the maintained view. One Spark job compares many cases.

If the class of a view is *ordered*, its query leaves ties, and Spark breaks them arbitrarily. Then the view
must equal the result of a *tie-breaking* query (`Case.tie_breaking`), which has the hash of the row as an
additional last sort key. The original query must have the same result too, unless it has several correct
results. To find out, the judge changes the last sort key of the tie-breaking query, and it runs the original
query with the rows of the tables in reverse order. If either query then returns a different result, the judge
assumes that there are several correct results. In that case only the number of rows must be equal, and the
step counts as `loose`.

A caller can compute the results of some queries in advance (`PrecomputedResults`), for example to plan a
query only once for all steps. The judge computes the other results.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tidemill.spark import schema
from tidemill.views.certify import query_results
from tidemill.views.certify.bounds import Bounds, is_query_error
from tidemill.views.certify.equality import EXACT, Equality, Row, difference
from tidemill.views.certify.step_tables import StepTables, TablesAfterStep
from tidemill.views.certify.table_contents import Step, TableContents
from tidemill.views.circuit.ties import with_other_tie_breaks
from tidemill.views.spark.step_time import with_step_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TimedQuery: TypeAlias = Callable[[int], str]


@dataclass(frozen=True)
class Case:
    """A view, and what the view is compared with.

    - sql: the query of the view.
    - actual: what the view is compared with: a query over the same tables, a function that takes a time (µs
      since 1970) and returns such a query, or a maintained view.
    - equality: how the two are compared.
    - tie_breaking: for an ordered view, its query with the hash of the row as the last key of each ORDER BY;
      or a function that takes a time and returns this query.
    - reads: the names of the tables that the query reads; by default all tables of the judge.
    """

    name: str
    sql: str
    actual: "str | TimedQuery | MaintainedView"
    equality: Equality = EXACT
    tie_breaking: "str | TimedQuery | None" = None
    reads: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MaintainedView:
    """A view that is maintained step by step: `after` applies a step and returns all rows of the view.

    The rows are a frame, or already have the form in which the judge compares them. If the step raises an
    error, `after` returns the error.
    """

    after: "Callable[[Step], DataFrame | list[Row] | Exception]"


@dataclass(frozen=True)
class Mismatch:
    """A case whose result differs from Spark's, and the number of the step (from 0)."""

    case: Case
    step: int
    why: str

    def __str__(self) -> str:
        where = f"{self.case.name}, after step {self.step} ({self.case.equality.name})"
        return f"{where}: {self.why}\n{self.case.sql}"


@dataclass
class Verdict:
    """The result of a comparison.

    - compared: how many comparisons were made, one for each case and step.
    - loose: in how many comparisons several results were correct, and Spark returned a different one from the
      view.
    - raised: in how many comparisons both sides raised an error.
    """

    mismatches: list[Mismatch] = field(default_factory=list)
    compared: int = 0
    loose: int = 0
    raised: int = 0

    @classmethod
    def combined(cls, verdicts: "Sequence[Verdict]") -> "Verdict":
        """Return one verdict for several cases, with their mismatches in the order of the steps."""
        mismatches = [mismatch for verdict in verdicts for mismatch in verdict.mismatches]
        return cls(
            sorted(mismatches, key=lambda mismatch: mismatch.step),
            sum(verdict.compared for verdict in verdicts),
            sum(verdict.loose for verdict in verdicts),
            sum(verdict.raised for verdict in verdicts),
        )

    def __bool__(self) -> bool:
        return not self.mismatches

    def __str__(self) -> str:
        summary = (
            f"{self.compared} compared, {self.loose} of them loosely, {self.raised} raised on both sides"
        )
        return "\n\n".join([summary, *map(str, self.mismatches)])


class PrecomputedResults(Protocol):
    """Computes the results of many queries after many steps in advance."""

    def __call__(
        self, contents: Sequence[TableContents], queries_by_step: Sequence[Collection[str]]
    ) -> Sequence[Mapping[str, list[Row]]]:
        """Return the rows of queries after each step, by the text of the query.

        Args:
            contents: the contents of the tables after each step.
            queries_by_step: the queries that will be compared after each step. The result may omit a query,
                for example because it raises an error.
        """
        ...


class Judge:
    """Compares views with plain Spark, step by step.

    >>> judge = Judge(spark, {"t": "a INT"})
    >>> same = Case("sums", "SELECT sum(a) AS s FROM t", "SELECT sum(b) AS s FROM (SELECT a AS b FROM t)")
    >>> print(judge.run([same], [Step(inserts={"t": [{"a": 1}, {"a": 2}]})]))
    1 compared, 0 of them loosely, 0 raised on both sides

    Args:
        spark: a session with the pinned settings.
        tables: for each table that the queries read, its columns in Spark's notation: `{"t": "a INT"}`.
        batch: about how many results one job computes.
        precomputed: computes results of queries in advance.
        bounds: limits on the size of results and on the time; exceeding one raises `BoundExceeded`.
    """

    def __init__(
        self,
        spark: "SparkSession",
        tables: Mapping[str, str],
        *,
        batch: int = 40,
        precomputed: PrecomputedResults | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._spark = spark
        self._tables = dict(tables)
        self._columns = {name: schema.parse(text).names for name, text in tables.items()}
        self._batch = batch
        self._precomputed = precomputed
        self._bounds = bounds
        self._small = False
        self._results: dict[str, list[Row] | Exception] = {}  # by query; tables have other names in each step

    def run(self, cases: Sequence[Case], steps: Sequence[Step]) -> Verdict:
        """Compare every case after every step. The tables are empty at the start."""
        with StepTables(self._spark, self._tables, steps) as tables:
            return Verdict.combined(self.verdicts(cases, tables))

    def verdicts(self, cases: Sequence[Case], tables: StepTables) -> list[Verdict]:
        """Compare every case after every step of these tables; return the verdict of each case."""
        verdicts = [Verdict() for _ in cases]
        self._small = all(contents.small for contents in tables.contents)
        pending: list[_Comparison] = []
        known_rows = self._known(cases, tables)
        for number, step in enumerate(tables.steps):
            for case, verdict in zip(cases, verdicts, strict=True):
                if self._is_unchanged(case, tables, number):
                    # Queries have the same result as before. After a time that they do not read, there is
                    # nothing to compare.
                    verdict.compared += not tables.only_time_changed(number)
                    continue
                after = tables.after[number]
                comparison = self._comparison(case, number, step, after, known_rows[number], verdict)
                if step.extreme and not isinstance(case.actual, MaintainedView):
                    # Many of these queries raise an error, which would fail a common job.
                    self._run_alone(comparison)
                    continue
                pending.append(comparison)
                if sum(isinstance(side, str) for item in pending for side in item.sides) >= self._batch:
                    self._run(pending)
                    pending = []
        self._run(pending)
        return verdicts

    def _is_unchanged(self, case: Case, tables: StepTables, number: int) -> bool:
        """Return whether the queries of a case and their tables are those of the previous step.

        A maintained view is read again after every step.
        """
        if isinstance(case.actual, MaintainedView) or not tables.same_rows(number):
            return False
        before, now = tables.contents[number - 1].now, tables.contents[number].now
        return before == now or list(self._texts(case, before)) == list(self._texts(case, now))

    def _known(self, cases: Sequence[Case], tables: StepTables) -> Sequence[Mapping[str, list[Row]]]:
        if self._precomputed is None:
            return [{} for _ in tables.steps]
        queries_by_step: list[set[str]] = []
        for number, now in enumerate(tables.contents):
            compared = [case for case in cases if not self._is_unchanged(case, tables, number)]
            queries_by_step.append({text for case in compared for text in self._texts(case, now.now)})
        return self._precomputed(tables.contents, queries_by_step)

    def _texts(self, case: Case, now: int) -> Iterator[str]:
        """Yield the queries of a case after a step: the original, the actual and the tie-breaking one."""
        yield self._original(case, now)
        actual = None if isinstance(case.actual, MaintainedView) else _at(case.actual, now)
        if actual is not None:
            yield actual
        tie_breaking = self._tie_breaking(case, now)
        if tie_breaking is not None and tie_breaking != actual:
            yield tie_breaking

    def _original(self, case: Case, now: int) -> str:
        names = self._columns if case.reads is None else case.reads
        return with_step_time(case.sql, now, {column for name in names for column in self._columns[name]})

    def _tie_breaking(self, case: Case, now: int) -> str | None:
        if not case.equality.ties_broken:
            return None
        if case.tie_breaking is not None:
            return _at(case.tie_breaking, now)
        return None if isinstance(case.actual, MaintainedView) else _at(case.actual, now)

    def _comparison(
        self,
        case: Case,
        number: int,
        step: Step,
        frames: TablesAfterStep,
        known_rows: Mapping[str, list[Row]],
        verdict: Verdict,
    ) -> "_Comparison":
        sides: list[str | list[Row] | Exception] = [
            known_rows[text] if text in known_rows else frames.query(text)
            for text in self._texts(case, frames.now)
        ]
        if isinstance(case.actual, MaintainedView):
            after = case.actual.after(step)
            sides.insert(1, after if isinstance(after, list | Exception) else frames.named(after))

        def variants() -> list[tuple[str, list[str]]]:
            sql = self._original(case, frames.now)
            oracle = case.actual if case.tie_breaking is None else case.tie_breaking
            text = None if isinstance(oracle, MaintainedView) else _at(oracle, frames.now)
            other_texts = [] if text is None else with_other_tie_breaks(text)
            ties = (
                [(frames.query(text), [frames.query(variant) for variant in other_texts])]
                if text is not None and other_texts
                else []
            )
            return [(frames.query(sql), [frames.query(sql, backwards=True)]), *ties]

        return _Comparison(case, number, sides, variants, verdict)

    def _run(self, comparisons: Sequence["_Comparison"]) -> None:
        self._fetch(
            [side for comparison in comparisons for side in comparison.sides if isinstance(side, str)]
        )
        for comparison in comparisons:
            self._run_alone(comparison)

    def _fetch(self, texts: Sequence[str], *, alone: bool = False) -> None:
        """Run queries in one job and keep their results; if one raises an error, run each in its own job.

        Spark needs more time to analyse a query than to start a job, so dividing the queries takes longer.

        - alone: whether to run each query in its own job at once.
        """
        texts = [text for text in dict.fromkeys(texts) if text not in self._results]
        if alone and len(texts) > 1:
            for text in texts:
                self._fetch([text])
            return
        try:
            results = query_results.collect_rows(self._spark, texts, small=self._small, bounds=self._bounds)
        except Exception as error:
            if not is_query_error(error):
                raise
            if len(texts) == 1:
                self._results[texts[0]] = error
            else:
                self._fetch(texts, alone=True)
            return
        self._results.update(zip(texts, results, strict=True))

    def _run_alone(self, comparison: "_Comparison") -> None:
        """Run each query of a comparison in its own job, so that an error belongs to one query."""
        self._compare(comparison, [self._rows_or_error(side) for side in comparison.sides])

    def raising(self, cases: Sequence[Case], tables: StepTables, number: int) -> frozenset[str]:
        """Run the queries of cases after a step; return the names of those that raise an error."""
        after = tables.after[number]
        texts = {case.name: after.query(self._original(case, after.now)) for case in cases}
        # Many queries raise an error on extreme values, which would fail a common job.
        self._fetch(list(texts.values()), alone=tables.steps[number].extreme)
        return frozenset(name for name, text in texts.items() if isinstance(self._results[text], Exception))

    def _rows_or_error(self, side: "str | list[Row] | Exception") -> "list[Row] | Exception":
        if not isinstance(side, str):
            return side
        self._fetch([side])
        return self._results[side]

    def _compare(self, comparison: "_Comparison", results: "Sequence[list[Row] | Exception]") -> None:
        case, verdict = comparison.case, comparison.verdict
        expected, actual = results[:2]
        verdict.compared += 1
        reason = ""
        if isinstance(expected, Exception) or isinstance(actual, Exception):
            if isinstance(expected, Exception) and isinstance(actual, Exception):
                verdict.raised += 1
            elif isinstance(expected, Exception):
                reason = f"plain Spark raises an error, the view does not: {_message(expected)}"
            elif isinstance(actual, Exception):
                reason = f"the view raises an error, plain Spark does not: {_message(actual)}"
        else:
            tie_breaking = results[2] if len(results) > 2 else actual
            if isinstance(tie_breaking, Exception):
                reason = f"the tie-breaking query raises an error: {_message(tie_breaking)}"
            elif (diff := difference(tie_breaking, actual, case.equality)) is not None:
                reason = f"compared with the tie-breaking query: {diff}"
            elif (diff := difference(expected, tie_breaking, case.equality)) is not None:
                reason = self._explain_ties(comparison, expected, tie_breaking, str(diff))
        if reason:
            verdict.mismatches.append(Mismatch(case, comparison.step, reason))

    def _explain_ties(
        self, comparison: "_Comparison", expected: list[Row], actual: list[Row], diff: str
    ) -> str:
        """Return how the original and the tie-breaking query differ; empty if ties explain the difference."""
        if not comparison.case.equality.ordered:
            return diff
        equality = comparison.case.equality
        row_counts_differ = []
        for query, texts in comparison.variants():
            rows = self._rows_or_error(query)
            for variant in map(self._rows_or_error, texts):
                if isinstance(rows, Exception) or isinstance(variant, Exception):
                    row_counts_differ.append(False)
                elif difference(rows, variant, equality) is not None:
                    row_counts_differ.append(len(rows) != len(variant))
        if not row_counts_differ:
            return diff
        comparison.verdict.loose += 1
        # An aggregate over an ordered query may have more or fewer rows, depending on how ties are broken.
        if not any(row_counts_differ) and len(expected) != len(actual):
            return f"{len(actual)} rows, but plain Spark has {len(expected)}"
        return ""


@dataclass(frozen=True)
class _Comparison:
    """One case after one step: the queries to compare, or their rows if they are known."""

    case: Case
    step: int
    sides: list[str | list[Row] | Exception]
    variants: Callable[[], list[tuple[str, list[str]]]]
    """Returns queries, each with variants that have the same result unless there are ties."""
    verdict: Verdict


def _at(text: "str | TimedQuery", now: int) -> str:
    return text if isinstance(text, str) else text(now)


def _message(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
