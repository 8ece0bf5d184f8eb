"""Bad input of sources, through a real runner: it is told, and nothing is lost."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.unit.test_sources_http_poll import Web, hangs, web
from tests.workers import wait
from tidemill import crash
from tidemill.errors import NoLots
from tidemill.events import Event
from tidemill.sources.events import ColumnsDrifted, FilesLeftOut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["web"]  # a fixture
DRIFTS = ("freeze", "evolve", "rescue")


def rows(pipeline: tm.Pipeline, table: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in pipeline[table].df().collect()), key=str)


@pytest.mark.rule("LOT-35")
def test_a_file_that_is_written_anew_while_it_is_read_is_taken_as_it_is_then(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    moving = landing / "a.json"
    moving.write_text('{"id": 1}\n')
    events: list[Event] = []

    def rewrite(name: str) -> None:
        if name == "spark.write_table.before" and len(moving.read_text()) < 12:
            moving.write_text('{"id": 11}\n{"id": 12}\n')

    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT")
        shop.source(orders, tm.folder(f"{landing}/*.json", settle_s=0.0))

        @shop.arc(reads=orders, writes="copied")
        def copy(df):  # type: ignore[no-untyped-def]
            return df

        monkeypatch.setattr(crash, "point", rewrite)
        assert shop.run(emit=events.append).ok
        assert [event.paths for event in events if isinstance(event, FilesLeftOut)] == [["a.json"]]
        assert rows(shop, "orders") == rows(shop, "copied") == [(11,), (12,)]
        with pytest.raises(NoLots, match="copied has no lots from A00000000000000900"):
            shop.backfill("copied", first="A00000000000000900")


@pytest.mark.rule("LOT-34")
@pytest.mark.rule("LOT-35")
def test_files_that_drift_and_targets_that_hang_are_told_of_and_lose_nothing(
    tmp_path: Path, spark: "SparkSession", web: Web
) -> None:
    landing = tmp_path / "landing"
    events: list[Event] = []
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        for drift in DRIFTS:
            (landing / drift).mkdir(parents=True)
            (landing / drift / "a.json").write_text('{"id": 1}\n{"id": 2, "more": "m"}\n{"id": "x"}\n')
            table = shop.dataset(drift, "id BIGINT", drift=drift)  # type: ignore[arg-type]
            shop.source(table, tm.folder(f"{landing}/{drift}/*.json", settle_s=0.0))
        hung = shop.dataset("hung", "id BIGINT")
        shop.source(hung, tm.http_poll(web.url, every_s=3600, timeout_s=0.4))
        web.reply = hangs
        report = shop.run(emit=events.append)
        assert not report.ok
        assert "no response within 0.4 s" in report.failures["source:shop/hung"]
        web.says([{"id": 5}])
        wait(lambda: shop.run().ok, "the target has responded in time")
        assert rows(shop, "hung") == [(5,)]

        assert rows(shop, "freeze") == [(1,), (2,)]
        assert rows(shop, "evolve") == [(1, None), (2, "m")]
        assert rows(shop, "rescue") == sorted([(1, None), (2, '{"more":"m"}'), (None, '{"id":"x"}')], key=str)
        for drift, bad in zip(DRIFTS, (1, 1, 0), strict=True):
            assert len(rows(shop, f"{drift}_quarantine")) == bad
        drifted = {event.dataset: event for event in events if isinstance(event, ColumnsDrifted)}
        assert (drifted["freeze"].unknown, drifted["rescue"].rescued) == (1, 2)
        assert drifted["evolve"].added == ("more",)
