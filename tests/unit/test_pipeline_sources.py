"""Declarations of several sources for one dataset, and of the columns that sources fill."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.errors import BadSource, DeclarationError
from tidemill.lots.datasets import DatasetRow
from tidemill.pipeline.plan.sources import source_context
from tidemill.sources.source import Source, SourceTarget


def pipeline(tmp_path: Path) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=str(tmp_path / "home"))
    shop.dataset("orders", "id BIGINT, _file STRING, _line BIGINT, _arrived_at TIMESTAMP")
    return shop


def test_each_source_of_a_dataset_has_a_label(tmp_path: Path) -> None:
    shop = pipeline(tmp_path)
    shop.source("orders", tm.folder("in/*.json"))
    shop.source("orders", tm.folder("in/*.csv"), name="csv")
    assert list(shop.sources) == ["orders", "orders#csv"]
    assert [decl.name for decl in shop.sources_of("orders")] == ["", "csv"]
    assert source_context(shop, shop.sources["orders#csv"]).label == "orders#csv"


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "already has a source"), ("csv", "already has a source named csv"), ("a b", "not a valid")],
)
def test_two_sources_need_different_names(tmp_path: Path, name: str, says: str) -> None:
    shop = pipeline(tmp_path)
    shop.source("orders", tm.folder("in/*.json"))
    shop.source("orders", tm.folder("in/*.csv"), name="csv")
    with pytest.raises(DeclarationError, match=says):
        shop.source("orders", tm.folder("in/*.txt"), name=name)


def test_two_sources_receive_pushed_rows_at_different_paths(tmp_path: Path) -> None:
    shop = pipeline(tmp_path)
    shop.source("orders", tm.http_push())
    shop.source("orders", tm.http_push(), name="tills")
    resolved = [decl.source.resolve(source_context(shop, decl)) for decl in shop.sources.values()]
    assert [repr(source).rpartition("/")[2].rstrip(">") for source in resolved] == ["orders", "orders-tills"]


def checked(source: Source, schema: str) -> None:
    dataset = DatasetRow(name="orders", schema=schema)
    source.check(SourceTarget(pipeline="shop", dataset=dataset, schema=schema, where="here"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"line_column": "n"}, "has no such column"),
        ({"line_column": "_file"}, "declares it as STRING"),
        ({"line_column": "_line", "multiline": True}, "a record is not one line"),
        ({"line_column": "_line", "format": "parquet"}, "a record is not one line"),
        ({"line_column": "_line", "file_column": "_line"}, "are equal"),
    ],
)
def test_columns_of_a_source_are_declared_with_their_types(options: dict[str, object], says: str) -> None:
    with pytest.raises(BadSource, match=says):
        checked(tm.folder("in/*.json", **options), "id BIGINT, _file STRING, _line BIGINT")  # type: ignore[arg-type]


def test_a_column_of_a_source_changes_the_code_of_its_tasks() -> None:
    schema = "id BIGINT, _file STRING"
    dataset = DatasetRow(name="orders", schema=schema)
    target = SourceTarget(
        pipeline="shop", dataset=dataset, schema=schema, where="here", quarantine=dataset.id
    )
    plain, with_file = (tm.folder("in/*.json", **o).spec(target) for o in ({}, {"file_column": "_file"}))
    assert plain.code != with_file.code
