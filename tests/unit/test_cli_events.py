"""`tidemill events` and `tidemill alerts` on a pipeline in a file, without Spark."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.cli import main
from tidemill.cluster.events import NodeLost
from tidemill.obs.event_log import EventLog
from tidemill.obs.keys import ObservationKeys
from tidemill.pipeline import observing
from tidemill.pipeline.pipeline import Pipeline
from tidemill.pipeline.pipeline_file import load
from tidemill.triggers.events import RunFailed

FILE = """
import tidemill as tm
shop = tm.Pipeline("shop", home="home")
orders = shop.dataset("orders", "id BIGINT", fresh_within="PT1H")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    (tmp_path / "shop.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    with load("shop.py:shop", tmp_path) as pipeline:
        yield pipeline


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "-f", "shop.py:shop", "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_events_are_printed_in_order_and_filtered(shop: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    context = shop.context
    log = EventLog(context.store, ObservationKeys(context.place.cluster), pipeline="shop", node="n1")
    log(NodeLost(node="n2", epoch=1))
    log(RunFailed(name="arc:shop/clean", code="arc", message="no such column", backoff_s=1.0, failures=1))
    log.flush()
    code, answer = result(capsys, "events")
    assert code == 0
    assert [event["about"] for event in answer["events"]] == ["n2", "clean"]
    _, answer = result(capsys, "events", "clean", "--severity", "error", "--text", "column")
    assert [event["kind"] for event in answer["events"]] == ["RunFailed"]
    assert result(capsys, "events", "nothing")[1]["events"] == []
    assert main(["events", "-f", "shop.py:shop"]) == 0
    assert "no such column" in capsys.readouterr().out


def test_alerts_show_the_age_of_tables_and_need_hooks_to_watch(
    shop: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result(capsys, "alerts") == (0, {"tables": []})
    observing.declare_tables(shop)
    code, answer = result(capsys, "alerts")
    assert code == 0
    assert [(age["table"], age["within_s"], age["stale"]) for age in answer["tables"]] == [
        ("orders", 3600.0, False)
    ]
    assert main(["alerts", "-f", "shop.py:shop", "--watch"]) != 0
    assert "has no hooks" in capsys.readouterr().err
