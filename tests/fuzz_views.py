"""Fuzzing of views (`make fuzz ARGS="--seconds 600"`): queries from new seeds, judged as in the tests.

Every other batch is about all of Spark's types (`TypedGenerator`), the rest about how operators are put
together. What differs is printed with its seed and made smaller first: fewer rows, then a shorter query, for
as long as it still differs. The same seed draws the same query again: `--seed N --count 1` (and `--typed`).
"""

import argparse
import itertools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.integration import views_oracle, views_typed
from tests.integration.test_views_generated import case_of
from tests.integration.views_generator import DDL, Generator
from tests.integration.views_shrinking import Rows, shrunk_query, shrunk_rows
from tests.integration.views_typed import one_result
from tests.servers.spark import small_spark
from tidemill.clock import SYSTEM
from tidemill.errors import TidemillError
from tidemill.spark.sessions import expecting_errors, open_session
from tidemill.testing import Judge, Step, Verdict
from tidemill.views.certify import generate
from tidemill.views.sql.catalog import Table

BATCH = 20


@dataclass(frozen=True)
class Family:
    """Tables, the queries that are drawn over them, and steps of rows."""

    ddl: Mapping[str, str]
    query: Callable[[int], str]
    steps: Callable[[int], list[Step]]


PLAIN = Family(DDL, lambda seed: Generator(seed).query(), lambda seed: generate.steps(DDL, seed=seed)[:3])
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


def search(spark: Any, tables: Mapping[str, Table], seeds: range, family: Family = PLAIN) -> Found | None:
    """The first of these queries that differs, made smaller; None if all equal plain Spark."""
    given = {f"seed {seed}": (seed, family.query(seed)) for seed in seeds}
    steps = family.steps(seeds.start)
    cases = [one_result(case_of(spark, tables, name, sql)) for name, (_, sql) in given.items()]
    verdict = Judge(spark, family.ddl).run(cases, steps)
    if verdict:
        return None
    seed, sql = given[verdict.mismatches[0].case.name]
    with expecting_errors():  # what is left of a query may be none
        return _smaller(spark, tables, seed, sql, steps, family.ddl)


def _smaller(
    spark: Any, tables: Mapping[str, Table], seed: int, sql: str, steps: list[Step], ddl: Mapping[str, str]
) -> Found:
    def judged(text: str, given: list[Step]) -> Verdict:
        return Judge(spark, ddl).run([one_result(case_of(spark, tables, f"seed {seed}", text))], given)

    def differs(text: str, given: list[Step]) -> bool:
        try:
            return not judged(text, given)
        except TidemillError:
            return False

    rows: Rows | None = shrunk_rows(ddl, steps, lambda less: differs(sql, [Step(inserts=less)]))
    small = steps if rows is None else [Step(inserts=rows)]
    text = shrunk_query(sql, lambda less: differs(less, small))
    if rows is not None:
        again = shrunk_rows(ddl, small, lambda less: differs(text, [Step(inserts=less)]))
        small = [Step(inserts=again)] if again is not None else small
    return Found(seed, sql, text, small, judged(text, small))


if __name__ == "__main__":
    sys.exit(main())
