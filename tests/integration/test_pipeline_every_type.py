"""A column of every type through a whole pipeline: datasets, files, traces and tables, on every rung."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.integration.views_typed import COLUMNS, allows
from tests.type_roles import Role
from tidemill.events import Event
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify import generated_steps
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.steps.events import StepTimed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT = {name: kind for name, kind in COLUMNS.items() if allows(kind, Role.PAYLOAD)}
TRACED = [name for name in KEPT if name not in {"lc", "ci", "lcs", "tm", "ym", "mo", "dt", "ho"}]
ORDERED = [name for name, kind in KEPT.items() if allows(kind, Role.ORDERED)]
DDL = {
    "plain": ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if kind != "INTERVAL"),
    "traced": ", ".join(f"{name} {COLUMNS[name]}" for name in TRACED),
    "gone": ", ".join(f"{name} {kind}" for name, kind in KEPT.items()),
}
"""Rows that only come; rows that come and go, of types that traces have; the same of all types."""


def _listed(names: list[str], text: str = "{}") -> str:
    return ", ".join(text.format(name) for name in names)


BOTH = "min({0}) AS lo_{0}, max({0}) AS hi_{0}"
EQUAL = _listed([name for name in ORDERED if name in TRACED])
SQL = {
    "read": "SELECT a, try_variant_get(va, '$.a', 'int') AS v, ST_AsBinary(ge) AS g FROM plain",
    "copied": f"SELECT {_listed(list(KEPT))} FROM gone",
    "joined": f"SELECT r.a AS k, {_listed(TRACED, 'l.{0}')} FROM plain l JOIN traced r ON l.a = r.a",
    "outer": f"SELECT r.a AS k, {_listed(TRACED, 'l.{0}')} FROM traced l LEFT JOIN plain r ON l.a = r.a",
    "ends": f"SELECT bo, {_listed(EQUAL.split(', '), BOTH)} FROM traced GROUP BY bo",
    "all_ends": f"SELECT bo, {_listed(ORDERED, BOTH)} FROM gone GROUP BY bo",
    "sets": f"SELECT {EQUAL} FROM plain INTERSECT SELECT {EQUAL} FROM plain WHERE a > 0",
    "sums": "SELECT a, sum(ti) AS ti, sum(bi) AS bi, sum(big) AS big, avg(de) AS de FROM traced GROUP BY a",
    "by_map": "SELECT m, rec, count(*) AS n FROM traced GROUP BY m, rec",
}


class Running:
    """The pipeline, which goes a step whenever the judge does."""

    def __init__(self, spark: "SparkSession", home: Path) -> None:
        self.spark = spark
        self.shop = tm.Pipeline("every", home=home, spark=spark)
        self.tables = {
            table: self.shop.dataset(table, ddl, deletes=table != "plain") for table, ddl in DDL.items()
        }
        for name, sql in SQL.items():
            self.shop.view(name, sql)
        self.last: Step | None = None
        self.told: list[Event] = []

    def holding(self, view: str) -> MaintainedView:
        def after(step: Step) -> "DataFrame":
            if step is not self.last:
                self.last = step
                self._go(step)
            return self.shop[view].df()

        return MaintainedView(after)

    def _go(self, step: Step) -> None:
        for table, ddl in DDL.items():
            for rows, write in (
                (step.inserts.get(table, ()), self.tables[table].append),
                (step.deletes.get(table, ()), self.tables[table].delete),
            ):
                if rows:
                    given = TableContents({table: ddl})
                    given.apply(Step({table: rows}))
                    write(given.frame(self.spark, table))
        assert self.shop.run(emit=self.told.append).ok


@pytest.mark.crash  # nine views of up to fifty columns
@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_a_column_of_every_type_is_kept_in_files_and_traces_on_every_rung(spark: Any, tmp_path: Path) -> None:
    # Spark has no way to read parts of a variant without compiling, as these tests run it.
    spark.conf.set("spark.sql.variant.pushVariantIntoScan", "false")
    try:
        running = Running(spark, tmp_path / "home")
        _, first, second = generated_steps.generate_steps(DDL, seed=11)[:3]
        only = {table: rows for table, rows in second.deletes.items() if table != "plain"}
        steps = [first, Step(second.inserts, only)]
        cases = [Case(name, sql, running.holding(name)) for name, sql in SQL.items()]
        verdict = Judge(spark, DDL, batch=8).run(cases, steps)
        by_kernels = {view for one in running.told if isinstance(one, StepTimed) for view in one.views}
        running.shop.close()
    finally:
        spark.conf.unset("spark.sql.variant.pushVariantIntoScan")
    assert verdict, str(verdict)
    assert verdict.compared == len(steps) * len(cases)
    assert verdict.raised == 0
    assert by_kernels == SQL.keys() - {"copied", "all_ends"}, "only what no kernel takes is recomputed"
