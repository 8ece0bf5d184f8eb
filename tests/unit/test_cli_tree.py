"""`tidemill ls --tree`: which table is computed from which."""

import json
from pathlib import Path

import pytest

from tidemill.cli import main

PIPELINE = """
import tidemill as tm

shop = tm.Pipeline("shop", home={home!r})
orders = shop.dataset("orders", "id BIGINT, cust BIGINT")
shop.source(orders, tm.folder("landing/*.json"))
shop.dataset("customers", "id BIGINT", key="id")

@shop.arc(reads=orders, writes="clean")
def clean(df):
    return df

shop.view("sales", "SELECT c.id FROM clean o JOIN customers c ON c.id = o.cust")
shop.view("top", lambda df: df, reads=["sales"], full=True)
"""


def test_the_tree_shows_each_table_once_below_the_tables_that_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(PIPELINE.format(home=str(tmp_path / "home")))
    assert main(["ls", "--tree", "-f", str(file)]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    names = [line.strip("│├└─ ").split("  ")[0] for line in lines]
    assert names == [
        "shop",
        "orders",
        "clean",
        "sales",
        "top",
        "orders_quarantine",
        "customers",
        "sales",
        "customers_quarantine",
    ]
    assert "see above" in lines[-1] or "see above" in lines[-2]
    (sales,) = (line for line in lines if "reads" in line)
    assert "reads clean, customers" in sales
    assert "with a source" in lines[1]
    assert main(["ls", "--tree", "--json", "-f", str(file)]) == 0
    reads = json.loads(capsys.readouterr().out)["reads"]
    assert reads["sales"] == ["clean", "customers"]
    assert reads["top"] == ["sales"]
    assert reads["orders"] == []
