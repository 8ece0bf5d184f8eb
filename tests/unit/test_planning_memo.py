"""What planning remembers: values by key, never errors, and not without limit."""

from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.spark.planning_memo import PlanningMemo, engine_of


def test_a_value_is_made_once_and_an_error_is_not_remembered() -> None:
    memo: PlanningMemo[int] = PlanningMemo()
    made: list[int] = []

    def make(value: int) -> int:
        made.append(value)
        if value < 0:
            raise ValueError(value)
        return value

    for _ in range(2):
        with pytest.raises(ValueError, match="-1"):
            memo.get("a", lambda: make(-1))
    assert memo.get("a", lambda: make(1)) == 1
    assert memo.get("a", lambda: make(2)) == 1
    assert memo.get("b", lambda: make(3), keep=lambda value: value != 3) == 3
    assert memo.get("b", lambda: make(4), keep=lambda value: value != 3) == 4
    assert made == [-1, -1, 1, 3, 4]


def test_the_values_that_were_not_used_longest_are_dropped() -> None:
    memo: PlanningMemo[str] = PlanningMemo(most=2)
    for name in ("a", "b", "a", "c"):
        memo.get(name, lambda name=name: name)  # type: ignore[misc]
    assert memo.get("a", lambda: "new") == "a"
    assert memo.get("b", lambda: "new") == "new"


def test_a_changed_setting_or_version_is_another_engine() -> None:
    def session(version: str, **settings: str) -> Any:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        return SimpleNamespace(version=version, conf=SimpleNamespace(getAll=names))

    engine = engine_of(session("4.1.0", spark_sql_ansi="true"))
    assert engine == engine_of(session("4.1.0", spark_sql_ansi="true", spark_app_id="app-1"))
    assert engine != engine_of(session("4.1.0", spark_sql_ansi="false"))
    assert engine != engine_of(session("4.1.1", spark_sql_ansi="true"))
