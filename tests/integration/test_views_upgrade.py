"""The format of state changes while a pipeline runs: a shadow repeats steps, and takes over if equal."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.integration.test_views_scale import opened, state, steps, write
from tests.kill_samples import sample
from tidemill import crash
from tidemill.cli import main
from tidemill.cluster import leases
from tidemill.errors import GroupDiverged, ShadowDiffers, UsageError
from tidemill.pipeline import upgrades
from tidemill.pipeline.upgrades import format_of, groups_of, repeat, upgrade
from tidemill.store import Tx
from tidemill.views.chain import native_operators
from tidemill.views.steps import divergence, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")


def formats(pipeline: tm.Pipeline) -> dict[str, int]:
    return {group.spec.name: format_of(pipeline, group) for group in groups_of(pipeline)}


def pinned(pipeline: tm.Pipeline) -> dict[str, Any]:
    context = pipeline.context
    return {
        group: context.store.run(
            lambda tx, group=group: versions.listed(tx, context.keys, pipeline.name, group)
        )[-1]
        for group in ("a", "b")
    }


def run(pipeline: tm.Pipeline, number: int) -> None:
    write(pipeline, number)
    report = pipeline.run()
    assert report.ok, report


def left_open(pipeline: tm.Pipeline) -> list[str]:
    """The attempts that are open, and the shadows."""
    context = pipeline.context
    return context.store.run(
        lambda tx: [
            *(str(row.key) for row in tx.range(*context.keys.open.all())),
            *(str(row.key) for row in tx.range(*context.keys.shadow.all())),
        ]
    )


@pytest.mark.rule("DBSP-43", "DBSP-4", "DBSP-29")
def test_state_moves_to_another_format_and_back_while_its_steps_are_repeated(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upgrades, "LEAST_ROWS", 50)
    with opened(tmp_path / "steady", spark) as steady, opened(tmp_path / "moved", spark) as moved:
        monkeypatch.chdir(tmp_path / "moved")
        for pipeline in (steady, moved):
            run(pipeline, 0)
        assert formats(moved) == {"a": 2, "b": 2}
        assert not upgrade(moved).changed, "there is nothing to do"

        # Back to format 1: there is no version yet, so a round pins one, and the next steps are repeated.
        with monkeypatch.context() as patch:
            patch.setattr(upgrades._Shadows, "follow", following(upgrades._Shadows.follow, moved, 1))
            report = upgrade(moved, to=1, wait_s=0)
        assert report.changed
        assert {(group.steps, group.compared) for group in report.groups} == {(1, 0)}
        assert formats(moved) == {"a": 1, "b": 1}
        run(steady, 1)
        before = pinned(moved)
        assert {pin.step for pin in before.values()} == {report.step}
        for number in (2, 3):
            for pipeline in (steady, moved):
                run(pipeline, number)
        assert formats(moved) == {"a": 1, "b": 1}, "a group keeps the format of its state"
        assert steps(moved) == steps(steady)

        # Forward again, from the version that the round pinned: the steps since then are repeated.
        capsys.readouterr()
        assert main(["upgrade", "--wait", "0", "--dry-run", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert [group["steps"] for group in shown["groups"]] == [2, 2]
        assert (shown["changed"], formats(moved)) == (False, {"a": 1, "b": 1})
        assert main(["upgrade", "--wait", "0"]) == 0
        assert "format 1 -> 2; 2 steps" in " ".join(capsys.readouterr().out.split())
        assert formats(moved) == {"a": 2, "b": 2}
        assert left_open(moved) == []
        for pipeline in (steady, moved):
            run(pipeline, 4)
        assert steps(moved) == steps(steady)
        with pytest.raises(UsageError, match="format 3"):
            upgrade(moved, to=3)


def following(follow: Any, pipeline: tm.Pipeline, number: int) -> Any:
    """Let a runner compute a step while the shadows follow."""

    def run_first(shadows: upgrades._Shadows, wait_s: float) -> None:
        run(pipeline, number)
        follow(shadows, wait_s)

    return run_first


@pytest.mark.rule("DBSP-43", "DBSP-29")
def test_a_kernel_that_gives_other_rows_is_refused_and_the_old_version_keeps_serving(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrades, "LEAST_ROWS", 50)
    with opened(tmp_path / "shop", spark) as shop:
        run(shop, 0)
        with pytest.raises(UsageError, match="no format 0"):
            upgrade(shop, to=0)
        pin_version(shop)
        run(shop, 1)
        before, files = steps(shop), state(shop)
        with monkeypatch.context() as patch:
            patch.setattr(native_operators.StatefulAggregate, "step", one_too_many())
            with pytest.raises(ShadowDiffers, match="totals") as caught:
                upgrade(shop, to=1, wait_s=0)
            assert caught.value.views == ("totals",)
        assert formats(shop) == {"a": 2, "b": 2}
        assert steps(shop) == before
        assert files.keys() <= state(shop).keys(), "no file of the old version is deleted"
        assert left_open(shop) == []
        run(shop, 2)
        check_tables(shop)

        # The same difference, found when the step is repeated with the code that is in use.
        with monkeypatch.context() as patch:
            patch.setattr(native_operators.StatefulAggregate, "step", one_too_many())
            diverged = repeat(shop)
        assert {name: type(error) for name, error in diverged.items()} == {"a": GroupDiverged}
        write(shop, 3)
        report = shop.run()
        assert not report.ok
        assert steps(shop)["a"][-1][0] < steps(shop)["b"][-1][0], "only the diverged group has stopped"
        context = shop.context
        marked = context.store.run(lambda tx: divergence.all_diverged(tx, context.keys, shop.name))
        assert [row.views for row in marked.values()] == [("totals",)]
        monkeypatch.chdir(tmp_path / "shop")
        assert main(["doctor", "--json"]) == 1
        assert main(["doctor", "--repair"]) == 0
        assert shop.run().ok
        check_tables(shop)
        assert repeat(shop) == {}


POINTS = [
    f"views.{name}.{side}"
    for name in (
        "pause",
        "stop",
        "finish",
        "start",
        "shadow-begin",
        "shadow-open",
        "shadow-advance",
        "shadow-keep",
        "shadow-take-over",
        "shadow-discard",
    )
    for side in ("before", "after")
]


@pytest.mark.rule("DBSP-38")
@pytest.mark.parametrize(
    "point", [*sample(POINTS), *(pytest.param(point, marks=pytest.mark.crash) for point in POINTS)]
)
def test_an_upgrade_that_dies_is_repeated_and_every_step_is_as_without_it(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(upgrades, "LEAST_ROWS", 50)
    with opened(tmp_path / "quiet", spark) as quiet, opened(tmp_path / "killed", spark) as killed:
        for pipeline in (quiet, killed):
            run(pipeline, 0)
        pin_version(killed)
        for pipeline in (quiet, killed):
            run(pipeline, 1)
        with crash.armed(point), pytest.raises(crash.Crashed):
            upgrade(killed, to=1, wait_s=0)
        end_round_lease(killed)
        for pipeline in (quiet, killed):
            run(pipeline, 2)
        assert upgrade(killed, to=1, wait_s=0).changed or set(formats(killed).values()) == {1}
        for pipeline in (quiet, killed):
            run(pipeline, 3)
        assert formats(killed) == {"a": 1, "b": 1}
        assert steps(killed) == steps(quiet)
        assert left_open(killed) == []
        check_tables(killed)


def end_round_lease(shop: tm.Pipeline) -> None:
    """Let the lease of a dead coordinator end."""
    context = shop.context
    key = context.keys.coordinator_lease(shop.name)

    def end(tx: Tx) -> None:
        lease = leases.read(tx, key)
        if lease is not None:
            leases.release(tx, key, lease)

    context.store.run(end)


def pin_version(shop: tm.Pipeline) -> None:
    from tidemill.views.steps.coordinator import Coordinator

    Coordinator(shop.context.scope, shop.name).run_round(lambda tx: None)


def one_too_many() -> Any:
    """Return a kernel that gives one row too many."""
    right = native_operators.StatefulAggregate.step

    def step(self: Any, *args: Any, **options: Any) -> Any:
        result = right(self, *args, **options)
        pieces = list(result.out)
        return result._replace(out=[*pieces, *(piece.slice(0, 1) for piece in pieces[:1])])

    return step


def check_tables(shop: tm.Pipeline) -> None:
    """The views have the rows of their queries."""
    orders, regions = shop["orders"].df(), shop["regions"].df()
    spark = orders.sparkSession
    orders.createOrReplaceTempView("orders")
    regions.createOrReplaceTempView("regions")
    for name, sql in (
        ("totals", "SELECT region, count(*) AS n, sum(amount) AS s FROM orders GROUP BY region"),
        ("named", "SELECT o.id, r.name FROM orders o JOIN regions r ON o.region = r.region"),
    ):
        expected = sorted(map(tuple, spark.sql(sql).collect()))
        assert sorted(map(tuple, shop[name].df().collect())) == expected, name
