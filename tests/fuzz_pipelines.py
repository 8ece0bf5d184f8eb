"""Fuzzing of pipelines: views in groups, edited between runs, in both places; see `fuzz_views`.

A pipeline has views in two groups, over datasets with deletes, or with a key and an order. Before each run,
the datasets get inserts and deletes, some of them late, and some views get another query. The runner and
Spark jobs compute the steps in turn. After each run every view must equal plain Spark over all rows. A view
whose query raises an error in plain Spark may be set aside, but no other view. When the last step has deleted
all rows, every view must have resumed.
"""

import math
import os
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from tidemill.views.certify.table_contents import Row, TableContents
from tidemill.views.spark.execution import SETTING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

VIEWS = 7
KEYS = 6
GROUPS = ("main", "other")
FLOATS = Equality(1e-9)

_STORED = {name: kind for name, kind in views_typed.COLUMNS.items() if views_typed.allows(kind, Role.PAYLOAD)}
_COLLATED = {
    name for name, kind in _STORED.items() if "COLLATE" in kind
}  # a group has any of its equal texts
_NOT_USED = re.compile(rf"\.({'|'.join(views_typed.COLUMNS.keys() - _STORED.keys() | _COLLATED)})\b")
_TIES = re.compile(r"\b(LIMIT|row_number|lag|first_value|first|any_value|max_by|LATERAL)\b")
"""Queries that may have several results. The other families compare them."""
TYPED_DDL = {
    name: ", ".join(f"{column} {kind}" for column, kind in _STORED.items()) for name in views_typed.DDL
}


def _queries(generate: Callable[[int], str], seed: int) -> "Iterator[str]":
    """Yield queries that have one result and use only columns of a dataset."""
    for number in range(seed, seed + 10_000):
        sql = generate(number)
        if not _TIES.search(sql) and not _NOT_USED.search(sql):
            yield sql


def _plain_steps(ddl: Mapping[str, str], seed: int) -> "list[Step]":
    _, first, second = generated_steps.generate_steps(ddl, seed=seed)[:3]
    third = generated_steps.generate_steps(ddl, seed=seed + 1)[1]
    deletes = {
        name: [row for row in rows if row not in second.deletes[name]][:3]
        for name, rows in first.inserts.items()
    }
    return [first, second, third, Step(deletes=deletes)]


@dataclass(frozen=True)
class PipelineKind:
    """What the pipelines of a kind have.

    - ddl: the columns of the datasets.
    - query, steps: return a query, and the steps of the datasets with deletes, by seed.
    - keyed: the key and the order of datasets that may get upserts instead of changes.
    """

    ddl: Mapping[str, str]
    query: Callable[[int], str]
    steps: Callable[[int], "list[Step]"]
    keyed: Mapping[str, tuple[str, str]] = field(default_factory=dict)


KINDS: Mapping[str, PipelineKind] = {
    "plain": PipelineKind(DDL, lambda seed: Generator(seed).query(), partial(_plain_steps, DDL)),
    "typed": PipelineKind(
        TYPED_DDL,
        lambda seed: views_typed.TypedGenerator(seed).query(),
        partial(_plain_steps, TYPED_DDL),
    ),
    "events": PipelineKind(
        views_events.DDL,
        lambda seed: views_events.EventGenerator(seed).query(),
        lambda seed: views_events.steps(seed)[1:],
        {"e": ("id", "x"), "o": ("id", "k")},
    ),
}


class KeyedRows:
    """The rows of a dataset with a key and an order, and the writes of a step.

    - key: an INT column; few values occur, so that writes meet.
    - order: an INT or DOUBLE column. NULL is the oldest value, NaN the newest.
    """

    def __init__(self, key: str, order: str) -> None:
        self.key, self.order = key, order
        self._newest: dict[int, tuple[bool, Row]] = {}  # whether it is a deletion
        self._writes: list[tuple[str, list[Row]]] = []

    def write(self, drawn: Sequence[Row], chance: random.Random) -> tuple[list[Row], list[Row]]:
        """Write these rows under few keys, and delete some; return the rows that this removes and adds."""
        before = self._current()
        written = {row[self.key] % KEYS: {**row, self.key: row[self.key] % KEYS} for row in drawn}
        gone = [
            {**row, self.order: chance.choice(drawn)[self.order]}
            for row in before.values()
            if chance.random() < 0.3
        ]
        gone = [row for row in gone if row[self.order] is not None] if drawn else []
        self._writes = [("upsert", list(written.values())), ("delete", gone)]
        for operation, rows in self._writes:
            for row in rows:
                stored = self._newest.get(row[self.key])
                if stored is None or self._age(row) >= self._age(stored[1]):
                    self._newest[row[self.key]] = operation == "delete", row
        after = self._current()
        removed = [row for key, row in before.items() if after.get(key) is not row]
        return removed, [row for key, row in after.items() if before.get(key) is not row]

    def taken(self) -> list[tuple[str, list[Row]]]:
        """Return the writes of the step, once."""
        writes, self._writes = self._writes, []
        return writes

    def deleted(self, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
        """Return the writes that delete rows, newer than all others."""
        newest = {int: 10**6, float: math.nan}
        kind = next((type(row[self.order]) for row in rows if row[self.order] is not None), int)
        return [("delete", [{**row, self.order: newest[kind]} for row in rows])]

    def _current(self) -> dict[int, Row]:
        return {key: row for key, (gone, row) in self._newest.items() if not gone}

    def _age(self, row: Row) -> tuple[int, float]:
        value = row[self.order]
        return (0, 0) if value is None else (2, 0) if value != value else (1, value)


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
        return FuzzedPipeline(spark, home, seed, KINDS[kind]).run()


class FuzzedPipeline:
    """A pipeline whose views change between its runs."""

    def __init__(self, spark: "SparkSession", home: str, seed: int, kind: PipelineKind) -> None:
        self.spark, self.home, self.seed, self.ddl = spark, home, seed, kind.ddl
        self.chance = random.Random(seed)
        self.queries = _queries(kind.query, seed * 1000)
        self.steps = kind.steps(seed)
        self.keyed = {name: KeyedRows(*by) for name, by in kind.keyed.items() if self.chance.random() < 0.5}
        self.contents = TableContents(kind.ddl)
        self.views: dict[str, str] = {f"v{n}": next(self.queries) for n in range(VIEWS)}

    def run(self) -> WrongPipeline | None:
        """Run all steps, and one that deletes all rows; return the first difference."""
        for number in range(len(self.steps) + 1):
            last = number == len(self.steps)
            step = Step(deletes=self._rows().inserts) if last else self._fitted(self.steps[number])
            self.contents.apply(step)
            if number and not last:
                self._edit()
            with _place(("runner", "spark")[(self.seed + number) % 2]):
                difference = self._step(step, number)
            if difference:
                return WrongPipeline(self.seed, self.views, difference)
        return None

    def _fitted(self, step: Step) -> Step:
        """Draw writes for the keyed datasets; return the step with the rows that these change."""
        inserts, deletes = dict(step.inserts), dict(step.deletes)
        for name, rows in self.keyed.items():
            written = [*inserts.get(name, ()), *deletes.get(name, ())]
            deletes[name], inserts[name] = rows.write(written, self.chance)
        return Step(inserts, deletes)

    def _edit(self) -> None:
        """Remove a view, add one, and replace the query of another."""
        self.views.pop(self.chance.choice(list(self.views)))
        self.views[f"v{len(self.views) + 100 * self.chance.randint(1, 9)}"] = next(self.queries)
        self.views[self.chance.choice(list(self.views))] = next(self.queries)

    def _step(self, step: Step, number: int) -> str:
        """Run the pipeline; return how a view differs, or nothing."""
        pipeline = tm.Pipeline("fuzz", home=self.home, spark=self.spark)
        try:
            tables = {name: self._dataset(pipeline, name) for name in self.ddl}
            views = {
                name: pipeline.view(name, sql, group=GROUPS[int(name[1:]) % 2])
                for name, sql in self.views.items()
            }
            self._write(tables, step)
            report = pipeline.run()
            failed = {name.partition("/")[2] for name in report.failures}
            raising = self._raising()
            if failed - raising:
                failures = "; ".join(f"{name}: {why}" for name, why in report.failures.items())
                return f"run {number} fails, but plain Spark does not: {failures}"
            return self._compare({name: view for name, view in views.items() if name not in failed}, number)
        except TidemillError as error:
            return f"run {number} raises {type(error).__name__}: {error}"
        finally:
            pipeline.close()

    def _dataset(self, pipeline: tm.Pipeline, name: str) -> Any:
        if name in self.keyed:
            rows = self.keyed[name]
            return pipeline.dataset(name, self.ddl[name], key=rows.key, order_by=rows.order)
        return pipeline.dataset(name, self.ddl[name], deletes=True)

    def _write(self, tables: Mapping[str, Any], step: Step) -> None:
        for name, table in tables.items():
            if name in self.keyed:
                rows = self.keyed[name]
                writes = rows.taken() or rows.deleted(step.deletes.get(name, ()))
            else:
                writes = [("append", step.inserts.get(name)), ("delete", step.deletes.get(name))]
            for operation, changed in writes:
                if changed:
                    contents = TableContents({name: self.ddl[name]})
                    contents.apply(Step({name: changed}))
                    getattr(table, operation)(contents.frame(self.spark, name))

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

    def _raising(self) -> set[str]:
        """Return the views whose queries raise an error in plain Spark."""
        return {
            name
            for name, sql in self.views.items()
            if Judge(self.spark, self.ddl).run([Case(name, sql, sql)], [self._rows()]).raised
        }


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
