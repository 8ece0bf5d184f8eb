"""The judge: after every step, what is kept of a view against what plain Spark makes of the whole tables.

The comparison is written once, here: certification, tests and fuzzing use it. A *case* is a view's query and
what is held against it: another query (a circuit as Spark SQL), or a function that is given each step and
says what it holds after it (whatever maintains the view). Many cases are judged by one Spark job.

Where the class of a view is *ordered*, the query is also run over the same tables with their rows in the
opposite order. If that alone changes its result, Spark has several right answers in this step: then as many
rows are demanded as it gives, and the step is counted as `loose`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tidemill.spark import queries, schema
from tidemill.views.certify import results
from tidemill.views.certify.compare import Row, difference
from tidemill.views.certify.contents import Contents, Step
from tidemill.views.certify.equality import EXACT, Equality
from tidemill.views.spark.clock import at_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Written: TypeAlias = Callable[[int], str]


@dataclass(frozen=True)
class Case:
    """A view, and what is held against it.

    - sql: the view's query.
    - held: a query over the same tables, or that of a moment (µs since 1970); or a function that is given
      every step, in order, and returns a frame of all rows it holds after it.
    - equality: how the two are compared.
    """

    name: str
    sql: str
    held: "str | Written | Holding"
    equality: Equality = EXACT


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
    - loose: those in which Spark itself has several answers.
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
        batch: how many frames one job computes at most.
    """

    def __init__(self, spark: "SparkSession", tables: Mapping[str, str], *, batch: int = 48) -> None:
        self._spark = spark
        self._tables = dict(tables)
        self._batch = batch
        self._number = 0

    def run(self, cases: Sequence[Case], steps: Sequence[Step]) -> Verdict:
        """Judge every case after every step; the tables begin empty."""
        verdict = Verdict()
        contents = Contents(self._tables)
        stack = ExitStack()
        waiting: list[_Question] = []
        with stack:
            for number, step in enumerate(steps):
                contents.apply(step)
                frames = _Frames(self._spark, contents)
                for case in cases:
                    waiting.append(self._question(stack, case, number, step, frames, contents.now))
                    if sum(len(one.asked) for one in waiting) >= self._batch:
                        self._answer(waiting, verdict)
                        waiting.clear()
            self._answer(waiting, verdict)
        return verdict

    def _question(
        self, stack: ExitStack, case: Case, number: int, step: Step, frames: "_Frames", now: int
    ) -> "_Question":
        names = {one for text in self._tables.values() for one in _names(text)}
        sql = at_time(case.sql, now, names)
        asked = [lambda: self._query(stack, sql, frames.forward)]
        if isinstance(case.held, Holding):
            held = case.held.after
            asked.append(lambda: held(step))
        else:
            text = case.held if isinstance(case.held, str) else case.held(now)
            asked.append(lambda: self._query(stack, text, frames.forward))
        if case.equality.ordered:
            asked.append(lambda: self._query(stack, sql, frames.backward))
        return _Question(case, number, [_made(one) for one in asked])

    def _query(self, stack: ExitStack, sql: str, frames: "Callable[[str], DataFrame]") -> "DataFrame":
        self._number += 1
        named = {name: frames(name) for name in self._tables if name in _read(sql, self._tables)}
        return stack.enter_context(queries.over(self._spark, sql, named, f"judge{id(self):x}_{self._number}"))

    def _answer(self, questions: Sequence["_Question"], verdict: Verdict) -> None:
        frames = [made for one in questions for made in one.asked if not isinstance(made, Exception)]
        try:
            found = iter(results.collected(frames))
        except Exception as error:
            if not _of_spark(error):
                raise
            if len(questions) > 1:
                # One of them raises, and takes the job with it: it is in one of the halves.
                half = len(questions) // 2
                self._answer(questions[:half], verdict)
                self._answer(questions[half:], verdict)
            else:
                self._judge(questions[0], [_alone(made) for made in questions[0].asked], verdict)
            return
        for one in questions:
            given = [made if isinstance(made, Exception) else next(found) for made in one.asked]
            self._judge(one, given, verdict)

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
            turned = given[2] if len(given) > 2 else expected
            if isinstance(turned, Exception) or difference(expected, turned, case.equality) is not None:
                verdict.loose += 1
                if len(expected) != len(found):
                    why = f"{len(found)} rows, and plain Spark has {len(expected)}"
            else:
                differs = difference(expected, found, case.equality)
                why = str(differs) if differs is not None else ""
        if why:
            verdict.mismatches.append(Mismatch(case, question.step, why))


@dataclass(frozen=True)
class _Question:
    case: Case
    step: int
    asked: "list[DataFrame | Exception]"


class _Frames:
    """The tables after one step, each made a frame when a query reads it."""

    def __init__(self, spark: "SparkSession", contents: Contents) -> None:
        self._spark = spark
        self._contents = contents.copy()
        self._made: dict[tuple[str, bool], DataFrame] = {}

    def forward(self, table: str) -> "DataFrame":
        return self._of(table, backwards=False)

    def backward(self, table: str) -> "DataFrame":
        return self._of(table, backwards=True)

    def _of(self, table: str, *, backwards: bool) -> "DataFrame":
        key = (table, backwards)
        if key not in self._made:
            self._made[key] = self._contents.frame(self._spark, table, backwards=backwards)
        return self._made[key]


def _made(ask: "Callable[[], DataFrame]") -> "DataFrame | Exception":
    """Spark may evaluate constants, and raise, when a query is analysed."""
    try:
        return ask()
    except Exception as error:
        if not _of_spark(error):
            raise
        return error


def _alone(frame: "DataFrame | Exception") -> "list[Row] | Exception":
    if isinstance(frame, Exception):
        return frame
    try:
        return results.collected([frame])[0]
    except Exception as error:
        if not _of_spark(error):
            raise
        return error


def _of_spark(error: Exception) -> bool:
    """Did a query raise? A mistake of ours is none of its results."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _read(sql: str, tables: Mapping[str, str]) -> set[str]:
    return {queries.match(one.name, tables) for one in queries.table_names(sql)}


def _names(ddl: str) -> list[str]:
    return list(schema.parse(ddl).names)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
