"""Bad input through the public API: a clear error that names the line or the file, and nothing is lost."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests import shop
from tidemill.cli import lot_requests, main
from tidemill.errors import (
    AppendRefused,
    BadLotId,
    DatasetChanged,
    DeclarationError,
    ProducerConflict,
    TidemillError,
)
from tidemill.lots import layout
from tidemill.pipeline.run_report import ArcReport
from tidemill.pipeline.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The first line of this file that has this text."""
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1):
        if text in line:
            return number
    raise AssertionError(text)


def rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in table.df().collect())


# --- sources


def test_a_file_cut_in_half_loses_only_its_torn_record(tmp_path: Path, spark: "SparkSession") -> None:
    landing = tmp_path / "landing"
    shop.land(landing, "whole", 0, 4)
    shop.land(landing, "torn", 10, 4)
    torn = landing / "torn.json"
    torn.write_text(torn.read_text()[:-20])
    with shop.declare(tmp_path / "home", landing, spark) as pipeline:
        assert pipeline.run().ok
        ids = [*range(4), *range(10, 13)]
        assert [row[0] for row in shop.table(pipeline, "orders")] == ids
        (bad,) = shop.table(pipeline, "orders_quarantine")
        assert any("torn.json" in str(value) for value in bad)  # which file
        assert any('"id": 13' in str(value) for value in bad)  # the record, as it was
        held = shop.held(pipeline)
        assert held == shop.expected(range(4), range(10, 13))
        assert pipeline.run().files == 0  # taken once


# --- arcs


class Trouble:
    """An arc whose function can be made to fail for one part."""

    def __init__(self, home: Path, spark: "SparkSession", mend: Path) -> None:
        self.pipeline = pipeline = tm.Pipeline("t", home=home, spark=spark)
        self.orders = pipeline.dataset("orders", "id BIGINT, region STRING")

        @pipeline.arc(reads=self.orders, writes="split", partition_by="region")
        def split(df: "DataFrame") -> "DataFrame":
            return df

        self._notes = notes = home.parent / "notes"
        notes.touch()

        @pipeline.arc(reads="split", writes="checked", retries=0, parts=4)
        def check(df: "DataFrame") -> "DataFrame":
            regions = [row[0] for row in df.select("region").distinct().collect()]
            with notes.open("a") as lines:
                lines.write(",".join(regions) + "\n")
            if "bad" in regions and not mend.exists():
                raise ValueError("the region is bad")
            return df

    def called(self) -> list[str]:
        """The regions of each part that was made since the last time; the plan's empty table is none."""
        made = [line for line in self._notes.read_text().splitlines() if line]
        self._notes.write_text("")
        return sorted(made)


@pytest.mark.rule("LOT-11")
@pytest.mark.rule("LOT-18")
@pytest.mark.rule("LOT-1")
def test_a_part_that_always_fails_leaves_the_others_and_is_tried_again_alone(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    mend = tmp_path / "mended"
    trouble = Trouble(tmp_path / "home", spark, mend)
    with trouble.pipeline as pipeline:
        trouble.orders.append([(1, "good"), (2, "bad"), (3, "fine")])
        report = pipeline.run()
        assert not report.ok
        arcs = {arc.arc: arc for arc in report.arcs}
        assert arcs["split"].complete == 1
        assert isinstance(arcs["check"], ArcReport)
        assert arcs["check"].partial == 1
        assert "the region is bad" in next(iter(arcs["check"].errors.values()))
        (lot,) = pipeline["checked"].lots()
        assert (lot.state, pipeline["checked"].position) == ("partial", 0)
        assert "1 parts failed" in lot.note
        assert trouble.called() == ["bad", "fine", "good"]
        trouble.orders.append([(4, "good")])  # a lot that is partial does not stop later ones
        assert pipeline.run().ok
        assert rows(pipeline["checked"]) == [(4, "good")]
        assert pipeline.run().ok
        assert trouble.called() == ["good"]  # without a request it is left alone
        mend.touch()
        run_retry_command(pipeline)
        assert pipeline.run().ok
        assert trouble.called() == ["bad"]  # only what had failed
        assert rows(pipeline["checked"]) == [(1, "good"), (2, "bad"), (3, "fine"), (4, "good")]
        assert {listed.state for listed in pipeline["checked"].lots()} == {"complete"}
        shop.clean_up(pipeline)


def run_retry_command(pipeline: tm.Pipeline) -> None:
    """Run `tidemill retry` on this pipeline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lot_requests, "find", lambda _: _OpenPipeline(pipeline))
        assert main(["retry"]) == 0


class _OpenPipeline:
    """A pipeline that a command does not close."""

    def __init__(self, pipeline: tm.Pipeline) -> None:
        self.pipeline = pipeline

    def __enter__(self) -> tm.Pipeline:
        return self.pipeline

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.rule("LOT-44")
def test_an_arc_that_returns_other_columns_than_it_said_fails_its_lot_and_says_where(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("t", home=tmp_path / "home", spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT")

        @pipeline.arc(reads=orders, writes="out", schema="id BIGINT, name STRING", retries=0)  # wrong-columns
        def wrong(df: "DataFrame") -> "DataFrame":
            return df.selectExpr("CAST(id AS INT) AS id", "1 AS more")

        @pipeline.arc(reads=orders, writes=("a", "b"), schema=None, retries=0, name="pair")
        def pair(df: "DataFrame") -> "tuple[DataFrame, DataFrame]":
            return df, df

        orders.append([(1,)])
        report = pipeline.run()
        (error,) = next(arc for arc in report.arcs if arc.arc == "wrong").errors.values()
        assert f"{HERE}:{line_of('# wrong-columns')}" in error
        assert "name is missing" in error
        assert "more is not in out" in error
        assert "id is int, not bigint" in error
        assert pipeline["out"].position == 0
        assert rows(pipeline["a"]) == rows(pipeline["b"]) == [(1,)]  # others go on


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda df: None, "returned NoneType, but writes out"),
        (lambda df: (df, df), "returned DataFrame, DataFrame, but writes out"),
        (lambda df: {"other": df}, "returned the wrong tables: other"),
        (lambda df: df.selectExpr("nothing"), "failed on an empty table"),
        (lambda df: 1 / 0, "ZeroDivisionError|division by zero"),
    ],
)
def test_what_an_arc_may_not_return_is_told_at_the_plan(
    returned: Any, message: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("t", home=tmp_path / "home", spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT")
        pipeline.arc(reads=orders, writes="out", name="wrong")(returned)  # returned-line
        with pytest.raises(TidemillError, match=message) as raised:
            pipeline.plan()
        assert f"{HERE}:{line_of('# returned-line')}" in raised.value.message


# --- tables that retract


@pytest.mark.rule("LOT-41")
def test_an_arc_over_a_table_that_retracts_is_refused_at_the_plan_with_its_line(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    def refused(read: str, hint: str) -> None:
        with tm.Pipeline("t", home=tmp_path / read, spark=spark) as pipeline:
            pipeline.dataset("keyed", "id BIGINT, v STRING", key="id")
            pipeline.dataset("weighted", "id BIGINT", deletes=True)
            pipeline.dataset("plain", "id BIGINT")
            pipeline.view("seen", "SELECT count(*) AS n FROM plain")
            pipeline.arc(reads=read, writes="out", name="over")(lambda df: df)  # over-line
            with pytest.raises(DeclarationError) as raised:
                pipeline.plan()
            assert f"{HERE}:{line_of('# over-line')}" in raised.value.message
            assert read in raised.value.message
            assert hint in raised.value.hint

    refused("keyed", "declare a view")
    refused("weighted", "changes='raw'")
    refused("seen", "declare a view")


@pytest.mark.rule("LOT-41")
def test_producers_cannot_delete_from_a_table_that_is_append_only(tmp_path: Path) -> None:
    with tm.Pipeline("t", home=tmp_path / "home") as pipeline:
        plain = pipeline.dataset("plain", "id BIGINT")
        plain.append([(1,)])
        for write in (plain.delete, plain.upsert):
            with pytest.raises(AppendRefused, match="plain does not accept") as raised:
                write([(1,)])
            assert "append-only" in raised.value.hint
        assert plain.position == 1


# --- lots, producers


@pytest.mark.rule("LOT-36")
def test_a_number_of_a_producer_is_taken_once_and_for_one_content(tmp_path: Path) -> None:
    with tm.Pipeline("t", home=tmp_path / "home") as pipeline:
        plain = pipeline.dataset("plain", "id BIGINT")
        first = plain.append([(1,)], producer="p", seq=3)
        assert plain.append([{"id": 1}], producer="p", seq=3) == first
        with pytest.raises(ProducerConflict, match=r"already sent number 3 to plain.* with other rows"):
            plain.append([(2,)], producer="p", seq=3)
        with pytest.raises(ProducerConflict, match="use a number above 3"):
            plain.append([(2,)], producer="p", seq=2)
        assert plain.append([(2,)], producer="p", seq=7).position == 2  # numbers may be skipped
        assert plain.append([(2,)], producer="q", seq=7).position == 3
        for half in ({"producer": "p"}, {"seq": 1}):
            with pytest.raises(TidemillError, match="must be used together"):
                plain.append([(1,)], **half)  # type: ignore[arg-type]
        assert [row[0] for row in shop.table(pipeline, "plain")] == [1, 2, 2]


def test_a_lot_of_another_unit_is_refused_with_both_units(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    with tm.Pipeline("t", home=tmp_path / "home", spark=spark) as pipeline:
        hourly = pipeline.dataset("hourly", "id BIGINT", lots="PT1H")
        pipeline.arc(reads=hourly, writes="out", name="copy")(lambda df: df)
        pipeline.plan().apply("test")
        hourly.append([(1,)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lot_requests, "find", lambda _: _OpenPipeline(pipeline))
            for lot, message in (
                ("20230101PT5M050", "20230101PT5M050 is a PT5M lot, but out has PT1H lots"),
                ("20230101", "20230101 is a P1D lot, but out has PT1H lots"),
                ("A00000000000000001", "A00000000000000001 is an append, but out has PT1H lots"),
                ("nonsense", "invalid lot id: 'nonsense'"),
            ):
                for order in ("retry", "backfill", "replay"):
                    capsys.readouterr()
                    assert main([order, "copy", lot]) == 1, lot
                    assert message in capsys.readouterr().err
            capsys.readouterr()
            assert main(["retry", "copy", "20230101PT5M050"]) == 1
            assert "the lot that begins at the same time is 20230101PT1H004" in capsys.readouterr().err
        with pytest.raises(DeclarationError, match=rf"{HERE}:\d+: invalid lot length: 25200 s"):
            pipeline.dataset("odd", "id BIGINT", lots="PT7H")
        with pytest.raises(TidemillError, match=r"hourly, daily"):
            other(pipeline)


def other(pipeline: tm.Pipeline) -> None:
    """Two tables whose intervals are of different length cannot be read together."""
    pipeline.dataset("daily", "id BIGINT", lots="P1D")
    pipeline.arc(reads=["hourly", "daily"], writes="both", name="both")(lambda a, b: a)
    pipeline.plan()


def test_a_table_that_is_declared_again_and_differently_is_refused_with_both(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("t", home=tmp_path / "home", spark=spark) as pipeline:
        pipeline.dataset("orders", "id BIGINT").append([(1,)])
    with tm.Pipeline("t", home=tmp_path / "home", spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id STRING")
        with pytest.raises(DatasetChanged, match="orders"):
            orders.append([("x",)])
        plan = pipeline.plan()
        assert [stage["status"] for stage in plan.describe()] == ["refused"]
        (refused,) = plan.refusals()
        assert "id was bigint and cannot become string" in refused.message
        assert "tidemill backfill" in refused.hint
        with pytest.raises(DatasetChanged, match="orders"):
            pipeline.run()


# --- names

NASTY = (
    "a=b",
    "x/y",
    "with blank",
    "it's",
    'say "hi"',
    "grün Ω 表",
    "`tick`",
    "100%",
    "a.b",
    "{brace}",
    "semi;colon",
)


@pytest.mark.rule("LOT-24")
@pytest.mark.rule("LOT-23")
@pytest.mark.rule("LOT-29")
def test_names_of_tables_columns_arcs_and_views_may_be_any_text(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    columns = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in NASTY)
    with tm.Pipeline("t", home=tmp_path / "home", spark=spark) as pipeline:
        table = "or/d=e'r\"s `Ω` %"
        quoted = f"`{table.replace('`', '``')}`"
        orders = pipeline.dataset(table, columns)
        by = NASTY[0], NASTY[1], NASTY[3]

        @pipeline.arc(reads=orders, writes=("öut =/", "öther"), partition_by=by, name="cléan 'it' = \"x\"")
        def clean(df: "DataFrame") -> "tuple[DataFrame, DataFrame]":
            return df, df

        pipeline.view("sum/of = 'it'", f"SELECT * FROM {quoted}")
        values = [dict.fromkeys(NASTY, "v"), {name: f"<{name}>/=%'\"" for name in NASTY}, {NASTY[0]: None}]
        orders.append(values)
        assert pipeline.run().ok
        want = sorted((tuple(row.get(name) for name in NASTY) for row in values), key=str)
        for name in (table, "öut =/", "öther", "sum/of = 'it'"):
            frame = pipeline[name].df()
            assert frame.columns == list(NASTY)
            assert sorted((tuple(row) for row in frame.collect()), key=str) == want, name
        keys = [layout.parse_key(info.key) for info in pipeline.context.objects.list("")]
        for kind in ("data", "datasets"):
            names = {key["name"] for key in keys if key["kind"] == kind}
            assert names >= {table, "öut =/", "öther"}, kind
        assert {key["arc"] for key in keys if key["kind"] == "arcs"} == {"cléan 'it' = \"x\""}
        outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "home")]
        assert outside == []


@pytest.mark.parametrize("name", ["", "a" * 300])
def test_names_that_nothing_can_have_are_refused_with_their_line(name: str, tmp_path: Path) -> None:
    pipeline = tm.Pipeline("t", home=tmp_path / "home")
    with pytest.raises(DeclarationError, match=re.escape(HERE)):
        pipeline.dataset(name, "id BIGINT")


def test_errors_of_lot_ids_say_what_is_wrong() -> None:
    from tidemill.lots.ids import LotId

    with pytest.raises(BadLotId):
        LotId.parse("20230101PT7M000")
