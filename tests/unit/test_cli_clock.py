"""`tidemill clock`: shows a jump of the wall clock, accepts it, and rewinds a dataset that ran ahead."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.cli import main
from tidemill.lots import staging, wall_clock
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.staging import Interval
from tidemill.lots.states import IntervalState
from tidemill.lots.wall_clock import ClockRow
from tidemill.pipeline.pipeline_file import find
from tidemill.store import Tx

ORDERS = DatasetId("orders")
DAY_US = 86_400_000_000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(
        'import tidemill as tm\n\nshop = tm.Pipeline("shop", home="home")\n'
        'orders = shop.dataset("orders", "id BIGINT", lots="PT5M")\n'
    )
    return "shop.py:shop"


def clock(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["clock", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_jump_is_shown_and_accepted(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = clock(capsys, "-f", file)
    assert (code, shown["jump"], shown["ahead"]) == (0, "", [])
    with find(file) as pipeline:
        keys = pipeline.context.keys.lots

        def jump(tx: Tx) -> None:
            tx.set(keys.wall_clock, msgspec.msgpack.encode(ClockRow(tx.wall() - tx.now() - 7 * DAY_US)))

        pipeline.context.store.run(jump)
        pipeline.context.store.run(lambda tx: wall_clock.observe(tx, keys))
    code, shown = clock(capsys, "-f", file)
    assert (code, shown["jump"]) == (1, "the wall clock is 7 days ahead of the expected time")
    assert shown["followed_at"] < shown["wall_at"]
    assert main(["clock", "-f", file]) == 1
    assert "tidemill clock --accept" in capsys.readouterr().out
    main(["status", "-f", file])
    assert "the wall clock is 7 days ahead of the expected time; see `tidemill clock`" in (
        capsys.readouterr().out
    )
    code, shown = clock(capsys, "-f", file, "--accept")
    assert (code, shown["jump"]) == (0, "")


def test_a_dataset_that_ran_ahead_is_shown_and_rewound(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with find(file) as pipeline:
        keys = pipeline.context.keys.lots
        pipeline["orders"].append([{"id": 1}])

        def run_ahead(tx: Tx) -> str:
            current = staging.begin(tx, keys, ORDERS).lot
            future = LotId.parse(current)
            for _ in range(300):
                future = future.next()
            staging._write(tx, keys, ORDERS, future, Interval(str(future), IntervalState.OPEN))
            return str(future)

        future = pipeline.context.store.run(run_ahead)
    code, shown = clock(capsys, "-f", file)
    assert (code, [(dataset["name"], dataset["interval"]) for dataset in shown["ahead"]]) == (
        1,
        [("orders", future)],
    )
    assert main(["clock", "-f", file]) == 1
    assert "tidemill clock --rewind orders" in capsys.readouterr().out
    code, shown = clock(capsys, "-f", file, "--rewind", "orders")
    assert (code, shown["ahead"]) == (0, [])
    code, shown = clock(capsys, "-f", file, "--rewind", "nothing")
    assert (code, shown["error"]["code"]) == (1, "dataset-unknown")
