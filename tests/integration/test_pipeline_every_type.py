"""Columns of every type in a pipeline: datasets, files, traces and tables, on every rung."""

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

STORABLE = {name: kind for name, kind in COLUMNS.items() if allows(kind, Role.PAYLOAD)}
TRACED = [name for name in STORABLE if name not in {"lc", "ci", "lcs", "tm", "ym", "mo", "dt", "ho"}]
ORDERED = [name for name, kind in STORABLE.items() if allows(kind, Role.ORDERED)]
DDL = {
    "plain": ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if kind != "INTERVAL"),
    "traced": ", ".join(f"{name} {COLUMNS[name]}" for name in TRACED),
    "gone": ", ".join(f"{name} {kind}" for name, kind in STORABLE.items()),
}
"""Tables without deletes, with deletes and types that traces support, with deletes and all types."""


def _list(names: list[str], text: str = "{}") -> str:
    return ", ".join(text.format(name) for name in names)


BOTH = "min({0}) AS lo_{0}, max({0}) AS hi_{0}"
EQUAL = _list([name for name in ORDERED if name in TRACED])
SQL = {
    "read": "SELECT a, try_variant_get(va, '$.a', 'int') AS v, ST_AsBinary(ge) AS g FROM plain",
    "copied": f"SELECT {_list(list(STORABLE))} FROM gone",
    "joined": f"SELECT r.a AS k, {_list(TRACED, 'l.{0}')} FROM plain l JOIN traced r ON l.a = r.a",
    "outer": f"SELECT r.a AS k, {_list(TRACED, 'l.{0}')} FROM traced l LEFT JOIN plain r ON l.a = r.a",
    "ends": f"SELECT bo, {_list(EQUAL.split(', '), BOTH)} FROM traced GROUP BY bo",
    "all_ends": f"SELECT bo, {_list(ORDERED, BOTH)} FROM gone GROUP BY bo",
    "sets": f"SELECT {EQUAL} FROM plain INTERSECT SELECT {EQUAL} FROM plain WHERE a > 0",
    "sums": "SELECT a, sum(ti) AS ti, sum(bi) AS bi, sum(big) AS big, avg(de) AS de FROM traced GROUP BY a",
    "by_map": "SELECT m, rec, count(*) AS n FROM traced GROUP BY m, rec",
}


class SteppedPipeline:
    """A pipeline that runs once for each step of the judge."""

    def __init__(self, spark: "SparkSession", home: Path) -> None:
        self.spark = spark
        self.shop = tm.Pipeline("every", home=home, spark=spark)
        self.tables = {
            table: self.shop.dataset(table, ddl, deletes=table != "plain") for table, ddl in DDL.items()
        }
        for name, sql in SQL.items():
            self.shop.view(name, sql)
        self.last: Step | None = None
        self.events: list[Event] = []

    def maintained(self, view: str) -> MaintainedView:
        def after(step: Step) -> "DataFrame":
            if step is not self.last:
                self.last = step
                self._run_step(step)
            return self.shop[view].df()

        return MaintainedView(after)

    def _run_step(self, step: Step) -> None:
        for table, ddl in DDL.items():
            for rows, write in (
                (step.inserts.get(table, ()), self.tables[table].append),
                (step.deletes.get(table, ()), self.tables[table].delete),
            ):
                if rows:
                    contents = TableContents({table: ddl})
                    contents.apply(Step({table: rows}))
                    write(contents.frame(self.spark, table))
        assert self.shop.run(emit=self.events.append).ok


@pytest.mark.crash  # nine views of up to fifty columns
@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_columns_of_every_type_are_stored_in_files_and_traces_on_every_rung(
    spark: Any, tmp_path: Path
) -> None:
    # Without code generation, as in these tests, Spark cannot read parts of a variant.
    spark.conf.set("spark.sql.variant.pushVariantIntoScan", "false")
    try:
        running = SteppedPipeline(spark, tmp_path / "home")
        _, first, second = generated_steps.generate_steps(DDL, seed=11)[:3]
        deletes = {table: rows for table, rows in second.deletes.items() if table != "plain"}
        steps = [first, Step(second.inserts, deletes)]
        cases = [Case(name, sql, running.maintained(name)) for name, sql in SQL.items()]
        verdict = Judge(spark, DDL, batch=8).run(cases, steps)
        by_kernels = {
            view for event in running.events if isinstance(event, StepTimed) for view in event.views
        }
        running.shop.close()
    finally:
        spark.conf.unset("spark.sql.variant.pushVariantIntoScan")
    assert verdict, str(verdict)
    assert verdict.compared == len(steps) * len(cases)
    assert verdict.raised == 0
    assert by_kernels == SQL.keys() - {"copied", "all_ends"}, (
        "only views with unsupported types are recomputed"
    )
