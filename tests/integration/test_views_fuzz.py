"""`make fuzz` finds an injected fault and reduces it to a small query."""

from typing import Any

import pytest

from tests import fuzz_pipelines, fuzz_views
from tests.integration import views_oracle
from tests.integration.views_generator import DDL, Generator
from tidemill.views.circuit import render


@pytest.mark.crash  # reducing the query takes more than a minute
@pytest.mark.rule("DBSP-19")
def test_an_injected_fault_is_found_and_reduced(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: circuits run every left join as an inner join."""
    seed = next(n for n in range(1000) if " LEFT JOIN " in Generator(n).query() and _is_simple(n))
    with views_oracle.stage(spark, {}, DDL) as tables:
        assert fuzz_views.search(spark, tables, range(seed, seed + 1)) is None
        monkeypatch.setitem(render.JOINS, "left", "INNER JOIN")
        difference = fuzz_views.search(spark, tables, range(seed, seed + 1))
    assert difference is not None
    assert difference.seed == seed
    assert not difference.verdict
    assert "LEFT" in difference.smaller
    assert len(difference.smaller) <= len(difference.sql)
    (step,) = difference.steps
    assert sum(map(len, step.inserts.values())) == 1, "one row without a match is enough"
    assert f"seed {seed}" in str(difference)


@pytest.mark.crash
@pytest.mark.rule("DBSP-17", "DBSP-40")
@pytest.mark.parametrize("seed", range(len(fuzz_pipelines.KINDS)))
def test_a_pipeline_of_each_kind_equals_spark(spark: Any, seed: int) -> None:
    assert fuzz_pipelines.search(spark, seed) is None


def _is_simple(seed: int) -> bool:
    """Return whether the query is a single select whose rows show a lost row."""
    sql = Generator(seed).query()
    return sql.count("SELECT") == 1 and "WHERE" not in sql and "GROUP" not in sql and "LIMIT" not in sql
