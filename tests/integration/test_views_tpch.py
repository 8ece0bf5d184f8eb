"""TPC-H as views of one pipeline: after every step of inserts, deletes and corrections they equal Spark.

`make crash` runs all 22 queries, in two minutes of CPU. `make test` runs their circuits with Spark after
every step (`test_views_circuit`).
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tidemill as tm
from tests.integration import tpch
from tests.integration.views_oracle import SETTINGS
from tidemill.spark import queries, schema
from tidemill.views.certify.equality import difference
from tidemill.views.certify.query_results import collect_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELETING = ("orders", "lineitem")
"""Tables whose rows can be deleted; the others only replace lots."""


SOME = ("q4", "q10", "q13", "q15", "q16", "q22")
"""EXISTS and NOT EXISTS, NOT IN, scalar subqueries, groups of groups, an outer join, top-k."""


def generated(folder: Path, scale: str) -> dict[str, pa.Table]:
    """Generate all tables of a scale factor."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run([program, "parquet", "-s", scale, "-o", folder], check=True, capture_output=True)
    return {
        name: pq.read_table(folder / f"{name}.parquet").cast(schema.to_arrow(schema.parse(ddl)))
        for name, ddl in tpch.DDL.items()
    }


def share(table: pa.Table, *remainders: int) -> pa.Table:
    """Return the rows whose first column, divided by 7, has one of these remainders."""
    key = table.column(0)
    remainder = pc.subtract(key, pc.multiply(pc.divide(key, 7), 7))
    return table.filter(pc.is_in(remainder, pa.array(remainders, key.type)))


class Mirror:
    """A copy of the rows of each lot, and the results of plain Spark over them."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.lots: dict[str, dict[str, pa.Table]] = {name: {} for name in tpch.DDL}

    def results(self, names: Sequence[str]) -> dict[str, list[tuple[object, ...]]]:
        for name, ddl in tpch.DDL.items():
            path = self._folder / f"{name}.parquet"
            pq.write_table(pa.concat_tables(self.lots[name].values()), path)
            frame = self._spark.read.parquet(str(path)).to(self._spark.createDataFrame([], ddl).schema)
            frame.createOrReplaceTempView(f"mirror_{name}")
        texts = [queries.renamed(tpch.QUERIES[name], lambda table: f"mirror_{table}") for name in names]
        return dict(zip(names, results_of(self._spark, texts), strict=True))

    def drop(self) -> None:
        for name in tpch.DDL:
            self._spark.catalog.dropTempView(f"mirror_{name}")


def results_of(spark: "SparkSession", texts: list[str]) -> list[list[tuple[object, ...]]]:
    return [rows for at in range(0, len(texts), 6) for rows in collect_rows(spark, texts[at : at + 6])]


def view_rows(
    pipeline: tm.Pipeline, spark: "SparkSession", names: Sequence[str]
) -> dict[str, list[tuple[object, ...]]]:
    for name in names:
        pipeline[name].df().createOrReplaceTempView(f"actual_{name}")
    results = results_of(spark, [f"SELECT * FROM actual_{name}" for name in names])
    for name in names:
        spark.catalog.dropTempView(f"actual_{name}")
    return dict(zip(names, results, strict=True))


@pytest.fixture
def quick(spark: "SparkSession") -> Iterator[None]:
    """Use settings for small queries: generating Java code for them takes longer than running them."""
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


@pytest.mark.usefixtures("quick")
@pytest.mark.rule("DBSP-8", "DBSP-17", "DBSP-20")
@pytest.mark.parametrize(
    ("names", "scale", "refresh"),
    [
        pytest.param(SOME, "0.001", "full", id="some", marks=pytest.mark.crash),
        pytest.param(tuple(tpch.QUERIES), "0.002", "auto", id="all", marks=pytest.mark.crash),
    ],
)
def test_views_of_tpch_equal_spark_after_every_step_of_inserts_deletes_and_a_replaced_lot(
    names: tuple[str, ...], scale: str, refresh: Any, tmp_path: Path, spark: "SparkSession"
) -> None:
    tables = generated(tmp_path / "tpch", scale)
    mirror = Mirror(spark, tmp_path)
    with tm.Pipeline("tpch", home=tmp_path / "home", spark=spark) as pipeline:
        for name, ddl in tpch.DDL.items():
            pipeline.dataset(name, ddl, deletes=name in DELETING)
        for name in names:
            pipeline.view(name, tpch.QUERIES[name], refresh=refresh)

        def append(name: str, rows: pa.Table) -> str:
            table = pipeline[name]
            assert isinstance(table, tm.Dataset)
            lot = str(table.append(rows).lot)
            mirror.lots[name][lot] = rows
            return lot

        def delete(name: str, rows: pa.Table) -> None:
            table = pipeline[name]
            assert isinstance(table, tm.Dataset)
            table.delete(rows)
            deleted_keys = pc.unique(rows.column(0))
            for lot, lot_rows in mirror.lots[name].items():
                mirror.lots[name][lot] = lot_rows.filter(
                    pc.invert(pc.is_in(lot_rows.column(0), deleted_keys))
                )

        def replace(name: str, lot: str, rows: pa.Table) -> None:
            table = pipeline[name]
            assert isinstance(table, tm.Dataset)
            table.replace(lot, rows)
            mirror.lots[name][lot] = rows

        def run_and_compare() -> int:
            report = pipeline.run()
            assert report.ok, report
            expected, actual = mirror.results(names), view_rows(pipeline, spark, names)
            wrong = {
                name: str(diff)
                for name, rows in actual.items()
                if (diff := difference(expected[name], rows)) is not None
            }
            assert not wrong, wrong
            return sum(bool(rows) for rows in expected.values())

        suppliers = append("supplier", tables["supplier"])
        for name in ("region", "nation", "part", "partsupp", "customer"):
            append(name, tables[name])
        for name in ("orders", "lineitem"):
            append(name, share(tables[name], 0, 1, 2))
            append(name, share(tables[name], 3))
        assert run_and_compare() >= len(names) * 3 // 4, "most queries have rows to compare"
        for name in ("orders", "lineitem"):
            append(name, share(tables[name], 4, 5))
            delete(name, share(tables[name], 1, 3))
        run_and_compare()
        turned = pc.subtract(24, tables["supplier"].column(3)).cast(pa.int32())
        replace(
            "supplier",
            suppliers,
            share(tables["supplier"].set_column(3, "s_nationkey", turned), 0, 1, 2, 3, 4),
        )
        for name in ("orders", "lineitem"):
            delete(name, share(tables[name], 0, 4))
        run_and_compare()
    mirror.drop()
