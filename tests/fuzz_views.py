"""Fuzzing of views (`make fuzz ARGS="views --seconds 60"`): generate queries and compare them with Spark.

A batch tests combinations of operators, Spark's types (`TypedGenerator`), or time windows and guarded
expressions (`EventGenerator`) in turn. Each query is compared three times: its circuit, run by Spark, and, if
it has a chain, its kernels, run step by step in this process and in Spark jobs, together with those of the
other queries of the batch. A query that differs is first reduced, to fewer steps and rows and a shorter text,
and then printed with its seed. The same seed generates the same query again: `--family events --seed N
--count 1`.

Every fourth batch is a pipeline: several views in a group, which are edited between runs (`fuzz_pipelines`).
"""

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests import fuzz_pipelines
from tests.integration import views_events, views_oracle, views_typed
from tests.integration.test_views_generated import case_of
from tests.integration.views_generator import DDL, Generator
from tests.integration.views_kernels import Kernels
from tests.integration.views_shrinking import Rows, shrunk_query, shrunk_rows, shrunk_steps
from tests.integration.views_typed import one_result
from tests.servers.spark import small_spark
from tidemill.clock import SYSTEM
from tidemill.errors import TidemillError
from tidemill.spark.expected_errors import expecting_errors
from tidemill.spark.sessions import open_session
from tidemill.testing import Case, Judge, Step, Verdict
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.judge import Mismatch
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.sql.catalog import QueryTable

BATCH = 20
ONLY_SPARK_RAISES = "plain Spark raises an error, the view does not"

Compare = Callable[[Mapping[str, str], list[Step]], Verdict]
"""Compares queries, by name, after every step."""


@dataclass(frozen=True)
class QueryFamily:
    """Tables, a generator of queries over them, and a generator of steps."""

    ddl: Mapping[str, str]
    query: Callable[[int], str]
    steps: Callable[[int], list[Step]]
    raises: bool = False
    """Whether plain Spark may raise an error where a view has a result, because it evaluates more rows."""


PLAIN = QueryFamily(
    DDL, lambda seed: Generator(seed).query(), lambda seed: generated_steps.generate_steps(DDL, seed=seed)[:3]
)
TYPED = QueryFamily(
    views_typed.DDL,
    lambda seed: views_typed.TypedGenerator(seed).query(),
    views_typed.steps,
)
EVENTS = QueryFamily(
    views_events.DDL,
    lambda seed: views_events.EventGenerator(seed).query(),
    views_events.steps,
    raises=True,
)
FAMILIES = {"plain": PLAIN, "typed": TYPED, "events": EVENTS}


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
    parser.add_argument("--family", choices=[*FAMILIES, "pipelines"], help="only queries of this kind")
    arguments = parser.parse_args(given)
    first_seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**40)
    sys.stdout.write(f"seed {first_seed}\n")
    deadline = SYSTEM.monotonic() + arguments.seconds
    families = [arguments.family] if arguments.family else [*FAMILIES, "pipelines"]
    spark = open_session(small_spark())
    compared = 0
    for number, seeds in enumerate(_batches(first_seed, arguments.count)):
        if arguments.count is None and SYSTEM.monotonic() >= deadline:
            break
        family = families[number % len(families)]
        with expecting_errors():
            difference = _search_family(spark, family, seeds)
        if difference is not None:
            sys.stdout.write(f"family {family}, {difference}\n")
            return 1
        compared += len(seeds)
    sys.stdout.write(f"{compared} queries, all equal to plain Spark\n")
    return 0


def _search_family(spark: Any, family: str, seeds: range) -> object | None:
    if family == "pipelines":
        return fuzz_pipelines.search(spark, seeds[0])
    with views_oracle.stage(spark, {}, FAMILIES[family].ddl) as tables:
        return search(spark, tables, seeds, FAMILIES[family])


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
) -> FoundDifference | None:
    """Return the first of these queries that differs, reduced; None if all are equal to plain Spark."""
    queries = {f"seed {seed}": (seed, family.query(seed)) for seed in seeds}
    steps = family.steps(seeds.start)
    texts = {name: sql for name, (_, sql) in queries.items()}
    comparison = Comparison(spark, tables, family)
    places = [partial(comparison.kernels, job=job) for job in (False, True)]
    for compare in (comparison.circuits, *places):
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
    family: QueryFamily

    def circuits(self, texts: Mapping[str, str], steps: list[Step]) -> Verdict:
        """Compare the circuits of queries, run by Spark, with the queries."""
        cases = [one_result(case_of(self.spark, self.tables, name, sql)) for name, sql in texts.items()]
        return self._judged(cases, steps)

    def kernels(self, texts: Mapping[str, str], steps: list[Step], *, job: bool) -> Verdict:
        """Compare the kernels of the queries that have a chain with plain Spark."""
        from pyspark.errors import PySparkException

        with tempfile.TemporaryDirectory(prefix="tidemill-fuzz-") as folder:
            cases = self._kernel_cases(texts, Path(folder), job=job)
            try:
                return self._judged(cases, steps) if cases else Verdict()
            except (TidemillError, PySparkException) as error:
                # A query that raises an error fails the step of all queries. Run each alone to find it. It is
                # a difference if plain Spark has a result.
                if len(texts) > 1:
                    verdicts = [self.kernels({name: sql}, steps, job=job) for name, sql in texts.items()]
                    return next((verdict for verdict in verdicts if not verdict), Verdict())
                if self.circuits(texts, steps).raised:
                    return Verdict()
                return Verdict([Mismatch(cases[0], -1, f"its kernels raise: {error}")])

    def _judged(self, cases: list[Case], steps: list[Step]) -> Verdict:
        verdict = Judge(self.spark, self.family.ddl).run(cases, steps)
        if self.family.raises:
            differences = [each for each in verdict.mismatches if not each.why.startswith(ONLY_SPARK_RAISES)]
            verdict = replace(verdict, mismatches=differences)
        return verdict

    def _kernel_cases(self, texts: Mapping[str, str], folder: Path, *, job: bool) -> list[Case]:
        written = {n: views_oracle.compiled(self.spark, self.tables, sql).output for n, sql in texts.items()}
        outputs = {name: rewrite(output) for name, output in written.items()}
        # Half of the tables are datasets of changes, which are validated; the others contain rows.
        kinds = dict.fromkeys(sorted(self.family.ddl)[::2], "changes")
        kernels = Kernels(self.spark, folder, self.family.ddl, outputs, kinds=kinds, count=3, job=job)
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
