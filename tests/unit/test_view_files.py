"""Views in SQL files: one view in each file, with options in comments."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.errors import DeclarationError


@pytest.fixture
def shop(tmp_path: Path) -> tm.Pipeline:
    pipeline = tm.Pipeline("shop", home=tmp_path / "home")
    pipeline.dataset("orders", "id BIGINT, amount BIGINT")
    (tmp_path / "views").mkdir()
    return pipeline


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / "views" / name
    file.write_text(text)
    return file


def test_each_file_declares_a_view_with_the_options_in_its_comments(
    shop: tm.Pipeline, tmp_path: Path
) -> None:
    write(tmp_path, "totals.sql", "SELECT sum(amount) AS total FROM orders;\n")
    write(
        tmp_path,
        "large.sql",
        "-- Orders of more than 100.\n"
        "-- tidemill: refresh = incremental\n"
        "--tidemill: group=hourly\n"
        "-- tidemill: cron = 0 * * * *\n"
        "-- tidemill: most_failures = 3\n"
        "-- tidemill: keep = P30D\n"
        "SELECT id FROM orders WHERE amount > 100\n",
    )
    (tmp_path / "views" / "notes.txt").write_text("not a view")
    assert [view.name for view in shop.views_in(tmp_path / "views")] == ["large", "totals"]

    large, totals = shop.views["large"], shop.views["totals"]
    assert (large.refresh, large.group, large.keep_s) == ("incremental", "hourly", 30 * 86400.0)
    assert (large.pace.cron, large.pace.most_failures) == ("0 * * * *", 3)
    assert str(large.line) == f"{tmp_path}/views/large.sql:1"
    assert totals.sql == "SELECT sum(amount) AS total FROM orders"
    assert (totals.refresh, totals.group) == ("auto", "main")


@pytest.mark.parametrize(
    ("comment", "message", "hint"),
    [
        ("keeep = P1D", "unknown option 'keeep'", "did you mean keep?"),
        ("colour = red", "unknown option 'colour'", "use one of: cadence"),
        ("incremental", "invalid option 'incremental'", "NAME = VALUE"),
        ("refresh = sometimes", "invalid refresh='sometimes'", "auto, incremental or full"),
        ("most_failures = many", "most_failures = many is not a whole number", "most_failures = 5"),
        ("cadence = soon", "cadence", "PT5M"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_the_file(
    shop: tm.Pipeline, tmp_path: Path, comment: str, message: str, hint: str
) -> None:
    file = write(tmp_path, "totals.sql", f"-- tidemill: {comment}\nSELECT id FROM orders\n")
    with pytest.raises(DeclarationError) as error:
        shop.views_in(tmp_path / "views")
    assert f"{file}:1: " in error.value.message
    assert message in error.value.message
    assert hint in error.value.hint


def test_an_option_that_is_set_twice_is_an_error(shop: tm.Pipeline, tmp_path: Path) -> None:
    file = write(
        tmp_path, "a.sql", "-- tidemill: keep = P1D\n-- tidemill: keep = P2D\nSELECT id FROM orders\n"
    )
    with pytest.raises(DeclarationError, match=f"{file}:2: the option keep is set twice"):
        shop.views_in(tmp_path / "views")


def test_a_folder_without_views_is_an_error(shop: tm.Pipeline, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"has no files with the ending \.sql"):
        shop.views_in(tmp_path / "views")
    with pytest.raises(DeclarationError, match="does not exist"):
        shop.views_in(tmp_path / "nowhere")


def test_a_view_that_is_declared_twice_names_the_file(shop: tm.Pipeline, tmp_path: Path) -> None:
    file = write(tmp_path, "orders.sql", "SELECT 1 AS one")
    with pytest.raises(DeclarationError, match=f"{file}:1: orders is already declared as a dataset"):
        shop.views_in(tmp_path / "views")


def test_a_file_that_is_not_text_is_an_error(shop: tm.Pipeline, tmp_path: Path) -> None:
    (tmp_path / "views" / "a.sql").write_bytes(b"SELECT \xff")
    with pytest.raises(DeclarationError, match="cannot be read"):
        shop.views_in(tmp_path / "views")
