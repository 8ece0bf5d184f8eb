"""Where a step is executed, by its estimate or by the environment, and in how many tasks."""

from typing import Any, cast

import pytest

from tidemill.errors import UsageError
from tidemill.views.chain.chain import Chain
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.spark.execution import (
    EMPTY,
    MOST_BYTES,
    MOST_ROWS,
    SETTING,
    TASK_BYTES,
    TASK_ROWS,
    ExecutionPlace,
    InputSize,
    choose,
    tasks_for,
    worker_bytes,
)
from tidemill.views.trace.hash_space import ranges

PLAN = StepPlan(Chain((), ()), frozenset(), ranges(1))


@pytest.mark.rule("DBSP-41")
def test_the_runner_executes_small_steps_and_spark_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    small, many_rows, many_bytes = (
        InputSize(1_000, 10_000),
        InputSize(MOST_ROWS + 1, 10_000),
        InputSize(10, MOST_BYTES + 1),
    )
    places = [choose(PLAN, [], size, 2).place for size in (small, many_rows, many_bytes)]
    assert places == ["runner", "spark", "spark"]
    assert choose(PLAN, [], small, 2).seconds < choose(PLAN, [], many_rows, 2).seconds


def test_the_environment_variable_sets_the_place_and_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ExecutionPlace:
        monkeypatch.setenv(SETTING, place)
        assert choose(PLAN, [], InputSize(10**9, 0), 2).place is place
    monkeypatch.setenv(SETTING, "moon")
    with pytest.raises(UsageError, match="invalid value of TIDEMILL_PLACE: 'moon'"):
        choose(PLAN, [], InputSize(1, 1), 2)


class FakeSession:
    """A session with two cores and one setting."""

    def __init__(self, memory: str = "") -> None:
        self.conf = {"spark.executor.pyspark.memory": memory} if memory else {}
        self.sparkContext = self
        self.defaultParallelism = 2


def tasks(size: InputSize, memory: str = "") -> int:
    return tasks_for(cast(Any, FakeSession(memory)), size)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", None), ("0", None), ("512", 256 * 2**20), ("512m", 256 * 2**20), ("1G", 2**29), ("4kb", 2048)],
)
def test_a_worker_has_its_share_of_the_memory_setting(setting: str, expected: int | None) -> None:
    assert worker_bytes(setting, 2) == expected


def test_the_number_of_tasks_follows_rows_bytes_and_memory() -> None:
    assert tasks(EMPTY) == 2
    assert tasks(InputSize(5 * TASK_ROWS, 0)) == 6, "a multiple of the cores: none waits for the last task"
    assert tasks(InputSize(10, 7 * TASK_BYTES + 1)) == 8, "few rows with many bytes"
    assert tasks(InputSize(10, 2**20), "64m") == 2
    assert tasks(InputSize(10, 2**26), "64m") == 64, "each worker has 32 MiB and reads one of them"
    assert tasks(InputSize(10**12, 2**60)) == 256, "one for each slice"
    assert InputSize(1, 2) + InputSize(3, 4) == InputSize(4, 6)
