"""Fuzzing of views (`make fuzz ARGS="views --seconds 60"`): generate queries and compare them with Spark.

Each query is compared twice: its circuit, run by Spark, and, if it has a chain, its kernels, run step by step
in Spark jobs together with those of the other queries of the batch. Every second batch tests Spark's types
(`TypedGenerator`), the others test combinations of operators. A query that differs is first reduced, to fewer
steps and rows and a shorter text, and then printed with its seed. The same seed generates the same query
again: `--seed N --count 1` (and `--typed`).
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

Compare = Callable[[Mapping[str, str], list[Step]], Verdict]
"""Compares queries, by name, after every step."""


@dataclass(frozen=True)
class QueryFamily:
    """Tables, a generator of queries over them, and a generator of steps."""

    ddl: Mapping[str, str]
    query: Callable[[int], str]
    steps: Callable[[int], list[Step]]


PLAIN = QueryFamily(
    DDL, lambda seed: Generator(seed).query(), lambda seed: generated_steps.generate_steps(DDL, seed=seed)[:3]
)
TYPED = QueryFamily(
    views_typed.DDL,
    lambda seed: views_typed.TypedGenerator(seed).query(),
    views_typed.steps,
)


@dataclass(frozen=True)
class FoundDifference:
    """A query that differs from plain Spark, and a smaller query that still differs."""

    seed: int
    sql: str
    smaller: str
    steps: list[Step]
    verdict: Verdict

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.sql}", f"smaller: {self.smaller}", str(self.verdict), "steps:"]
        return "\n".join([*lines, *(f"  {step}" for step in self.steps)])


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run")
    parser.add_argument("--seed", type=int, help="seed of the first query; default: random")
    parser.add_argument("--count", type=int, help="number of queries, instead of a time")
    parser.add_argument("--typed", action="store_true", help="only queries about types")
    arguments = parser.parse_args(given)
    first_seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**40)
    sys.stdout.write(f"seed {first_seed}\n")
    deadline = SYSTEM.monotonic() + arguments.seconds
    spark = open_session(small_spark())
    compared = 0
    with views_oracle.stage(spark, {}, {**PLAIN.ddl, **TYPED.ddl}) as tables:
        for number, seeds in enumerate(_batches(first_seed, arguments.count)):
            if arguments.count is None and SYSTEM.monotonic() >= deadline:
                break
            difference = search(spark, tables, seeds, TYPED if arguments.typed or number % 2 else PLAIN)
            if difference is not None:
                sys.stdout.write(f"{difference}\n")
                return 1
            compared += len(seeds)
    sys.stdout.write(f"{compared} queries, all equal to plain Spark\n")
    return 0


def _batches(first_seed: int, count: int | None) -> Iterator[range]:
    for start in itertools.count(0, BATCH):
        if count is not None and start >= count:
            return
        size = BATCH if count is None else min(BATCH, count - start)
        yield range(first_seed + start, first_seed + start + size)


def search(
    spark: Any,
    tables: Mapping[str, QueryTable],
    seeds: range,
    family: QueryFamily = PLAIN,
    *,
    job: bool = True,
) -> FoundDifference | None:
    """Return the first of these queries that differs, reduced; None if all are equal to plain Spark.

    - job: whether kernels run in Spark jobs instead of this process.
    """
    queries = {f"seed {seed}": (seed, family.query(seed)) for seed in seeds}
    steps = family.steps(seeds.start)
    texts = {name: sql for name, (_, sql) in queries.items()}
    comparison = Comparison(spark, tables, family.ddl)
    for compare in (comparison.circuits, partial(comparison.kernels, job=job)):
        verdict = compare(texts, steps)
        if not verdict:
            seed, sql = queries[verdict.mismatches[0].case.name]
            with expecting_errors():  # a reduced query may be invalid
                return _shrink(compare, family.ddl, seed, sql, steps)
    return None


@dataclass(frozen=True)
class Comparison:
    """Compares queries over some tables with plain Spark."""

    spark: Any
    tables: Mapping[str, QueryTable]
    ddl: Mapping[str, str]

    def circuits(self, texts: Mapping[str, str], steps: list[Step]) -> Verdict:
        """Compare the circuits of queries, run by Spark, with the queries."""
        cases = [one_result(case_of(self.spark, self.tables, name, sql)) for name, sql in texts.items()]
        return Judge(self.spark, self.ddl).run(cases, steps)

    def kernels(self, texts: Mapping[str, str], steps: list[Step], *, job: bool) -> Verdict:
        """Compare the kernels of the queries that have a chain with plain Spark."""
        from pyspark.errors import PySparkException

        with tempfile.TemporaryDirectory(prefix="tidemill-fuzz-") as folder:
            cases = self._kernel_cases(texts, Path(folder), job=job)
            try:
                return Judge(self.spark, self.ddl).run(cases, steps) if cases else Verdict()
            except (TidemillError, PySparkException) as error:
                # A query that raises an error fails the step of all queries. Run each alone to find it. It is
                # a difference if plain Spark has a result.
                if len(texts) > 1:
                    verdicts = [self.kernels({name: sql}, steps, job=job) for name, sql in texts.items()]
                    return next((verdict for verdict in verdicts if not verdict), Verdict())
                if self.circuits(texts, steps).raised:
                    return Verdict()
                return Verdict([Mismatch(cases[0], -1, f"its kernels raise: {error}")])

    def _kernel_cases(self, texts: Mapping[str, str], folder: Path, *, job: bool) -> list[Case]:
        written = {n: views_oracle.compiled(self.spark, self.tables, sql).output for n, sql in texts.items()}
        outputs = {name: rewrite(output) for name, output in written.items()}
        # Half of the tables are datasets of changes, which are validated; the others contain rows.
        kinds = dict.fromkeys(sorted(self.ddl)[::2], "changes")
        kernels = Kernels(self.spark, folder, self.ddl, outputs, kinds=kinds, count=3, job=job)
        return [
            one_result(
                Case(
                    name,
                    texts[name],
                    kernels.maintained(name),
                    equality_of(outputs[name]),
                    interpret(written[name]),
                )
            )
            for name in outputs
            if name in kernels.group.views
        ]


def _shrink(
    compare: Compare, ddl: Mapping[str, str], seed: int, sql: str, steps: list[Step]
) -> FoundDifference:
    name = f"seed {seed}"

    def differs(text: str, some_steps: list[Step]) -> bool:
        try:
            return not compare({name: text}, some_steps)
        except TidemillError:
            return False

    rows: Rows | None = shrunk_rows(ddl, steps, lambda smaller: differs(sql, [Step(inserts=smaller)]))
    smaller_steps = [Step(inserts=rows)] if rows is not None else shrunk_steps(steps, partial(differs, sql))
    text = shrunk_query(sql, lambda smaller: differs(smaller, smaller_steps))
    smaller_steps = shrunk_steps(smaller_steps, partial(differs, text))
    return FoundDifference(seed, sql, text, smaller_steps, compare({name: text}, smaller_steps))


if __name__ == "__main__":
    sys.exit(main())
