"""Generated queries with every type: after every step they equal plain Spark, on the best rung of each.

A query with a chain runs in its kernels, with the exchange in this process. For other queries Spark runs the
circuit, as the rung *full* does. `make fuzz` generates more queries of both kinds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration import views_oracle, views_typed
from tests.integration.views_kernels import Kernels
from tests.integration.views_typed import COLUMNS, DDL, TypedGenerator, one_result
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.circuit.ties import depends_on_ties


class TypedQueries:
    """The queries of some seeds, and the kernels of those that have a chain."""

    def __init__(self, spark: Any, folder: Path, seeds: Sequence[int]) -> None:
        self.spark = spark
        self.queries = {f"seed {n}": TypedGenerator(n).query() for n in seeds}
        with views_oracle.stage(spark, {}, DDL) as tables:
            written = {n: views_oracle.compiled(spark, tables, sql).output for n, sql in self.queries.items()}
            self.outputs = {name: rewrite(output) for name, output in written.items()}
            self.kernels = Kernels(spark, folder, DDL, self.outputs, count=3)
        self.oracles = {name: interpret(output) for name, output in written.items()}
        for name, output in written.items():
            assert not depends_on_ties(output) or "xxhash64(" in self.oracles[name], self.queries[name]
        self.with_chain = self.kernels.group.views

    def case(self, name: str, actual: str | MaintainedView) -> Case:
        equality = equality_of(self.outputs[name])
        return one_result(Case(name, self.queries[name], actual, equality, self.oracles[name]))

    def maintained(self, name: str) -> MaintainedView:
        """Return the current rows of a view in the kernels."""
        return MaintainedView(lambda _: self.kernels.frame(name))

    def circuits(self, names: Sequence[str]) -> list[Case]:
        return [self.case(name, interpret(self.outputs[name])) for name in names]


@pytest.mark.rule("DBSP-15", "DBSP-20", "DBSP-21")
def test_queries_with_types_equal_spark(spark: Any, tmp_path: Path) -> None:
    """Kernels run every step, and their final rows are compared once. Other queries use circuits."""
    typed = TypedQueries(spark, tmp_path, range(0, len(COLUMNS), 4))
    steps, contents = views_typed.steps(0)[1:], TableContents(DDL)
    for step in steps:
        contents.apply(step)
        typed.kernels.step(step)
    cases = [typed.case(name, typed.maintained(name)) for name in typed.with_chain]
    cases += typed.circuits([name for name in typed.queries if name not in typed.with_chain])
    all_rows = Step({table: contents.rows(table) for table in DDL})
    with views_oracle.stage(spark, {}, DDL):
        verdict = Judge(spark, DDL).run(cases, [all_rows])
    assert verdict, str(verdict)
    assert verdict.compared == len(typed.queries)
    assert verdict.raised == 0
    assert len(typed.with_chain) >= 3


@pytest.mark.crash
@pytest.mark.rule("DBSP-15", "DBSP-20", "DBSP-21")
@pytest.mark.parametrize("part", range(4))
def test_many_queries_with_each_type_equal_spark_after_every_step(
    spark: Any, tmp_path: Path, part: int
) -> None:
    seeds = range(part * len(COLUMNS), (part + 1) * len(COLUMNS))
    typed, steps = TypedQueries(spark, tmp_path, seeds), views_typed.steps(part)
    cases = [typed.case(name, typed.kernels.maintained(name)) for name in typed.with_chain]
    cases += typed.circuits(list(typed.queries))
    with views_oracle.stage(spark, {}, DDL):
        verdict = Judge(spark, DDL).run(cases, steps)
    assert verdict, str(verdict)
    assert verdict.compared == len(steps) * len(cases)
    assert verdict.raised == 0
