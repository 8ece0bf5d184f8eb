"""`tidemill doctor --repair` on damaged homes: afterwards the views have the rows of their queries again."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidemill as tm
from tests.integration.test_views_scale import opened, state, steps, write
from tests.integration.test_views_upgrade import check_tables, pin_version, run
from tidemill.events import Event
from tidemill.pipeline import upgrades
from tidemill.pipeline.doctor import examine
from tidemill.pipeline.upgrades import groups_of
from tidemill.views.steps.events import StepTimed
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Iterator[tm.Pipeline]:
    with opened(tmp_path_factory.mktemp("damaged") / "shop", spark) as pipeline:
        run(pipeline, 0)
        yield pipeline


def place(shop: tm.Pipeline, key: str) -> Path:
    return Path(shop.base) / "home" / "objects" / key


def version_of(shop: tm.Pipeline, name: str) -> str:
    return next(group.version for group in groups_of(shop) if group.spec.name == name)


def head_files(shop: tm.Pipeline, name: str) -> list[str]:
    """The run files that only the head of a group lists, not its last version."""
    context = shop.context
    listed = read_version(context.objects, version_of(shop, name)).files()
    pinned = context.store.run(lambda tx: upgrades.versions.listed(tx, context.keys, shop.name, name))[-1]
    before = read_version(context.objects, pinned.version).files() if pinned.version else frozenset()
    return sorted(listed - before)


def loaded(shop: tm.Pipeline, number: int) -> dict[str, int]:
    """Write and run; return how many traces each group has loaded from all lots."""
    events: list[Event] = []
    write(shop, number)
    assert shop.run(emit=events.append).ok
    timed = [event for event in events if isinstance(event, StepTimed)]
    return {
        event.group: sum(each.loaded_traces for each in timed if each.group == event.group) for event in timed
    }


DAMAGES = ("missing-run", "wrong-byte", "missing-version", "damaged-version")


def damage(shop: tm.Pipeline, kind: str, key: str) -> None:
    if kind.endswith("version"):
        key = version_of(shop, "a")
    file = place(shop, key)
    body = file.read_bytes()
    match kind:
        case "missing-run" | "missing-version":
            file.unlink()
        case "wrong-byte":
            at = len(body) - 9
            file.write_bytes(body[:at] + bytes([255 - body[at]]) + body[at + 1 :])
        case _:
            file.write_bytes(body[:-4])


@pytest.mark.parametrize(("number", "kind"), list(enumerate(DAMAGES, 1)))
def test_the_next_step_builds_damaged_state_from_all_lots(shop: tm.Pipeline, number: int, kind: str) -> None:
    """These groups have no version to go back to."""
    key = max(read_version(shop.context.objects, version_of(shop, "a")).files())
    damage(shop, kind, key)
    if kind.endswith("version"):  # run files may be in the local cache
        write(shop, 10 * number)
        assert not shop.run().ok, "the group fails until it is repaired"
    diagnosis = examine(shop, deep=True, repair=True)
    assert {(each.kind, each.of) for each in diagnosis.findings} == {("damaged-state", "a")}
    assert diagnosis.ok
    assert loaded(shop, 10 * number + 1)["a"] > 0
    check_tables(shop)
    assert examine(shop, deep=True).findings == ()


@pytest.mark.rule("DBSP-24", "DBSP-23", "DBSP-29")
def test_a_group_goes_back_to_its_version_and_repeats_its_steps(shop: tm.Pipeline) -> None:
    pin_version(shop)
    for number in (50, 51):
        run(shop, number)
    before, files = steps(shop), head_files(shop, "a")
    assert files
    damage(shop, "missing-run", files[-1])
    diagnosis = examine(shop, repair=True)
    assert diagnosis.ok
    assert {each.of for each in diagnosis.findings} == {"a"}
    assert steps(shop) == before, "nothing is published again"
    assert loaded(shop, 52) == {"a": 0, "b": 0}, "no state is built from all lots"
    check_tables(shop)
    assert examine(shop, deep=True).findings == ()


def test_an_orphan_is_found_and_deleted(shop: tm.Pipeline) -> None:
    example = next(key for key in state(shop) if key.endswith("/version"))
    orphan = place(shop, example.rpartition("/attempt=")[0] + f"/attempt={'0' * 26}/01-000-x.runs")
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x")
    assert examine(shop).orphans == 0, "it is too young: an attempt may be about to list it"
    os.utime(orphan, (0, 0))
    assert examine(shop).orphans == 1
    assert orphan.exists()
    assert examine(shop, repair=True).orphans == 1
    assert not orphan.exists()
    assert examine(shop).orphans == 0
    check_tables(shop)


def test_a_large_backlog_becomes_several_steps(tmp_path: Path, spark: "SparkSession") -> None:
    with opened(tmp_path / "whole", spark) as whole, opened(tmp_path / "limited", spark) as limited:
        limited.step_limit = tm.Pipeline("limited", max_step_rows=70).step_limit
        for pipeline in (whole, limited):
            for number in range(3):
                write(pipeline, number)
            assert pipeline.run().ok
            check_tables(pipeline)
        assert {name: len(rows) for name, rows in steps(whole).items()} == {"a": 1, "b": 1}
        assert len(steps(limited)["a"]) >= 3
        tables = [
            {name: [each[-1] for each in rows[-1][1]] for name, rows in steps(pipeline).items()}
            for pipeline in (whole, limited)
        ]
        assert tables[0] == tables[1], "the tables have the same content digests"
