"""Executors without Tidemill get its code in one archive, and run the kernels (DBSP-44)."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tidemill
from tests.servers.fixtures import _or_skip
from tests.servers.spark import SparkConnectServer, SparkStandalone
from tidemill.cli import main
from tidemill.spark.executor_code import pack
from tidemill.spark.sessions import SparkSettings
from tidemill.testing.threads import STUCK_S

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "ok": True,
    "rows": [["north", 4, "21.00"], ["south", 5, "26.25"]],
    "release": tidemill.__version__,
    "sent": [True],
}


def run(settings: SparkSettings, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.integration.bare_child", msgspec.json.encode(settings).decode()]
    command.append(str(folder))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # executors inherit it
    process = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=STUCK_S, check=False
    )
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


@pytest.mark.rule("DBSP-44")
def test_a_cluster_whose_python_has_no_tidemill_runs_the_kernels(tmp_path: Path) -> None:
    with _or_skip(lambda: SparkStandalone(1, bare=True)) as cluster:
        assert run(cluster.settings(), tmp_path) == EXPECTED


@pytest.mark.crash
@pytest.mark.rule("DBSP-44")
def test_a_spark_connect_server_whose_python_has_no_tidemill_runs_the_kernels(tmp_path: Path) -> None:
    with _or_skip(lambda: SparkConnectServer(bare=True)) as server:
        assert run(server.settings(), tmp_path) == EXPECTED


@pytest.mark.crash
@pytest.mark.rule("DBSP-44")
def test_a_cluster_may_be_started_with_the_archive(tmp_path: Path) -> None:
    archive = pack(tmp_path / "tidemill.zip")
    with _or_skip(lambda: SparkStandalone(1, bare=True)) as cluster:
        settings = cluster.settings({"spark.archives": f"{archive.path}#tidemill"})
        assert run(settings, tmp_path) == {**EXPECTED, "sent": [False]}


@pytest.mark.rule("DBSP-44")
def test_the_archive_is_imported_without_anything_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(tmp_path / "first.zip"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["release"] == tidemill.__version__
    assert {"msgspec", "cloudpickle"} <= shown["packages"].keys()
    assert main(["pack", str(tmp_path / "second.zip")]) == 0
    assert "spark.archives=" in "".join(capsys.readouterr().out.split())
    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "second.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "first.zip") as archive:
        archive.extractall(tmp_path / "files" / "tidemill")
    from tests.servers.spark import bare_python

    code = "import tidemill.views.spark.tasks, tidemill.objects.remote as r; print(tidemill.__file__)"
    (tmp_path / "bare").mkdir()
    printed = subprocess.run(
        [bare_python(tmp_path / "bare"), "-c", code],
        env={"PYTHONPATH": str(tmp_path / "files")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=STUCK_S,
    )
    assert printed.stdout.strip() == str(tmp_path / "files" / "tidemill" / "__init__.py")
