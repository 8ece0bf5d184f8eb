"""Datasets that a pipeline no longer declares: listed, dropped, and deleted with their files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill import crash
from tidemill.cli import main
from tidemill.crash import Crashed
from tidemill.errors import DatasetChanged, UsageError
from tidemill.lots import datasets, expiry, owners
from tidemill.lots.expiry import KeepPolicy
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import retention
from tidemill.pipeline.status import tables_of
from tidemill.publish.dropped_datasets import DroppedDatasets
from tidemill.store.keys import unpack
from tidemill.triggers import subscriptions
from tidemill.triggers.terms import Terms

OLD = DatasetId("old")


class Scene:
    """A pipeline that had a dataset `old`, and has only `orders` now."""

    def __init__(self, home: Path) -> None:
        with tm.Pipeline("shop", home=home) as before:
            old = before.dataset("old", "id BIGINT", keep="P300D")
            hourly = before.dataset("old_hours", "id BIGINT", lots="PT1H")
            for number in range(3):
                old.append([(number,)], producer="till", seq=number)
            old.replace(old.lots()[0].lot, [(7,)])
            hourly.append([(1,)])
            old.register_consumer("export", 1)
            retention.apply(before)
        self.shop = tm.Pipeline("shop", home=home)
        self.orders = self.shop.dataset("orders", "id BIGINT")
        self.orders.append([(1,)])
        self.context = self.shop.context
        self.keys = self.context.keys

    def retire(self, *names: str) -> None:
        """Do what a run does with datasets that are no longer declared."""
        for name in names:
            self.context.store.run(
                lambda tx, name=name: owners.retire(tx, self.keys.lots, DatasetId(name), "shop")  # type: ignore[misc]
            )

    def clean(self) -> None:
        dropped = DroppedDatasets(self.context.scope, readers_s=0)
        while dropped.remove():
            pass

    def rows(self, name: str) -> list[str]:
        """Return the kinds of rows that the store has for a dataset."""
        spaces = [space for space in vars(self.keys.lots).values() if hasattr(space, "under")]
        kinds = set()
        for space in spaces:
            for row in self.context.store.run(lambda tx, space=space: tx.range(*space.all())):  # type: ignore[misc]
                if name in space.unpack(row.key):
                    kinds.add(str(unpack(row.key)[1]))
        return sorted(kinds)

    def files(self, name: str) -> list[str]:
        return [item.key for item in self.context.objects.list() if f"/name={name}/" in item.key]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "home")
    with scene.shop:
        yield scene


def test_a_retired_dataset_is_listed_and_can_be_dropped(scene: Scene) -> None:
    assert scene.shop.retired() == {}
    scene.retire("old")
    (old,) = scene.shop.retired().values()
    assert (old.name, old.position, repr(old)) == ("old", 4, "<RetiredDataset old of shop>")
    infos = {info.name: (info.kind, info.position, info.schema) for info in tables_of(scene.shop)}
    assert infos == {"orders": ("dataset", 1, "id bigint"), "old": ("retired", 4, "id bigint")}
    assert old.drop()
    assert not old.drop()
    assert scene.shop.retired() == {}
    assert scene.files("old"), "for readers that have already started"


@pytest.mark.rule("LOT-39")
def test_the_files_and_rows_of_a_dropped_dataset_are_deleted_and_no_others(scene: Scene) -> None:
    scene.retire("old", "old_hours")
    lots = scene.keys.lots
    scene.context.store.run(lambda tx: expiry.set_keep(tx, lots, "shop", {OLD: KeepPolicy(10**12)}))
    scene.context.store.run(lambda tx: expiry.set_consumer(tx, lots, OLD, "follower", 2))
    before = scene.rows("orders"), scene.files("orders")
    DroppedDatasets(scene.context.scope, readers_s=0).remove()
    assert scene.files("old")
    for table in list(scene.shop.retired().values()):
        assert table.drop()
    assert scene.context.store.run(lambda tx: expiry.policies(tx, lots)) == {}, "nothing else expires it"
    waiting = DroppedDatasets(scene.context.scope)
    assert not waiting.remove()
    assert scene.files("old"), "its readers have a day"
    scene.clean()
    assert (scene.files("old"), scene.files("old_hours")) == ([], [])
    assert scene.rows("old") == ["dropped", "head"]
    assert scene.rows("old_hours") == ["dropped"]
    assert (scene.rows("orders"), scene.files("orders")) == before
    assert scene.context.store.run(lambda tx: datasets.dropped(tx, scene.keys.lots)) == {}
    assert [lot.rows for lot in scene.orders.lots()] == [1]


def test_a_dropped_name_and_version_cannot_be_declared_again(scene: Scene) -> None:
    scene.retire("old")
    scene.shop.retired()["old"].drop()
    for _ in range(2):
        with tm.Pipeline("shop", home=scene.context.place.home) as again:
            with pytest.raises(DatasetChanged, match="old@1 was dropped") as refused:
                again.dataset("old", "id BIGINT").append([(1,)])
            assert "version='2'" in refused.value.hint
            scene.clean()
    with tm.Pipeline("shop", home=scene.context.place.home) as again:
        assert again.dataset("old", "id BIGINT", version="2").append([(1,)]).position == 1


def test_a_dataset_that_is_declared_or_read_is_not_dropped(scene: Scene) -> None:
    store, keys = scene.context.store, scene.keys
    scene.retire("old")
    old = scene.shop.retired()["old"]
    store.run(lambda tx: owners.declare(tx, keys.lots, OLD, "other"))
    with pytest.raises(UsageError, match="pipeline other still declares old@1"):
        old.drop()
    store.run(lambda tx: owners.retire(tx, keys.lots, OLD, "other"))
    store.run(
        lambda tx: subscriptions.subscribe(
            tx, keys.triggers, keys.lots, "arc:other/clean", Terms(sources=(OLD,))
        )
    )
    with pytest.raises(UsageError, match="arc:other/clean still reads old@1"):
        old.drop()
    assert scene.shop.retired()


def test_a_dataset_that_is_declared_again_is_not_retired(scene: Scene) -> None:
    scene.retire("old")
    old = scene.shop.retired()["old"]
    with tm.Pipeline("shop", home=scene.context.place.home) as again:
        again.dataset("old", "id BIGINT").append([(9,)])
        assert again.retired() == {}
    assert not old.drop()


def test_an_earlier_version_is_named_with_its_version(scene: Scene) -> None:
    with tm.Pipeline("shop", home=scene.context.place.home) as newer:
        newer.dataset("orders", "id STRING", version="2")
        scene.retire("orders")
        assert list(newer.retired()) == ["orders@1"]
    assert list(scene.shop.retired()) == ["orders@1"]


@pytest.mark.parametrize("point", ["publish.drop-files", "publish.drop-rows", "publish.dropped"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_cleaner_that_dies_is_continued_by_the_next(scene: Scene, point: str, side: str) -> None:
    scene.retire("old")
    scene.shop.retired()["old"].drop()
    with crash.armed(f"{point}.{side}"), pytest.raises(Crashed):
        scene.clean()
    scene.clean()
    assert scene.files("old") == []
    assert scene.rows("old") == ["dropped", "head"]


def test_the_command_drops_a_table_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(
        "import tidemill as tm\n"
        "shop = tm.Pipeline('shop', home='home')\n"
        "shop.dataset('orders', 'id BIGINT')\n"
    )
    scene, file = Scene(tmp_path / "home"), f"{tmp_path / 'shop.py'}:shop"

    def run(*arguments: str) -> Any:
        code = main([*arguments, "-f", file, "--json"])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    with scene.shop:
        code, result = run("drop", "orders")
        assert (code, result["error"]["message"]) == (1, "the pipeline shop still declares orders")
        code, result = run("drop", "old")
        assert (code, result["error"]["hint"]) == (1, "its retired tables are: (none)")
        scene.retire("old")
        _, listed = run("ls")
        assert {table["name"]: table["kind"] for table in listed["tables"]} == {
            "orders": "dataset",
            "old": "retired",
        }
        assert run("drop", "old") == (0, {"dropped": "old", "kind": "dataset"})
        code, result = run("drop", "old")
        assert (code, result["error"]["code"]) == (1, "usage")
