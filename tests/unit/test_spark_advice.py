"""`tidemill doctor` says what the settings of a Spark session cost, and refuses too little memory."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.pipeline.doctor import examine
from tidemill.pipeline.spark_advice import LEAST_WORKER_BYTES, MEMORY, REUSE, SOCKETS, advice, advice_for
from tidemill.spark.sessions import SparkSettings

NOTHING: dict[str, str] = {}
GOOD = {SOCKETS: "true"}


def settings_in(conf: dict[str, str], cores: int = 1, *, local: bool = False) -> dict[str, bool]:
    return {each.setting: each.refused for each in advice(conf.get, cores, local=local)}


@pytest.mark.rule("DBSP-44")
def test_a_memory_limit_below_what_workers_map_is_refused() -> None:
    assert settings_in({**GOOD, MEMORY: "1g"}) == {MEMORY: True}
    assert settings_in({**GOOD, MEMORY: "4g"}, 4) == {MEMORY: True}, "the workers of an executor share it"
    assert settings_in({**GOOD, MEMORY: str(LEAST_WORKER_BYTES // 1024**2)}) == {}
    assert settings_in({**GOOD, MEMORY: "8g"}, 4) == {}
    assert settings_in({**GOOD, MEMORY: "1g"}, local=True) == {}, "a local Spark has no executors"


@pytest.mark.rule("DBSP-44")
def test_settings_that_cost_time_are_named() -> None:
    assert settings_in(GOOD) == {}
    assert settings_in({}) == {SOCKETS: False}
    assert settings_in({SOCKETS: "false", REUSE: "false"}) == {SOCKETS: False, REUSE: False}
    assert all(each.hint and each.setting in each.message for each in advice(NOTHING.get, 1, local=False))


def test_doctor_reads_the_settings_of_a_pipeline(tmp_path: Path) -> None:
    spark = SparkSettings(master="spark://nowhere:7077", conf={MEMORY: "512m", REUSE: "false"})
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        shop.dataset("orders", "id BIGINT")
        diagnosis = examine(shop)
        assert [(each.kind, each.key) for each in diagnosis.findings] == [("spark-setting", MEMORY)]
        assert not diagnosis.ok
        assert [each.setting for each in diagnosis.advice] == [REUSE]
    with tm.Pipeline("shop", home=tmp_path / "home", spark="sc://nowhere") as shop:
        assert advice_for(shop.context) == []
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        assert advice_for(shop.context) == []
