"""A pipeline's file that was edited between two runs, without Spark."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.arcs.declarations import ArcSpec
from tidemill.errors import DeclarationError
from tidemill.lots import datasets
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.plan.arc_stages import DeclareArc
from tidemill.publish.parts import PartSink
from tidemill.spark.drift import effective
from tidemill.triggers import subscriptions

ORDERS, CLEAN = DatasetId("orders"), DatasetId("clean")


def stage(name: str) -> DeclareArc:
    spec = ArcSpec(pipeline="shop", name=name, reads=(ORDERS,), sinks=(PartSink(dataset=CLEAN),), code="c")
    return DeclareArc(spec=spec, where="shop.py:3")


def clean_is_there(shop: tm.Pipeline) -> None:
    """Declared, and empty."""
    declared = effective(shop.datasets["clean"].dataset)
    shop.context.store.run(lambda tx: datasets.declare(tx, shop.context.keys.lots, declared))


def test_a_renamed_arc_is_refused_before_it_makes_lots(tmp_path: Path) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders, clean = shop.dataset("orders", "id BIGINT"), shop.dataset("clean", "id BIGINT")
        orders.append([(1,)])
        site = shop.context
        clean.append([(0,)])
        with pytest.raises(
            DeclarationError, match=r"arc tidy is new, but append clean.* has already written lots to clean"
        ):
            stage("tidy").apply(site, "n")
        row = site.store.run(lambda tx: subscriptions.read(tx, site.keys.triggers, "arc:shop/tidy"))
        assert row is None


def test_an_arc_continues_its_lots_and_a_new_arc_needs_an_empty_table(tmp_path: Path) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders, clean = shop.dataset("orders", "id BIGINT"), shop.dataset("clean", "id BIGINT")
        orders.append([(1,)])
        clean_is_there(shop)
        stage("tidy").apply(shop.context, "n")
        clean.append([(0,)])
        stage("tidy").apply(shop.context, "n")
