"""The judge: after every step, what is kept of a view against what plain Spark makes of the whole tables.

The comparison is written once, here: certification, tests and fuzzing use it. A *case* is a view's query and
what is held against it: another query (a circuit as Spark SQL), or a function that is given each step and
says what it holds after it (whatever maintains the view). Many cases are judged by one Spark job.

Where the class of a view is *ordered*, the query as it was written leaves ties, and Spark breaks them anyhow.
Then the oracle is the same query with the hash of the row as its last key (`Case.keyed`), and what is held
must equal that. The query without the key must give the same again, unless Spark has several answers for it:
ties are there if another key changes the oracle's result, or the opposite order of the tables' rows that of
the query. Only then no more than as many rows are demanded of it, and the step is counted as `loose`.

Results of queries may be known beforehand (`KnownResults`), for example because Spark planned a query once
for all steps. Only the rest is computed here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tidemill.spark import queries, schema
from tidemill.views.certify import query_results
from tidemill.views.certify.equality import EXACT, Equality, Row, difference
from tidemill.views.certify.table_contents import Step, TableContents
from tidemill.views.circuit.ties import with_other_tie_breaks
from tidemill.views.spark.step_time import with_step_time

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


class KnownResults(Protocol):
    """Results of many queries after many steps, as far as they can be had ahead of the questions."""

    def __call__(
        self, contents: Sequence[TableContents], asked: Sequence[Collection[str]]
    ) -> Sequence[Mapping[str, list[Row]]]:
        """The rows of queries after each step, by their texts.

        Args:
            contents: what the tables hold after each of the steps.
            asked: the texts that will be asked for after each of them; those that raise, or that cannot be
                known ahead, are left out of the answer.
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
        tables: the columns of the tables that queries read, by name, as Spark writes them.
        batch: about how many results one job computes.
        ahead: who is asked first for the results of all queries after all steps.
    """

    def __init__(
        self,
        spark: "SparkSession",
        tables: Mapping[str, str],
        *,
        batch: int = 40,
        ahead: KnownResults | None = None,
    ) -> None:
        self._spark = spark
        self._tables = dict(tables)
        self._columns = {name for text in tables.values() for name in schema.parse(text).names}
        self._batch = batch
        self._ahead = ahead

    def run(self, cases: Sequence[Case], steps: Sequence[Step]) -> Verdict:
        """Judge every case after every step; the tables begin empty."""
        verdict = Verdict()
        waiting: list[_Question] = []
        asked = 0
        before: TableContents | None = None
        contents = self._contents(steps)
        known = self._known(cases, contents)
        with ExitStack() as stack:
            for number, step in enumerate(steps):
                now = contents[number]
                cases_now = cases
                if before is not None and now.same(before):
                    # Plain Spark has said already what a query gives: only what is maintained is asked again.
                    cases_now = [case for case in cases if isinstance(case.held, Holding)]
                    verdict.compared += len(cases) - len(cases_now)
                else:
                    frames = _Frames(self._spark, now, f"judge{id(self):x}_{number}", stack)
                before = now
                for case in cases_now:
                    waiting.append(self._question(case, number, step, frames, known[number]))
                    asked += sum(isinstance(one, str) for one in waiting[-1].asked)
                    if asked >= self._batch:
                        self._answer(waiting, verdict)
                        waiting, asked = [], 0
            if waiting:
                self._answer(waiting, verdict)
        return verdict

    def _contents(self, steps: Sequence[Step]) -> list[TableContents]:
        """What the tables hold after each step."""
        contents, found = TableContents(self._tables), []
        for step in steps:
            contents.apply(step)
            found.append(contents.copy())
        return found

    def _known(
        self, cases: Sequence[Case], contents: Sequence[TableContents]
    ) -> Sequence[Mapping[str, list[Row]]]:
        if self._ahead is None:
            return [{} for _ in contents]
        asked: list[set[str]] = []
        for number, now in enumerate(contents):
            again = number > 0 and now.same(contents[number - 1])
            wanted = [case for case in cases if not again or isinstance(case.held, Holding)]
            asked.append({text for case in wanted for text in self._texts(case, now.now) if text is not None})
        return self._ahead(contents, asked)

    def _texts(self, case: Case, now: int) -> tuple[str, str | None, str | None]:
        """The queries that are asked after a step: the view's, what is held, and the oracle of ties."""
        held = None if isinstance(case.held, Holding) else _at(case.held, now)
        keyed = held if case.keyed is None else _at(case.keyed, now)
        return with_step_time(case.sql, now, self._columns), held, keyed if case.equality.settled else None

    def _question(
        self, case: Case, number: int, step: Step, frames: "_Frames", known: Mapping[str, list[Row]]
    ) -> "_Question":
        sql, held, keyed = self._texts(case, frames.now)
        asked = [known[sql] if sql in known else frames.query(sql)]
        if isinstance(case.held, Holding):
            asked.append(frames.named(case.held.after(step)))
        elif held is not None:
            asked.append(known[held] if held in known else frames.query(held))
        if keyed is not None and keyed != held:
            asked.append(known[keyed] if keyed in known else frames.query(keyed))

        oracle = held if case.keyed is None else _at(case.keyed, frames.now)

        def others() -> list[tuple[str, list[str]]]:
            ways = [] if oracle is None else [(oracle, with_other_tie_breaks(oracle))]
            found = [
                (frames.query(one), [frames.query(other) for other in some]) for one, some in ways if some
            ]
            return [(frames.query(sql), [frames.query(sql, backwards=True)]), *found]

        return _Question(case, number, asked, others, frames.small)

    def _answer(self, questions: Sequence["_Question"], verdict: Verdict) -> None:
        small = all(one.small for one in questions)
        try:
            asked = [text for one in questions for text in one.asked if isinstance(text, str)]
            found = iter(query_results.collected(self._spark, asked, small=small))
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
            self._judge(one, [next(found) if isinstance(each, str) else each for each in one.asked], verdict)

    def _alone(self, text: "str | list[Row]") -> "list[Row] | Exception":
        if not isinstance(text, str):
            return text
        try:
            return query_results.collected(self._spark, [text])[0]
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
        several = []
        for one, ways in question.others():
            first = self._alone(one)
            for other in map(self._alone, ways):
                if isinstance(first, Exception) or isinstance(other, Exception):
                    several.append(False)
                elif difference(first, other, equality) is not None:
                    several.append(len(first) != len(other))
        if not several:
            return differs
        verdict.loose += 1
        # What is grouped above an order may be more or fewer rows, by how its ties are broken.
        if not any(several) and len(expected) != len(found):
            return f"{len(found)} rows, and plain Spark has {len(expected)}"
        return ""


@dataclass(frozen=True)
class _Question:
    """What is asked of Spark for a case after a step: queries, or their rows where those are known."""

    case: Case
    step: int
    asked: list[str | list[Row]]
    others: Callable[[], list[tuple[str, list[str]]]]
    """Queries, and each in other ways that give the same result again where there are no ties."""
    small: bool


class _Frames:
    """The tables after one step, each a temporary view of a name of its own, made when a query reads it."""

    def __init__(self, spark: "SparkSession", contents: TableContents, tag: str, stack: ExitStack) -> None:
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
