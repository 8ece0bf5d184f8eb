"""The same lots on a Spark cluster and through Spark Connect.

In `make test` a whole pipeline runs on both (`test_pipeline_runners`).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.servers.spark import SparkConnectServer, SparkStandalone
from tidemill.spark.sessions import SparkSettings
from tidemill.testing.threads import STUCK_S

pytestmark = pytest.mark.crash  # six Javas
ROOT = Path(__file__).parents[2]
EXPECTED = {
    "zone": "UTC",
    "rows": [100, 67],
    "partitions": [{"v": "0"}, {"v": "2"}],
    "sums": [[1, "0", 3366], [1, "1", 3234], [1, "2", 3300], [2, "0", 3366], [2, "2", 3300]],
    "interrupted": True,
    "named": True,
}


def run(settings: SparkSettings, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.integration.spark_child", msgspec.json.encode(settings).decode()]
    command.append(str(folder))
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    assert result.pop("version").startswith("4.")
    return result


@pytest.mark.rule("LOT-17", "LOT-24")
def test_lots_are_written_and_read_on_a_cluster(spark_standalone: SparkStandalone, tmp_path: Path) -> None:
    assert run(spark_standalone.settings(), tmp_path) == EXPECTED


@pytest.mark.rule("LOT-17", "LOT-24")
def test_lots_are_written_and_read_through_spark_connect(
    spark_connect: SparkConnectServer, tmp_path: Path
) -> None:
    assert run(spark_connect.settings(), tmp_path) == EXPECTED
