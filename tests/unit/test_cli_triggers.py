"""`tidemill triggers` on a store: list triggers with their states, retry, pause, resume, rebuild."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.leases import end_lease
from tests.scopes import scope_of
from tests.unit.lots_stage import Stage
from tidemill.cli import main
from tidemill.cluster.keys import ClusterKeys
from tidemill.futures.home import CLUSTER
from tidemill.lots.keys import LotKeys
from tidemill.store.sqlite import SqliteStore
from tidemill.triggers import attach, runs, templates
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.scheduler import Scheduler
from tidemill.triggers.store_heap import StoreHeap
from tidemill.triggers.subscriptions import Terms
from tidemill.triggers.templates import Template


class Scene(Stage):
    """A cluster in a file, with one trigger of each kind."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(SqliteStore(path), scan=False)
        self.url, self.capsys, self.code = f"sqlite://{path}", capsys, 0
        self.lots, self.triggers, self.cluster = LotKeys(CLUSTER), TriggerKeys(CLUSTER), ClusterKeys(CLUSTER)
        self.heap = StoreHeap(self.store, self.triggers)
        self.scheduler = Scheduler(scope_of(self.store, CLUSTER), self.heap)
        orders, rates = self.dataset("orders"), self.dataset("rates")
        self.runner = self.node("the-runner", 10**12)
        for name, terms in {
            "due": Terms(sources=(orders,)),
            "dead": Terms(sources=(orders,), most_failures=1),
            "backs off": Terms(sources=(orders,), backoff_us=10**9),
            "runs": Terms(sources=(orders,)),
            "waits": Terms(sources=(rates,)),
            "barrier": Terms(sources=(orders, rates), barrier=True),
            "graceful": Terms(sources=(orders, rates), barrier=True, grace_us=10**9),
            "noisy": Terms(sources=(orders,), debounce_us=10**8),
        }.items():
            attach.attach(self.store, self.triggers, self.lots, self.heap, name, terms)
        for name in ("waits", "barrier", "graceful", "noisy"):
            assert self.start(self.runner, name) is None
        self.publish(orders)
        self.run(templates.declare, self.triggers, Template(name="t", reads="raw_*", writes="clean_{name}"))
        self.scheduler.tick()
        for name in ("dead", "backs off"):
            ticket = self.start(self.runner, name)
            self.run(runs.fail, self.triggers, self.cluster, ticket, why="no such column: amount")
        self.start(self.runner, "runs")

    def result(self, *arguments: str) -> Any:
        self.code = main(["triggers", *arguments, "--store", self.url, "--json"])
        return json.loads(self.capsys.readouterr().out)

    def text(self, *arguments: str) -> str:
        self.code = main(["triggers", *arguments, "--store", self.url])
        return "".join(self.capsys.readouterr())

    def states(self, *arguments: str) -> dict[str, str]:
        return {trigger["name"]: trigger["state"] for trigger in self.result(*arguments)["triggers"]}


@pytest.fixture
def scene(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("COLUMNS", "200")
    return Scene(tmp_path / "store.db", capsys)


def test_each_trigger_is_listed_with_its_state_and_reason(scene: Scene) -> None:
    result = scene.result()
    triggers = {trigger["name"]: trigger for trigger in result["triggers"]}
    assert {name: trigger["state"] for name, trigger in triggers.items()} == {
        "due": "due",
        "dead": "dead",
        "backs off": "scheduled",
        "runs": "running",
        "waits": "waiting",
        "barrier": "waiting",
        "graceful": "scheduled",
        "noisy": "scheduled",
    }
    assert triggers["due"]["behind"] == {"orders@1": 1}
    assert "failed once, last: no such column" in triggers["dead"]["why"]
    assert "after failure 1: no such column" in triggers["backs off"]["why"]
    assert triggers["backs off"]["in_s"] > 100
    assert "node the-runner" in triggers["runs"]["why"]
    assert triggers["waits"]["why"] == "up to date"
    assert triggers["barrier"]["why"] == "its barrier waits for rates@1, without a time limit"
    assert "until its grace period ends" in triggers["graceful"]["why"]
    assert triggers["noisy"]["why"] == "waits until its inputs are quiet"
    assert result["overview"]["heap"] == "store"
    assert result["overview"]["lag_s"] > 0
    assert [template["reads"] for template in result["overview"]["templates"]] == ["raw_*"]


def test_a_run_whose_node_is_gone_is_not_shown_as_running(scene: Scene) -> None:
    end_lease(scene.store, scene.cluster, scene.runner.id)
    (trigger,) = scene.result("--name", "runs")["triggers"]
    assert (trigger["state"], trigger["why"]) == ("due", "1 lot to process")


def test_triggers_are_filtered_by_state_and_name(scene: Scene) -> None:
    assert scene.states("--state", "dead") == {"dead": "dead"}
    assert scene.states("--state", "due", "--state", "running") == {"due": "due", "runs": "running"}
    assert set(scene.states("--name", "d")) == {"dead", "due"}
    assert set(scene.states("--name", "b*")) == {"backs off", "barrier"}
    assert len(scene.states("--limit", "3")) == 3


def test_without_json_the_output_is_a_table(scene: Scene) -> None:
    text = scene.text()
    assert "since" in text
    assert "template t: raw_* -> clean_{name}" in text
    for word in ("dead", "backs off", "waits for rates@1", "orders@1 1", "heap: store"):
        assert word in text
    assert scene.text("--name", "nothing like it").startswith("there are no triggers")


@pytest.mark.rule("HEAP-15")
def test_retry_revives_dead_triggers(scene: Scene) -> None:
    assert scene.result("retry", "--dead") == {"retried": ["dead"], "refused": {}}
    assert scene.states("--name", "dead") == {"dead": "due"}
    assert scene.result("retry", "backs off", "nobody")["refused"] == {
        "nobody": "there is no trigger 'nobody'"
    }
    assert scene.code == 1
    assert scene.states("--name", "backs off") == {"backs off": "due"}
    assert scene.result("retry", "nobody")["error"]["code"] == "subscription-unknown"
    assert "pass at least one trigger name, or --dead" in scene.text("retry")


@pytest.mark.rule("LOT-38")
def test_pause_and_resume(scene: Scene) -> None:
    assert scene.result("pause", "due", "waits") == {"paused": ["due", "waits"], "refused": {}}
    assert scene.states("--state", "paused") == {"due": "paused", "waits": "paused"}
    assert "1 lot to process when it is resumed" in scene.text("--name", "due")
    assert scene.text("resume", "due", "--catch-up", "none").strip() == "due is resumed"
    assert scene.states("--name", "due") == {"due": "waiting"}
    assert scene.result("resume", "waits")["resumed"] == ["waits"]


@pytest.mark.rule("HEAP-17")
def test_rebuild_makes_the_runners_push_everything_again(scene: Scene) -> None:
    items = [*scene.heap.listed(0, 2**62)]
    scene.heap.remove(items)
    assert scene.result("rebuild") == {"rebuilding": True}
    assert scene.result()["overview"]["rebuilding"] is True
    scene.scheduler.tick()
    assert scene.result()["overview"]["rebuilding"] is False
    assert {"due", "dead", "runs"} <= {item.name for item in scene.heap.listed(0, 2**62)}


def test_a_missing_home_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["triggers", "--home", str(tmp_path / "none")]) == 2
    assert "is not the home of a cluster" in capsys.readouterr().err
