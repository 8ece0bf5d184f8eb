"""Fuzzing of pipelines: views in groups, edited between runs, in both places; see `fuzz_views`.

A pipeline has several views over datasets with deletes. Before each run it gets inserts and deletes, and some
views get another query. The runner and Spark jobs compute the steps in turn. After each run every view must
equal plain Spark over all rows.
"""

import os
import random
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import tidemill as tm
from tests.certificates import assumed_certificates
from tests.integration import views_events, views_typed
from tests.integration.views_generator import DDL, Generator
from tests.type_roles import Role
from tidemill.errors import TidemillError
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import Equality
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.spark.execution import SETTING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

VIEWS = 7
STEPS = 4
FLOATS = Equality(1e-9)

_STORED = {name: kind for name, kind in views_typed.COLUMNS.items() if views_typed.allows(kind, Role.PAYLOAD)}
_NOT_STORED = re.compile(rf"\.({'|'.join(views_typed.COLUMNS.keys() - _STORED.keys())})\b")
_TIES = re.compile(r"\b(LIMIT|row_number|lag|first_value|first|any_value|max_by|LATERAL)\b")
"""Queries that may have several results. The other families compare them."""
TYPED_DDL = {
    name: ", ".join(f"{column} {kind}" for column, kind in _STORED.items()) for name in views_typed.DDL
}


def _queries(generate: Callable[[int], str], seed: int) -> "Iterator[str]":
    """Yield queries that have one result and use columns of a dataset."""
    for number in range(seed, seed + 10_000):
        sql = generate(number)
        if not _TIES.search(sql) and not _NOT_STORED.search(sql):
            yield sql


def _plain_steps(ddl: Mapping[str, str], seed: int) -> "list[Step]":
    _, first, second = generated_steps.generate_steps(ddl, seed=seed)[:3]
    third = generated_steps.generate_steps(ddl, seed=seed + 1)[1]
    deletes = {
        name: [row for row in rows if row not in second.deletes[name]][:3]
        for name, rows in first.inserts.items()
    }
    return [first, second, third, Step(deletes=deletes)]


KINDS: Mapping[str, tuple[Mapping[str, str], Callable[[int], str], Callable[[int], "list[Step]"]]] = {
    "plain": (DDL, lambda seed: Generator(seed).query(), partial(_plain_steps, DDL)),
    "typed": (
        TYPED_DDL,
        lambda seed: views_typed.TypedGenerator(seed).query(),
        partial(_plain_steps, TYPED_DDL),
    ),
    "events": (
        views_events.DDL,
        lambda seed: views_events.EventGenerator(seed).query(),
        lambda seed: views_events.steps(seed)[1:],
    ),
}


@dataclass(frozen=True)
class WrongPipeline:
    """A view that differs from plain Spark after a run."""

    seed: int
    views: Mapping[str, str]
    why: str

    def __str__(self) -> str:
        views = "\n".join(f"  {name}: {sql}" for name, sql in self.views.items())
        return f"seed {self.seed}: {self.why}\nviews:\n{views}"


def search(spark: "SparkSession", seed: int) -> WrongPipeline | None:
    """Run the pipeline of a seed; return what differs from plain Spark."""
    with tempfile.TemporaryDirectory(prefix="tidemill-fuzz-") as home, assumed_certificates():
        kind = list(KINDS)[seed % len(KINDS)]
        return FuzzedPipeline(spark, home, seed, *KINDS[kind]).run()


class FuzzedPipeline:
    """A pipeline whose views change between its runs."""

    def __init__(
        self,
        spark: "SparkSession",
        home: str,
        seed: int,
        ddl: Mapping[str, str],
        generate: Callable[[int], str],
        steps: Callable[[int], "list[Step]"],
    ) -> None:
        self.spark, self.home, self.seed, self.ddl = spark, home, seed, ddl
        self.chance = random.Random(seed)
        self.queries = _queries(generate, seed * 1000)
        self.steps = steps(seed)
        self.contents = TableContents(ddl)
        self.views: dict[str, str] = {f"v{n}": next(self.queries) for n in range(VIEWS)}

    def run(self) -> WrongPipeline | None:
        """Run all steps; return the first difference."""
        for number, step in enumerate(self.steps):
            self.contents.apply(step)
            if number:
                self._edit()
            with _place(("runner", "spark")[(self.seed + number) % 2]):
                difference = self._step(step, number)
            if difference:
                return WrongPipeline(self.seed, self.views, difference)
        return None

    def _edit(self) -> None:
        """Remove a view, add one, and replace the query of another."""
        self.views.pop(self.chance.choice(list(self.views)))
        self.views[f"v{len(self.views) + 100 * self.chance.randint(1, 9)}"] = next(self.queries)
        self.views[self.chance.choice(list(self.views))] = next(self.queries)

    def _step(self, step: Step, number: int) -> str:
        """Run the pipeline; return how a view differs, or nothing."""
        while True:
            pipeline = tm.Pipeline("fuzz", home=self.home, spark=self.spark)
            try:
                tables = {name: pipeline.dataset(name, text, deletes=True) for name, text in self.ddl.items()}
                views = {name: pipeline.view(name, sql) for name, sql in self.views.items()}
                if step.inserts or step.deletes:
                    self._write(tables, step)
                    step = Step()
                report = pipeline.run()
                wrong = self._compare(views, number)
                if wrong:
                    return wrong
                if report.ok:
                    return ""
                failures = "; ".join(f"{name}: {why}" for name, why in report.failures.items())
                if not self._drop_raising():
                    return f"run {number} fails, but plain Spark does not: {failures}"
            except TidemillError as error:
                return f"run {number} raises {type(error).__name__}: {error}"
            finally:
                pipeline.close()

    def _write(self, tables: Mapping[str, Any], step: Step) -> None:
        for name, table in tables.items():
            for rows, write in (
                (step.inserts.get(name), table.append),
                (step.deletes.get(name), table.delete),
            ):
                if rows:
                    contents = TableContents({name: self.ddl[name]})
                    contents.apply(Step({name: rows}))
                    write(contents.frame(self.spark, name))

    def _rows(self) -> Step:
        return Step({name: self.contents.rows(name) for name in self.ddl})

    def _compare(self, views: Mapping[str, Any], number: int) -> str:
        cases = [
            Case(name, self.views[name], MaintainedView(lambda _, view=view: view.df()), FLOATS)
            for name, view in views.items()
        ]
        verdict = Judge(self.spark, self.ddl).run(cases, [self._rows()])
        differences = [each for each in verdict.mismatches if "raises an error" not in each.why]
        return f"run {number}: {differences[0]}" if differences else ""

    def _drop_raising(self) -> bool:
        """Remove the views whose queries raise an error in plain Spark; return whether there are some."""
        raising = set()
        for name, sql in self.views.items():
            verdict = Judge(self.spark, self.ddl).run([Case(name, sql, sql)], [self._rows()])
            if verdict.raised:
                raising.add(name)
        self.views = {name: sql for name, sql in self.views.items() if name not in raising}
        return bool(raising)


@contextmanager
def _place(place: str) -> "Iterator[None]":
    before = os.environ.get(SETTING)
    os.environ[SETTING] = place
    try:
        yield
    finally:
        if before is None:
            del os.environ[SETTING]
        else:
            os.environ[SETTING] = before
