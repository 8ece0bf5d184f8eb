"""Fuzzing of views (`make fuzz ARGS="--seconds 600"`): queries from new seeds, judged as in the tests.

Each query is asked twice: of its circuit, interpreted by Spark, and, where it has a chain, of its kernels,
step after step by Spark jobs, those of all queries of a batch together.
Every other batch is about all of Spark's types (`TypedGenerator`), the rest about how operators are put
together. What differs is printed with its seed and made smaller first: fewer steps and rows, then a shorter
query, for as long as it still differs. The same seed draws the same query again: `--seed N --count 1` (and
`--typed`).
"""

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration import views_oracle, views_typed
from tests.integration.test_views_generated import case_of
from tests.integration.views_generator import DDL, Generator
from tests.integration.views_kernels import Kernels
from tests.integration.views_shrinking import Rows, shrunk_query, shrunk_rows, shrunk_steps
from tests.integration.views_typed import one_result
from tests.servers.spark import small_spark
from tidemill.clock import SYSTEM
from tidemill.errors import TidemillError
from tidemill.spark.sessions import expecting_errors, open_session
from tidemill.testing import Case, Judge, Step, Verdict
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.judge import Mismatch
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.sql.catalog import QueryTable

BATCH = 20

Judged = Callable[[Mapping[str, str], list[Step]], Verdict]
"""Judges queries by their names after every step."""


@dataclass(frozen=True)
class Family:
    """Tables, the queries that are drawn over them, and steps of rows."""

    ddl: Mapping[str, str]
    query: Callable[[int], str]
    steps: Callable[[int], list[Step]]


PLAIN = Family(
    DDL, lambda seed: Generator(seed).query(), lambda seed: generated_steps.generate_steps(DDL, seed=seed)[:3]
)
TYPED = Family(
    views_typed.DDL,
    lambda seed: views_typed.TypedGenerator(seed).query(),
    views_typed.steps,
)


@dataclass(frozen=True)
class Found:
    """A query that differs from plain Spark, and the least of it that still does."""

    seed: int
    sql: str
    smaller: str
    steps: list[Step]
    verdict: Verdict

    def __str__(self) -> str:
        said = [f"seed {self.seed}: {self.sql}", f"smaller: {self.smaller}", str(self.verdict), "steps:"]
        return "\n".join([*said, *(f"  {step}" for step in self.steps)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, help="of the first query; drawn if it is not given")
    parser.add_argument("--count", type=int, help="how many queries, instead of a time")
    parser.add_argument("--typed", action="store_true", help="only queries about types")
    given = parser.parse_args()
    first = given.seed if given.seed is not None else random.SystemRandom().randrange(2**40)
    sys.stdout.write(f"seed {first}\n")
    ends = SYSTEM.monotonic() + given.seconds
    spark = open_session(small_spark())
    done = 0
    with views_oracle.stage(spark, {}, {**PLAIN.ddl, **TYPED.ddl}) as tables:
        for number, seeds in enumerate(_batches(first, given.count)):
            if given.count is None and SYSTEM.monotonic() >= ends:
                break
            found = search(spark, tables, seeds, TYPED if given.typed or number % 2 else PLAIN)
            if found is not None:
                sys.stdout.write(f"{found}\n")
                return 1
            done += len(seeds)
    sys.stdout.write(f"{done} queries, all equal to plain Spark\n")
    return 0


def _batches(first: int, count: int | None) -> Iterator[range]:
    for done in itertools.count(0, BATCH):
        if count is not None and done >= count:
            return
        some = BATCH if count is None else min(BATCH, count - done)
        yield range(first + done, first + done + some)


def search(
    spark: Any, tables: Mapping[str, QueryTable], seeds: range, family: Family = PLAIN, *, job: bool = True
) -> Found | None:
    """The first of these queries that differs, made smaller; None if all equal plain Spark.

    - job: kernels are asked by Spark jobs, and not in this process.
    """
    given = {f"seed {seed}": (seed, family.query(seed)) for seed in seeds}
    steps = family.steps(seeds.start)
    texts = {name: sql for name, (_, sql) in given.items()}
    asked = Asked(spark, tables, family.ddl)
    for judged in (asked.circuits, partial(asked.kernels, job=job)):
        verdict = judged(texts, steps)
        if not verdict:
            seed, sql = given[verdict.mismatches[0].case.name]
            with expecting_errors():  # what is left of a query may be none
                return _smaller(judged, family.ddl, seed, sql, steps)
    return None


@dataclass(frozen=True)
class Asked:
    """Queries over some tables, judged."""

    spark: Any
    tables: Mapping[str, QueryTable]
    ddl: Mapping[str, str]

    def circuits(self, texts: Mapping[str, str], steps: list[Step]) -> Verdict:
        """The circuits of queries, interpreted by Spark, against plain Spark."""
        cases = [one_result(case_of(self.spark, self.tables, name, sql)) for name, sql in texts.items()]
        return Judge(self.spark, self.ddl).run(cases, steps)

    def kernels(self, texts: Mapping[str, str], steps: list[Step], *, job: bool) -> Verdict:
        """The kernels of the queries that have a chain against plain Spark."""
        from pyspark.errors import PySparkException

        with tempfile.TemporaryDirectory(prefix="tidemill-fuzz-") as folder:
            cases = self._held(texts, Path(folder), job=job)
            try:
                return Judge(self.spark, self.ddl).run(cases, steps) if cases else Verdict()
            except (TidemillError, PySparkException) as error:
                # A query that raises takes the step of all others with it. If plain Spark has a result, that
                # is a difference; which one it is, is found by asking each alone.
                if len(texts) > 1:
                    verdicts = [self.kernels({name: sql}, steps, job=job) for name, sql in texts.items()]
                    return next((one for one in verdicts if not one), Verdict())
                if self.circuits(texts, steps).raised:
                    return Verdict()
                return Verdict([Mismatch(cases[0], -1, f"its kernels raise: {error}")])

    def _held(self, texts: Mapping[str, str], folder: Path, *, job: bool) -> list[Case]:
        written = {n: views_oracle.compiled(self.spark, self.tables, sql).output for n, sql in texts.items()}
        outputs = {name: rewrite(output) for name, output in written.items()}
        # Of half of the tables rows come and go as changes, which are checked; of the others as they are.
        kinds = dict.fromkeys(sorted(self.ddl)[::2], "changes")
        kernels = Kernels(self.spark, folder, self.ddl, outputs, kinds=kinds, count=3, job=job)
        return [
            one_result(
                Case(
                    name,
                    texts[name],
                    kernels.holding(name),
                    equality_of(outputs[name]),
                    interpret(written[name]),
                )
            )
            for name in outputs
            if name in kernels.found.views
        ]


def _smaller(judged: Judged, ddl: Mapping[str, str], seed: int, sql: str, steps: list[Step]) -> Found:
    name = f"seed {seed}"

    def differs(text: str, given: list[Step]) -> bool:
        try:
            return not judged({name: text}, given)
        except TidemillError:
            return False

    rows: Rows | None = shrunk_rows(ddl, steps, lambda less: differs(sql, [Step(inserts=less)]))
    small = [Step(inserts=rows)] if rows is not None else shrunk_steps(steps, partial(differs, sql))
    text = shrunk_query(sql, lambda less: differs(less, small))
    small = shrunk_steps(small, partial(differs, text))
    return Found(seed, sql, text, small, judged({name: text}, small))


if __name__ == "__main__":
    sys.exit(main())
