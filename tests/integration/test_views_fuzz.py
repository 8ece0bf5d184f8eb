"""`make fuzz` finds a fault that was planted, and says the least that shows it."""

from typing import Any

import pytest

from tests import fuzz_views
from tests.integration import views_oracle
from tests.integration.views_generator import DDL, Generator
from tidemill.views.circuit import render


@pytest.mark.crash  # a minute and more: one query after the other is made smaller
@pytest.mark.rule("DBSP-19")
def test_a_planted_fault_is_found_and_made_small(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the circuit took every left join for an inner one."""
    seed = next(n for n in range(1000) if " LEFT JOIN " in Generator(n).query() and _plain(n))
    with views_oracle.stage(spark, {}, DDL) as tables:
        assert fuzz_views.search(spark, tables, range(seed, seed + 1)) is None
        monkeypatch.setitem(render.JOINS, "left", "INNER JOIN")
        found = fuzz_views.search(spark, tables, range(seed, seed + 1))
    assert found is not None
    assert found.seed == seed
    assert not found.verdict
    assert "LEFT" in found.smaller
    assert len(found.smaller) <= len(found.sql)
    (step,) = found.steps
    assert sum(map(len, step.inserts.values())) == 1, "one row without a partner shows it"
    assert f"seed {seed}" in str(found)


def _plain(seed: int) -> bool:
    """A select of a join and nothing else, in which a lost row can be seen."""
    sql = Generator(seed).query()
    return sql.count("SELECT") == 1 and "WHERE" not in sql and "GROUP" not in sql and "LIMIT" not in sql
