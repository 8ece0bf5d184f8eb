"""The arcs of templates, derived from the declarations alone, without store and Spark."""

import pytest

import tidemill as tm
from tidemill.errors import DeclarationError
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.plan import templates
from tidemill.runner.program import ArcProgram, Program, TemplateArc, TemplateArcs
from tidemill.triggers.schedules import source


def declared() -> tm.Pipeline:
    shop = tm.Pipeline("shop", home="nowhere")
    for name in ("raw_a", "raw_b", "rates"):
        shop.dataset(name, "id BIGINT", lots="PT5M")
    shop.dataset("raw_old", "id BIGINT", version="2")

    @shop.arc(reads=["raw_*", "rates"], writes=("clean_{name}", "odd_{name}"), pace=tm.Pace(cron="@daily"))
    def clean(df, rates):  # type: ignore[no-untyped-def]
        return df, rates

    @shop.arc(reads="clean_*", writes="sum_{name}")
    def total(df):  # type: ignore[no-untyped-def]
        return df

    return shop


@pytest.mark.rule("HEAP-12")
def test_children_follow_from_names_across_templates_and_foreign_tables() -> None:
    shop = declared()
    children = templates.children_of(shop, ["raw_c", "raw_c_quarantine", "other"])
    assert list(children) == [
        "clean[raw_a]",
        "clean[raw_b]",
        "clean[raw_c]",
        "total[clean_a]",
        "total[clean_b]",
        "total[clean_c]",
    ]
    child = children["clean[raw_c]"]
    assert (child.reads, child.template) == (("raw_c", "rates"), "clean")
    assert [sink.name for sink in child.sinks] == ["clean_c", "odd_c"]
    assert not templates.foreign_tables(shop, {}, children)


def test_a_stored_template_lists_its_other_tables_and_its_schedule() -> None:
    shop = declared()
    template = templates.template_of(shop, shop.templates["clean"])
    gate = source("arc:shop/clean")
    assert (template.name, template.reads, template.writes) == ("arc:shop/clean", "raw_*", "clean_{name}")
    assert template.also == ("odd_{name}",)
    assert template.terms.sources == (DatasetId("rates"), gate)
    assert template.terms.gate == gate
    assert template.child(DatasetId("raw_a")) == "arc:shop/clean[raw_a]"


def test_two_children_never_write_one_table() -> None:
    shop = declared()
    shop.arc(reads="row_*", writes="clean_{name}", name="also")(lambda df: df)
    shop.dataset("row_a", "id BIGINT")
    with pytest.raises(DeclarationError, match=r"template also would write clean_a for row_a"):
        templates.children_of(shop)


def test_a_program_creates_a_child_once_and_none_for_foreign_names() -> None:
    created: list[str] = []

    def make(name: str) -> TemplateArc | None:
        created.append(name)
        if name.endswith("[gone]"):
            return None
        return TemplateArc(ArcProgram(spec=None, function=print, where="here"))  # type: ignore[arg-type]

    children = TemplateArcs(frozenset({"arc:shop/clean"}), make)
    program = Program(pipeline="shop", datasets={}, arcs={}, sources={}, groups={}, template_arcs=children)
    assert program.knows("arc:shop/clean[raw_a]")
    for name in ("arc:shop/clean", "arc:shop/cleaner[raw_a]", "arc:other/clean[raw_a]", "clean[raw_a"):
        assert not program.knows(name)
        assert program.arc(name) is None
    assert created == []
    first = program.arc("arc:shop/clean[raw_a]")
    assert first is not None
    assert program.arc("arc:shop/clean[raw_a]") is first
    assert program.arc("arc:shop/clean[gone]") is None
    assert created == ["arc:shop/clean[raw_a]", "arc:shop/clean[gone]"]
    assert list(program.all_arcs()) == ["arc:shop/clean[raw_a]"]
