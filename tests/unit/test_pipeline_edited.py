"""A pipeline's file that was edited between two runs, without Spark."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.arcs.declarations import ArcSpec
from tidemill.errors import DeclarationError
from tidemill.lots import datasets
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.plan.stages import DeclareArc
from tidemill.pipeline.writes import spelled
from tidemill.publish.parts import PartSink
from tidemill.triggers import subscriptions

ORDERS, CLEAN = DatasetId("orders"), DatasetId("clean")


def stage(name: str) -> DeclareArc:
    spec = ArcSpec(pipeline="shop", name=name, reads=(ORDERS,), sinks=(PartSink(dataset=CLEAN),), code="c")
    return DeclareArc(spec=spec, where="shop.py:3")


def clean_is_there(shop: tm.Pipeline) -> None:
    """Declared, and empty."""
    declared = spelled(shop.datasets["clean"].dataset)
    shop.site.store.run(lambda tx: datasets.declare(tx, shop.site.keys.lots, declared))


def test_an_arc_that_was_renamed_is_told_so_instead_of_making_every_lot_in_vain(tmp_path: Path) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders, clean = shop.dataset("orders", "id BIGINT"), shop.dataset("clean", "id BIGINT")
        orders.append([(1,)])
        site = shop.site
        clean.append([(0,)])
        with pytest.raises(
            DeclarationError, match=r"arc tidy is new, and lots of clean .* made by append clean"
        ):
            stage("tidy").apply(site, "n")
        row = site.store.run(lambda tx: subscriptions.read(tx, site.keys.triggers, "arc:shop/tidy"))
        assert row is None


def test_an_arc_goes_on_with_its_own_lots_and_a_new_one_begins_where_there_are_none(tmp_path: Path) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders, clean = shop.dataset("orders", "id BIGINT"), shop.dataset("clean", "id BIGINT")
        orders.append([(1,)])
        clean_is_there(shop)
        stage("tidy").apply(shop.site, "n")
        clean.append([(0,)])
        stage("tidy").apply(shop.site, "n")
