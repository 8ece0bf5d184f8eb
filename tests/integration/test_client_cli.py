"""`tidemill futures` and `tidemill nodes` on a real cluster (FUT-58)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import worker_tasks as tasks
from tests.integration.client_stage import client, home, look, worker
from tests.leases import LEASE_S
from tests.workers import WorkerProcess, wait
from tidemill import Client
from tidemill.cli import main
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look", "worker"]


class CommandRunner:
    """Runs commands on the cluster and returns their output."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._home = str(home)
        self._capsys = capsys
        self.code = 0

    def text(self, *arguments: str) -> str:
        self.code = main([*arguments, "--home", self._home])
        out, err = self._capsys.readouterr()
        return out + err

    def json(self, *arguments: str) -> Any:
        self.code = main([*arguments, "--home", self._home, "--json"])
        return json.loads(self._capsys.readouterr().out)


@pytest.fixture
def commands(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandRunner:
    monkeypatch.setenv("COLUMNS", "160")
    return CommandRunner(home, capsys)


@pytest.mark.rule("FUT-58")
def test_futures_are_listed_newest_first_and_filtered(client: Client, commands: CommandRunner) -> None:
    added = client.map(tasks.add, range(3))
    failed = client.submit(tasks.raises, "a reason")
    client.gather(added, timeout=STUCK_S)
    failed.exception(STUCK_S)
    listed = commands.json("futures")["futures"]
    assert [entry["id"] for entry in listed[:4]] == [
        failed.id.hex(),
        *(future.id.hex() for future in added[::-1]),
    ]
    assert {entry["name"] for entry in commands.json("futures", "--name", "worker_tasks.add")["futures"]} == {
        "tests.worker_tasks.add"
    }
    (only,) = commands.json("futures", "--state", "failed", "--name", "*raises")["futures"]
    assert only["detail"] == "LookupError: a reason"
    assert len(commands.json("futures", "--limit", "2")["futures"]) == 2
    shown = commands.text("futures", "--state", "failed")
    assert failed.id.hex()[:20] in shown
    assert "LookupError: a reason" in shown
    assert "realized" not in shown
    assert commands.text("futures", "--name", "missing").strip() == "there are no futures"


@pytest.mark.rule("FUT-58")
def test_one_future_is_shown_with_its_traceback_counts_and_lineage(
    client: Client, commands: CommandRunner
) -> None:
    first = client.submit(tasks.raises, "the cause of it", retries=1)
    last = client.submit(tasks.add, first, priority=3, queue="slow lane")
    last.exception(STUCK_S)
    shown = commands.text("futures", "show", first.id.hex()[:24])
    assert "in raises" in shown
    assert "exceptions 2" in shown
    assert "retries" in shown
    shown = commands.text("futures", "show", last.id.hex())
    assert "computed from" in shown
    assert "└── tests.worker_tasks.raises failed" in shown
    assert "caused by tests.worker_tasks.raises" in shown
    details = commands.json("futures", "show", last.id.hex())
    assert details["lineage"]["inputs"][0]["id"] == first.id.hex()
    assert details["failure"]["kind"] == "upstream"
    assert (details["priority"], details["queue"], details["state"]) == (3, "slow lane", "failed")


@pytest.mark.rule("CLU-23")
def test_the_status_of_a_running_task_is_shown(
    client: Client, commands: CommandRunner, tmp_path: Path
) -> None:
    future = client.submit(tasks.tells, str(tmp_path), "row 3 of 7")

    def listed() -> list[Any]:
        futures = commands.json("futures", "--state", "claimed", "--name", "tells")["futures"]
        return [entry for entry in futures if entry["status"]]

    wait(lambda: bool(listed()), "the status is stored")
    (entry,) = listed()
    assert (entry["id"], entry["status"], entry["detail"]) == (future.id.hex(), "row 3 of 7", "row 3 of 7")
    assert commands.json("futures", "show", future.id.hex())["status"] == "row 3 of 7"
    assert "row 3 of 7" in commands.text("futures", "show", future.id.hex())
    (tmp_path / "go").touch()
    future.result(STUCK_S)
    (entry,) = commands.json("futures", "--name", "tells")["futures"]
    assert (entry["state"], entry["status"]) == ("realized", "")


@pytest.mark.rule("FUT-58", "FUT-53")
def test_quarantined_futures_are_requeued_by_command(
    client: Client, commands: CommandRunner, tmp_path: Path
) -> None:
    poison = client.submit(tasks.kills_itself, str(tmp_path), 9)
    poison.exception(STUCK_S)
    assert poison.state == "quarantined"
    assert commands.json("futures", "requeue", "--quarantined") == {
        "requeued": [poison.id.hex()],
        "refused": {},
    }
    poison.exception(STUCK_S)
    assert poison.state == "quarantined"
    assert len(tasks.notes(tmp_path)) == 6
    fine = client.submit(tasks.add, 1)
    fine.result(STUCK_S)
    assert "only failed and quarantined futures" in commands.text("futures", "requeue", fine.id.hex())
    assert commands.code == 1
    assert "pass at least one future id, or --quarantined" in commands.text("futures", "requeue")
    assert commands.code == 2


@pytest.mark.rule("FUT-58", "FUT-56")
def test_a_future_is_cancelled_by_command(client: Client, commands: CommandRunner) -> None:
    waits = client.submit(tasks.add, 1, resources=["nowhere"], on_unsatisfiable="wait")
    assert commands.json("futures", "cancel", waits.id.hex()) == {
        "id": waits.id.hex(),
        "state": "cancelled",
        "ending": False,
    }
    assert "is cancelled" in commands.text("futures", "cancel", waits.id.hex())


def test_ids_may_be_abbreviated_if_unique(client: Client, commands: CommandRunner) -> None:
    client.gather(client.map(tasks.add, range(2)), timeout=STUCK_S)
    assert "several future ids begin with 0" in commands.text("futures", "show", "0")
    assert "no future id begins with ffff" in commands.text("futures", "show", "ffff")
    assert "invalid future id" in commands.text("futures", "cancel", "xyz")
    assert commands.code == 1


def test_nodes_are_listed_with_their_leases_and_the_leader(
    client: Client, worker: WorkerProcess, commands: CommandRunner
) -> None:
    worker.wait_for("LeaderElected")
    nodes = {entry["id"]: entry for entry in commands.json("nodes")["nodes"]}
    assert nodes[client.id]["kind"] == "client"
    node = nodes[worker.id]
    assert (node["kind"], node["state"], node["slots"], node["leader"]) == ("worker", "live", 2, True)
    assert node["total"]["cpu"] >= 1
    assert 0 < node["lease_s"] <= LEASE_S
    shown = commands.text("nodes")
    assert f"{worker.id[:12]} leader" in shown
    assert "node:" not in shown


def test_a_missing_home_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "--home", str(tmp_path / "typo")]) == 2
    assert "is not the home of a cluster" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()
    assert main(["futures"]) == 2
    assert "pass --home FOLDER, --store URL or -f FILE" in capsys.readouterr().err
