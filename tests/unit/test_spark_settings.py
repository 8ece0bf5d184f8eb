"""The settings of a local Spark: its heap follows the machine, unless the user chose one."""

from pathlib import Path

import pytest

from tidemill.spark import sessions
from tidemill.spark.sessions import SparkSettings

NAME = "spark.driver.memory"
GB = 1024**3


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_DRIVER_MEMORY", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


@pytest.mark.parametrize(("machine", "heap"), [(2 * GB, "1024m"), (16 * GB, "4096m"), (512 * GB, "8192m")])
def test_the_heap_is_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, machine: int, heap: str
) -> None:
    monkeypatch.setattr(sessions, "total_bytes", lambda: machine)
    assert SparkSettings().all_conf()[NAME] == heap


def test_the_user_can_choose_the_heap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert SparkSettings(conf={NAME: "3g"}).all_conf()[NAME] == "3g"
    assert NAME not in SparkSettings(master="spark://host:7077").all_conf()
    assert NAME not in SparkSettings(remote="sc://host:15002").all_conf()
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 2g\n")
    assert NAME not in SparkSettings().all_conf()
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled true\n")
    assert NAME in SparkSettings().all_conf()
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "2g")
    assert NAME not in SparkSettings().all_conf()


def test_where_spark_runs_is_shown_without_secrets() -> None:
    assert SparkSettings().where == "local[*]"
    assert SparkSettings(master="spark://host:7077").where == "spark://host:7077"
    assert SparkSettings(remote="sc://host:15002/;token=secret").where == "sc://host:15002"


def test_a_local_java_compiles_later_and_options_of_the_user_win() -> None:
    name, option = "spark.driver.extraJavaOptions", "-XX:CompileThresholdScaling=5"
    assert option in SparkSettings().all_conf()[name].split()
    assert option not in SparkSettings(master="spark://host:7077").all_conf()[name]
    chosen = SparkSettings(conf={name: "-XX:CompileThresholdScaling=1"}).all_conf()[name]
    assert chosen.endswith("-XX:CompileThresholdScaling=1"), "Java uses the last one"
