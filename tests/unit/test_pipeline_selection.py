"""Selectors of dbt: which nodes each of them selects, and errors for those that select nothing."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.errors import BadSelection
from tidemill.pipeline.selection import PipelineNode, select
from tidemill.runner.loop_state import LoopState
from tidemill.runner.run_threads import RunThreads

INPUTS = "source orders, source orders#csv, dataset orders, dataset customers, arc clean"


@pytest.fixture
def shop(tmp_path: Path) -> tm.Pipeline:
    pipeline = tm.Pipeline("shop", home=str(tmp_path / "home"))
    pipeline.dataset("orders", "id BIGINT, cust BIGINT")
    pipeline.dataset("customers", "id BIGINT", key="id")
    pipeline.source("orders", tm.folder("in/*.json"))
    pipeline.source("orders", tm.folder("in/*.csv"), name="csv")
    pipeline.arc(reads="orders", writes=("clean_orders", "odd_orders"), name="clean")(lambda df: (df, df))
    pipeline.view("revenue", "SELECT o.id FROM clean_orders o JOIN customers c ON o.cust = c.id")
    pipeline.view("top", "SELECT id FROM revenue ORDER BY id LIMIT 3")
    pipeline.view("odd", "SELECT count(*) AS n FROM odd_orders", group="slow")
    return pipeline


@pytest.mark.parametrize(
    ("selectors", "names"),
    [
        ("revenue", "view revenue"),
        ("+revenue", f"{INPUTS}, view revenue"),
        ("1+revenue", "dataset customers, arc clean, view revenue"),
        ("clean_orders", "arc clean"),
        ("clean+1", "arc clean, view revenue, view odd"),
        ("clean+", "arc clean, view revenue, view top, view odd"),
        ("1+clean+1", "dataset orders, arc clean, view revenue, view odd"),
        ("@customers", f"{INPUTS}, view revenue, view top"),
        ("orders", "dataset orders"),
        ("source:orders", "source orders, source orders#csv"),
        ("orders#csv", "source orders#csv"),
        ("source:*", "source orders, source orders#csv"),
        ("*orders", "source orders, source orders#csv, dataset orders, arc clean"),
        ("view:o*", "view odd"),
        ("group:slow", "view odd"),
        ("revenue odd", "view revenue, view odd"),
        ("+revenue,arc:*", "arc clean"),
    ],
)
def test_each_selector_selects_its_nodes(shop: tm.Pipeline, selectors: str, names: str) -> None:
    assert ", ".join(map(str, select(shop, selectors).nodes)) == names


def test_nodes_are_left_out_and_the_rest_of_a_group_follows(shop: tm.Pipeline) -> None:
    chosen = select(shop, ("+revenue",), exclude="source:* dataset:*")
    assert chosen.nodes == (PipelineNode("arc", "clean"), PipelineNode("view", "revenue"))
    assert chosen.together == ("top",)
    assert chosen.jobs == {"arc:shop/clean", "views:shop/main"}
    assert {str(node) for node in select(shop, (), exclude="view:* arc:*").nodes} == {
        "source orders", "source orders#csv", "dataset orders", "dataset customers",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("selectors", "says", "hint"),
    [
        ("revenu", "no source, dataset, arc or view that matches 'revenu'", "did you mean revenue?"),
        ("+arc:cleen", "no arc that matches 'cleen'", "did you mean clean?"),
        ("soruce:orders", "unknown kind 'soruce'", "did you mean source:orders?"),
        ("x*", "matches 'x*'", "the names are"),
        ("@revenue+", "invalid selector", "use a name"),
        ("+", "invalid selector", "use a name"),
        ("revenue,odd", "nothing is selected", "tidemill ls --select"),
    ],
)
def test_an_unknown_name_is_an_error_with_a_suggestion(
    shop: tm.Pipeline, selectors: str, says: str, hint: str
) -> None:
    with pytest.raises(BadSelection) as error:
        select(shop, selectors)
    assert says in error.value.message
    assert hint in error.value.hint


def test_a_runner_starts_only_what_is_selected() -> None:
    state = LoopState(threads=RunThreads(1))
    assert state.may_start("arc:shop/clean")
    state.selected = frozenset({"arc:shop/clean", "arc:shop/split"})
    assert state.may_start("arc:shop/clean")
    assert state.may_start("arc:shop/split[raw_a]"), "a template selects its arcs"
    assert not state.may_start("arc:shop/other")
    state.totals.failures["arc:shop/clean"] = ["x"] * 3
    assert not state.may_start("arc:shop/clean")
