"""Generated queries about every type: after every step equal to plain Spark, on the best rung each can have.

A query that has a chain is held by its kernels, with the exchange in this process; the others by their
circuit, which is what the rung *full* computes. `make fuzz` draws more of both kinds of queries.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration import views_oracle, views_typed
from tests.integration.views_kernels import Kernels
from tests.integration.views_typed import DDL, WIDE, TypedGenerator, one_result
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.circuit.ties import depends_on_ties


class Typed:
    """Queries of some seeds, and the chain of those that have one."""

    def __init__(self, spark: Any, folder: Path, seeds: Sequence[int]) -> None:
        self.spark = spark
        self.drawn = {f"seed {n}": TypedGenerator(n).query() for n in seeds}
        with views_oracle.stage(spark, {}, DDL) as tables:
            written = {n: views_oracle.compiled(spark, tables, sql).output for n, sql in self.drawn.items()}
            self.outputs = {name: rewrite(output) for name, output in written.items()}
            self.kernels = Kernels(spark, folder, DDL, self.outputs, count=3)
        self.oracles = {name: interpret(output) for name, output in written.items()}
        for name, output in written.items():
            assert not depends_on_ties(output) or "xxhash64(" in self.oracles[name], self.drawn[name]
        self.traced = self.kernels.found.views

    def case(self, name: str, held: str | MaintainedView) -> Case:
        equality = equality_of(self.outputs[name])
        return one_result(Case(name, self.drawn[name], held, equality, self.oracles[name]))

    def held(self, name: str) -> MaintainedView:
        """What kernels hold now."""
        return MaintainedView(lambda _: self.kernels.frame(name))

    def circuits(self, names: Sequence[str]) -> list[Case]:
        return [self.case(name, interpret(self.outputs[name])) for name in names]


@pytest.mark.rule("DBSP-15", "DBSP-20", "DBSP-21")
def test_queries_about_types_are_equal_to_spark(spark: Any, tmp_path: Path) -> None:
    """Kernels go through every step; what they hold then is compared once, as is what the circuits give."""
    typed = Typed(spark, tmp_path, range(0, len(WIDE), 2))
    steps, contents = views_typed.steps(0)[1:], TableContents(DDL)
    for step in steps:
        contents.apply(step)
        typed.kernels.step(step)
    cases = [typed.case(name, typed.held(name)) for name in typed.traced]
    cases += typed.circuits([name for name in typed.drawn if name not in typed.traced])
    whole = Step({table: contents.rows(table) for table in DDL})
    with views_oracle.stage(spark, {}, DDL):
        verdict = Judge(spark, DDL).run(cases, [whole])
    assert verdict, str(verdict)
    assert verdict.compared == len(typed.drawn)
    assert verdict.raised == 0
    assert len(typed.traced) >= 3


@pytest.mark.crash
@pytest.mark.rule("DBSP-15", "DBSP-20", "DBSP-21")
@pytest.mark.parametrize("part", range(4))
def test_many_queries_about_each_type_are_equal_to_spark_after_every_step(
    spark: Any, tmp_path: Path, part: int
) -> None:
    seeds = range(part * len(WIDE), (part + 1) * len(WIDE))
    typed, steps = Typed(spark, tmp_path, seeds), views_typed.steps(part)
    cases = [typed.case(name, typed.kernels.holding(name)) for name in typed.traced]
    cases += typed.circuits(list(typed.drawn))
    with views_oracle.stage(spark, {}, DDL):
        verdict = Judge(spark, DDL).run(cases, steps)
    assert verdict, str(verdict)
    assert verdict.compared == len(steps) * len(cases)
    assert verdict.raised == 0
