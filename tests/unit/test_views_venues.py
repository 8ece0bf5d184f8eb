"""Where a step is computed, by its estimate or as the environment says."""

import pytest

from tidemill.errors import UsageError
from tidemill.views.chain.chain import Chain
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.spark.execution import MOST_BYTES, MOST_ROWS, SETTING, InputSize, Venue, choose
from tidemill.views.trace.hash_space import ranges

PLAN = StepPlan(Chain((), ()), frozenset(), ranges(1))


@pytest.mark.rule("DBSP-41")
def test_small_steps_are_the_runners_and_large_ones_are_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    few, many, wide = (
        InputSize(1_000, 10_000),
        InputSize(MOST_ROWS + 1, 10_000),
        InputSize(10, MOST_BYTES + 1),
    )
    assert [choose(PLAN, [], size, 2).place for size in (few, many, wide)] == ["runner", "spark", "spark"]
    assert choose(PLAN, [], few, 2).seconds < choose(PLAN, [], many, 2).seconds


def test_the_environment_decides_for_all_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in Venue:
        monkeypatch.setenv(SETTING, place)
        assert choose(PLAN, [], InputSize(10**9, 0), 2).place is place
    monkeypatch.setenv(SETTING, "moon")
    with pytest.raises(UsageError, match="TIDEMILL_PLACE is 'moon'"):
        choose(PLAN, [], InputSize(1, 1), 2)
