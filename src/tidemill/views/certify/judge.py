"""The judge: after every step, what is kept of a view against what plain Spark makes of the whole tables.

The comparison is written once, here: certification, tests and fuzzing use it. A *case* is a view's query and
what is held against it: another query (a circuit as Spark SQL), or a function that is given each step and
says what it holds after it (whatever maintains the view). Many cases are judged by one Spark job.

Where the class of a view is *ordered*, the query as it was written leaves ties, and Spark breaks them anyhow.
Then the oracle is the same query with the hash of the row as its last key (`Case.keyed`), and what is held
must equal that. The query without the key must give the same again, unless Spark has several answers for it:
ties are there if the opposite key changes the oracle's result, or the opposite order of the tables' rows that
of the query. Only then no more than as many rows are demanded of it, and the step is counted as `loose`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from tidemill.spark import queries, schema
from tidemill.views.certify import results
from tidemill.views.certify.compare import Row, difference
from tidemill.views.certify.contents import Contents, Step
from tidemill.views.certify.equality import EXACT, Equality
from tidemill.views.circuit.ties import turned
from tidemill.views.spark.clock import at_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Written: TypeAlias = Callable[[int], str]
_NUMBERS = count()


@dataclass(frozen=True)
class Case:
    """A view, and what is held against it.

    - sql: the view's query.
    - held: a query over the same tables, or that of a moment (µs since 1970); or a function that is given
      every step, in order, and returns a frame of all rows it holds after it.
    - equality: how the two are compared.
    - keyed: the oracle of an ordered view: its query, operator by operator as it was written, with the hash
      of the row as the last key of every order; as a query, or that of a moment.
    """

    name: str
    sql: str
    held: "str | Written | Holding"
    equality: Equality = EXACT
    keyed: "str | Written | None" = None


@dataclass(frozen=True)
class Holding:
    """Something that maintains a view: it takes a step, and gives all it holds after it."""

    after: "Callable[[Step], DataFrame]"


@dataclass(frozen=True)
class Mismatch:
    """A case that is not equal to Spark, and after which step (from 0)."""

    case: Case
    step: int
    why: str

    def __str__(self) -> str:
        where = f"{self.case.name}, after step {self.step} ({self.case.equality.name})"
        return f"{where}: {self.why}\n{self.case.sql}"


@dataclass
class Verdict:
    """What a judge found.

    - compared: pairs of a case and a step.
    - loose: those in which Spark itself has several answers to the query, and gave another one.
    - raised: those in which the query raises, and what is held against it as well.
    """

    mismatches: list[Mismatch] = field(default_factory=list)
    compared: int = 0
    loose: int = 0
    raised: int = 0

    def __bool__(self) -> bool:
        return not self.mismatches

    def __str__(self) -> str:
        said = f"{self.compared} compared, {self.loose} of them loosely, {self.raised} raised on both sides"
        return "\n\n".join([said, *map(str, self.mismatches)])


class Judge:
    """Compares views with plain Spark, step by step.

    >>> judge = Judge(spark, {"t": "a INT"})  # doctest: +SKIP
    >>> verdict = judge.run(
    ...     [Case("sums", "SELECT sum(a) AS s FROM t", Holding(kept))], steps
    ... )  # doctest: +SKIP
    >>> assert verdict, verdict  # doctest: +SKIP

    Args:
        spark: a session with the pinned settings.
        tables: the columns of the tables that queries read, by name, as Spark writes them.
        batch: about how many results one job computes.
    """

    def __init__(self, spark: "SparkSession", tables: Mapping[str, str], *, batch: int = 40) -> None:
        self._spark = spark
        self._tables = dict(tables)
        self._batch = batch
        self._number = 0

    def run(self, cases: Sequence[Case], steps: Sequence[Step]) -> Verdict:
        """Judge every case after every step; the tables begin empty."""
        verdict = Verdict()
        contents = Contents(self._tables)
        columns = {name for text in self._tables.values() for name in schema.parse(text).names}
        waiting: list[_Question] = []
        asked = 0
        before: Contents | None = None
        with ExitStack() as stack:
            frames = _Frames(self._spark, contents, f"judge{id(self):x}", stack)
            for number, step in enumerate(steps):
                contents.apply(step)
                if before is None or not contents.same(before):
                    frames = _Frames(self._spark, contents, f"judge{id(self):x}_{number}", stack)
                    cases_now = cases
                else:
                    # Plain Spark has said already what a query gives: only what is maintained is asked again.
                    cases_now = [case for case in cases if isinstance(case.held, Holding)]
                    verdict.compared += len(cases) - len(cases_now)
                before = contents.copy()
                for case in cases_now:
                    waiting.append(self._question(case, number, step, frames, columns))
                    asked += len(waiting[-1].asked)
                    if asked >= self._batch:
                        self._answer(waiting, verdict)
                        waiting, asked = [], 0
            if waiting:
                self._answer(waiting, verdict)
        return verdict

    def _question(
        self, case: Case, number: int, step: Step, frames: "_Frames", columns: set[str]
    ) -> "_Question":
        sql = at_time(case.sql, frames.now, columns)
        asked = [frames.query(sql)]
        if isinstance(case.held, Holding):
            asked.append(frames.named(case.held.after(step)))
        else:
            asked.append(frames.query(_at(case.held, frames.now)))
        keyed = None
        if case.equality.settled:
            known = case.keyed if case.keyed is not None else case.held
            keyed = None if isinstance(known, Holding) else _at(known, frames.now)
        if keyed is not None and frames.query(keyed) != asked[1]:
            asked.append(frames.query(keyed))

        def others() -> list[str]:
            backwards = frames.query(sql, backwards=True)
            return [backwards] if keyed is None else [backwards, frames.query(turned(keyed))]

        return _Question(case, number, asked, others, frames.small)

    def _answer(self, questions: Sequence["_Question"], verdict: Verdict) -> None:
        small = all(one.small for one in questions)
        try:
            asked = [text for one in questions for text in one.asked]
            found = iter(results.collected(self._spark, asked, small=small))
        except Exception as error:
            if not _of_spark(error):
                raise
            if len(questions) > 1:
                # One of them raises, and takes the job with it: it is in one of the halves.
                half = len(questions) // 2
                self._answer(questions[:half], verdict)
                self._answer(questions[half:], verdict)
            else:
                (one,) = questions
                self._judge(one, [self._alone(text) for text in one.asked], verdict)
            return
        for one in questions:
            self._judge(one, [next(found) for _ in one.asked], verdict)

    def _alone(self, text: str) -> "list[Row] | Exception":
        try:
            return results.collected(self._spark, [text])[0]
        except Exception as error:
            if not _of_spark(error):
                raise
            return error

    def _judge(
        self, question: "_Question", given: "Sequence[list[Row] | Exception]", verdict: Verdict
    ) -> None:
        case = question.case
        expected, found = given[:2]
        verdict.compared += 1
        why = ""
        if isinstance(expected, Exception) or isinstance(found, Exception):
            if isinstance(expected, Exception) and isinstance(found, Exception):
                verdict.raised += 1
            elif isinstance(expected, Exception):
                why = f"plain Spark raises, and here it does not: {_said(expected)}"
            elif isinstance(found, Exception):
                why = f"plain Spark has a result, and here it raises: {_said(found)}"
        else:
            keyed = given[2] if len(given) > 2 else found
            if isinstance(keyed, Exception):
                why = f"the query with a key for ties raises: {_said(keyed)}"
            elif (differs := difference(keyed, found, case.equality)) is not None:
                why = f"of the query with a key for ties: {differs}"
            elif (differs := difference(expected, keyed, case.equality)) is not None:
                why = self._doubted(question, expected, keyed, str(differs), verdict)
        if why:
            verdict.mismatches.append(Mismatch(case, question.step, why))

    def _doubted(
        self, question: "_Question", expected: list[Row], found: list[Row], differs: str, verdict: Verdict
    ) -> str:
        """Why the query's own result differs; nothing where Spark has several, and as many rows in each."""
        if not question.case.equality.ordered:
            return differs
        equality = question.case.equality
        again = [self._alone(text) for text in question.others()]
        if not any(
            isinstance(other, Exception) or difference(mine, other, equality) is not None
            for mine, other in zip((expected, found), again, strict=False)
        ):
            return differs
        verdict.loose += 1
        if len(expected) != len(found):
            return f"{len(found)} rows, and plain Spark has {len(expected)}"
        return ""


@dataclass(frozen=True)
class _Question:
    case: Case
    step: int
    asked: list[str]
    others: Callable[[], list[str]]
    small: bool


class _Frames:
    """The tables after one step, each a temporary view of a name of its own, made when a query reads it."""

    def __init__(self, spark: "SparkSession", contents: Contents, tag: str, stack: ExitStack) -> None:
        self.now = contents.now
        self.small = contents.small
        self._spark = spark
        self._contents = contents.copy()
        self._tag = tag
        self._stack = stack
        self._made: dict[tuple[str, bool], str] = {}

    def query(self, sql: str, *, backwards: bool = False) -> str:
        """A query over them; `backwards` has their rows in the opposite order."""
        return queries.renamed(sql.rstrip().rstrip(";"), lambda name: self._view(name, backwards=backwards))

    def named(self, frame: "DataFrame") -> str:
        """A query of all rows of a frame."""
        view = f"{self._tag}_held{next(_NUMBERS)}"
        frame.createOrReplaceTempView(view)
        self._stack.callback(self._spark.catalog.dropTempView, view)
        return f"SELECT * FROM {view}"  # noqa: S608

    def _view(self, name: str, *, backwards: bool) -> str:
        table = queries.match(name, self._contents.tables)
        key = (table, backwards)
        if key not in self._made:
            view = f"{self._tag}_{len(self._made)}"
            self._contents.frame(self._spark, table, backwards=backwards).createOrReplaceTempView(view)
            self._stack.callback(self._spark.catalog.dropTempView, view)
            self._made[key] = view
        return self._made[key]


def _at(text: "str | Written", now: int) -> str:
    return text if isinstance(text, str) else text(now)


def _of_spark(error: Exception) -> bool:
    """Did a query raise? A mistake of ours is none of its results."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
