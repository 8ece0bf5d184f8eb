"""Certification without Spark: comparison of rows, equality classes and generated steps."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import UsageError
from tidemill.spark import schema
from tidemill.testing import FakeClock
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import (
    APPROX_BOUND,
    FLOAT_BOUND,
    Equality,
    FloatValue,
    difference,
    equality_of,
)
from tidemill.views.certify.table_contents import Step, TableContents
from tidemill.views.certify.table_facts import TableFacts
from tidemill.views.certify.tester import BATCH, ViewTester, batches_of
from tidemill.views.certify.view_tests import CircuitTest
from tidemill.views.circuit.operators import SparkColumn, ViewOutput
from tidemill.views.circuit.size_arguments import sized_columns
from tidemill.views.spark.step_time import reads_clock, with_step_time
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.sql.compiler import compile_query

T = {
    "t": QueryTable(
        "t", (SparkColumn("a", "int"), SparkColumn("x", "double"), SparkColumn("ts", "timestamp"))
    )
}
NAN = float("nan")
AT = 1_700_000_000_123_456


def real(value: float) -> FloatValue:
    return FloatValue.of(value)


def test_rows_are_compared_as_multisets() -> None:
    assert difference([(1,), (1,), (None,)], [(None,), (1,), (1,)]) is None
    diff = difference([(1,), (1,)], [(1,)])
    assert diff is not None
    assert diff.missing == (((1,), 1),)
    assert diff.extra == ()
    assert difference([], [(1,)]) is not None


@pytest.mark.rule("DBSP-20")
def test_exact_equality_treats_nans_and_zeros_as_equal() -> None:
    assert difference([(real(NAN), real(0.0))], [(real(-NAN), real(-0.0))]) is None
    assert difference([(real(0.1 + 0.2),)], [(real(0.3),)]) is not None


@pytest.mark.rule("DBSP-20")
def test_only_floats_are_compared_within_a_bound() -> None:
    float_class = Equality(FLOAT_BOUND)
    rows = [("a", real(0.1 + 0.2)), ("b", real(1e12)), ("c", real(NAN))]
    near = [("b", real(1e12 + 1)), ("c", real(NAN)), ("a", real(0.3))]
    assert difference(rows, near, float_class) is None
    assert difference(rows, [*near[:2], ("a", real(0.3001))], float_class) is not None
    assert difference(rows, [*near[:2], ("z", real(0.3))], float_class) is not None
    assert difference([(real(NAN),)], [(real(1.0),)], float_class) is not None
    assert difference([(real(float("inf")),)], [(real(1e308),)], float_class) is not None
    assert difference([("a", real(1.0))] * 2, [("a", real(1.0))], float_class) is not None
    nested = [(("array", real(0.1 + 0.2), None),)]
    assert difference(nested, [(("array", real(0.3), None),)], float_class) is None
    assert difference(nested, [(("array", real(0.3)),)], float_class) is not None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a, count(*) AS n, max(x) AS m FROM t GROUP BY a", Equality()),
        ("SELECT a, sum(x) AS s FROM t GROUP BY a", Equality(FLOAT_BOUND)),
        ("SELECT a, stddev(x) OVER (PARTITION BY a) AS s FROM t", Equality(FLOAT_BOUND)),
        ("SELECT approx_count_distinct(a) AS n FROM t", Equality(APPROX_BOUND)),
        ("SELECT a, rank() OVER (ORDER BY x) AS r FROM t", Equality()),
        ("SELECT a, row_number() OVER (ORDER BY x) AS r FROM t", Equality(ordered=True)),
        ("SELECT a FROM t ORDER BY x LIMIT 3", Equality(ordered=True)),
        ("SELECT collect_list(a) AS l FROM t", Equality(ordered=True)),
        ("SELECT sum(x) OVER (ORDER BY a ROWS 2 PRECEDING) AS s FROM t", Equality(FLOAT_BOUND, ordered=True)),
        ("SELECT sum(x) OVER (ORDER BY a RANGE 2 PRECEDING) AS s FROM t", Equality(FLOAT_BOUND)),
        ("SELECT sum(a) OVER (ORDER BY x RANGE 2 PRECEDING) AS s FROM t", Equality()),
        ("SELECT sum(a) AS s, try_sum(a) AS t FROM t", Equality()),
        ("SELECT avg(a) AS m FROM t", Equality(FLOAT_BOUND)),
        ("SELECT median(x) AS m FROM t", Equality(FLOAT_BOUND)),
    ],
)
@pytest.mark.rule("DBSP-20")
def test_the_circuit_decides_the_equality_class_of_a_view(sql: str, expected: Equality) -> None:
    assert equality_of(compile_query(sql, T).output) == expected


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("kind", ["DECIMAL(38,0)", "DECIMAL(38,18)", "DECIMAL(30,30)", "DECIMAL(2,0)"])
def test_generated_decimals_fit_their_type_to_the_last_digit(kind: str) -> None:
    column = schema.to_arrow(schema.parse(f"v {kind}"))
    steps = [
        step for seed in range(20) for step in generated_steps.generate_steps({"t": f"v {kind}"}, seed=seed)
    ]
    drawn = [row["v"] for step in steps for row in step.inserts.get("t", ())]
    assert pa.table({"v": drawn}, column)["v"].to_pylist() == drawn
    most = 10 ** column.field("v").type.precision - 1
    assert Decimal((0, tuple(map(int, str(most))), -column.field("v").type.scale)) in drawn


def test_a_step_that_deletes_a_missing_row_changes_nothing() -> None:
    contents = TableContents({"t": "a INT"})
    contents.apply(Step(inserts={"t": [{"a": 1}, {"a": 1}]}))
    with pytest.raises(UsageError):
        contents.apply(Step(inserts={"t": [{"a": 2}]}, deletes={"t": [{"a": 3}]}))
    contents.apply(Step(deletes={"t": [{"a": 1}]}))
    assert contents.rows("t") == [{"a": 1}]


@pytest.mark.rule("DBSP-19")
def test_generated_steps_contain_all_difficult_values() -> None:
    ddl = {
        "t": "a INT, x DOUBLE, s STRING, d DECIMAL(4,2), l ARRAY<INT>, m MAP<STRING, INT>, w STRUCT<f: INT>"
    }
    steps = generated_steps.generate_steps(ddl, rows=60, clock=True)
    contents = TableContents(ddl)
    contents_after = []
    for step in steps:
        contents.apply(step)  # raises if a deleted row does not exist
        contents_after.append(contents.rows("t"))
    assert contents_after[0] == [], "empty tables"
    rows = contents_after[1]
    assert {row["a"] for row in rows} >= {None, 0, 1}
    assert any(row["x"] != row["x"] for row in rows)
    assert len({repr(row) for row in rows}) < len(rows), "duplicates"
    assert steps[2].deletes["t"]
    assert steps[2].inserts["t"]
    assert steps[3] == Step(now=steps[3].now), "only the time changes"
    assert any(row["a"] == 2**31 - 1 for row in contents_after[4])
    assert generated_steps.generate_steps(ddl, seed=1) != generated_steps.generate_steps(ddl, seed=2)


@pytest.mark.rule("DBSP-19")
def test_generated_values_meet() -> None:
    """A session merges timestamps, a CHAR is padded, and each column of each table has a NULL."""
    ddl = {
        "t": "k INT, c CHAR(3), v VARCHAR(4), s STRING, at TIMESTAMP, n TIMESTAMP_NTZ, x DOUBLE, b BOOLEAN"
    }
    for seed in range(20):
        rows = generated_steps.generate_steps(ddl, seed=seed)[1].inserts["t"]
        assert all(any(row[name] is None for row in rows) for name in rows[0])
    rows = [
        row for seed in range(20) for row in generated_steps.generate_steps(ddl, seed=seed)[1].inserts["t"]
    ]
    drawn = {name: [row[name] for row in rows if row[name] is not None] for name in rows[0]}
    assert {len(text) for text in drawn["c"]} == {3}
    assert max(map(len, drawn["v"])) == 4
    assert "" in drawn["v"]
    assert "" in drawn["s"]
    assert max(map(len, drawn["s"])) > 100
    assert {str(value) for value in drawn["x"]} >= {"0.0", "-0.0", "nan"}
    assert {key + 1 for key in drawn["k"]} & set(drawn["k"]), "adjacent keys"
    for name in ("at", "n"):
        gaps = {later - earlier for later in drawn[name] for earlier in drawn[name]}
        assert any(dt.timedelta(0) < gap < dt.timedelta(minutes=5) for gap in gaps)


@pytest.mark.rule("DBSP-19")
def test_generated_steps_fit_how_a_table_changes() -> None:
    ddl = {"t": "k INT, x DOUBLE"}
    steps = generated_steps.generate_steps(ddl, clock=True)
    changes = TableFacts().fit(steps, "t")
    assert "-0.0" in repr(steps)
    assert "-0.0" not in repr(changes), "a dataset with deletes stores 0.0"
    assert [(step.inserts, step.deletes) for step in changes] == [
        ({"t": step.inserts.get("t", [])}, {"t": step.deletes.get("t", [])}) for step in steps
    ]
    for step in TableFacts(append_only=True).fit(steps, "t"):
        assert not step.deletes.get("t")
    contents = TableContents(ddl)
    for step in TableFacts(key=("k",)).fit(steps, "t"):
        contents.apply(step)
        keys = [row["k"] for row in contents.rows("t")]
        assert None not in keys
        assert len(keys) == len(set(keys)), "a write replaces the row with the same key"


def test_a_lot_stores_the_operations_of_a_step() -> None:
    old, new, gone = {"k": 1, "x": 1.0}, {"k": 1, "x": 2.0}, {"k": 2, "x": 3.0}
    step = Step(inserts={"t": [new]}, deletes={"t": [old, gone]})
    assert [(row["k"], row["_weight"]) for row in TableFacts().stored(step, "t")] == [
        (1, 1),
        (1, -1),
        (2, -1),
    ]
    keyed = TableFacts(key=("k",)).stored(step, "t")
    assert [(row["k"], row["_op"], row["_ordinal"]) for row in keyed] == [(2, "delete", 0), (1, "upsert", 1)]


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT lpad('x', a, '0') AS p, a + x AS s FROM t", {"a"}),
        ("SELECT RPAD(CAST(a AS STRING), 10, '0') AS p FROM t", set()),
        ("SELECT repeat('x', w) AS p FROM (SELECT a + 1 AS w, x FROM t) WHERE x > 1", {"a"}),
        ("SELECT explode(sequence(1, a)) AS n FROM t", {"a"}),
        ("SELECT explode(sequence(ts, ts + INTERVAL 1 HOUR, INTERVAL 1 MINUTE)) AS n FROM t", {"ts"}),
        ("SELECT space(n) AS s FROM (SELECT x, max(a) AS n FROM t GROUP BY x)", {"a"}),
        ("SELECT array_repeat(')', coalesce(a, 1)) AS r FROM t", {"a"}),
        ("SELECT format_number(x, a) AS f FROM t", {"a"}),
        ("SELECT transform(array(a), n -> repeat('x', n)) AS r FROM t", {"a"}),
        ("SELECT t.x FROM t JOIN t AS u ON space(t.a) = space(u.a)", {"a"}),
        ("SELECT space(w) AS s FROM (SELECT a AS w FROM t UNION ALL SELECT 1 AS w)", {"a"}),
        ("SELECT space(a) AS s FROM (SELECT DISTINCT a, x FROM t)", {"a"}),
        ("SELECT space(r) AS s FROM (SELECT x, sum(a) OVER (PARTITION BY x) AS r FROM t)", {"a"}),
        ("SELECT a + 1 AS n FROM t", set()),
    ],
)
def test_columns_that_decide_the_size_of_a_value_are_found(sql: str, columns: set[str]) -> None:
    assert sized_columns(compile_query(sql, T).output) == ({"t": columns} if columns else {})


def test_a_query_that_is_not_split_may_use_every_column_as_a_size() -> None:
    sql = "SELECT space(mine(a)) AS s FROM t"
    output = compile_query(sql, T, lambda *_: [SparkColumn("s", "string")]).output
    assert sized_columns(output) == {"t": {"a", "x", "ts"}}


@pytest.mark.rule("DBSP-19")
def test_lengths_and_counts_are_plausible() -> None:
    """Java cannot allocate a text of 2147483647 characters: the attempt would end Spark."""
    ddl = {"t": "n INT, m INT, d DECIMAL(9,0), first TIMESTAMP, day DATE"}
    sized = {"t": {"N", "d", "first", "day"}}
    for seed in range(20):
        steps = generated_steps.generate_steps(ddl, seed=seed, sized=sized)
        rows = [row for step in steps for row in step.inserts.get("t", ())]
        drawn = {name: [row[name] for row in rows if row[name] is not None] for name in rows[0]}
        assert max(drawn["n"]) == generated_steps.LARGE_SIZE
        assert min(drawn["n"]) >= -1
        assert max(drawn["d"]) < 100
        assert max(drawn["first"]) - min(drawn["first"]) <= dt.timedelta(minutes=1)
        assert max(drawn["day"]) - min(drawn["day"]) <= dt.timedelta(days=40)
        assert max(drawn["m"]) == 2**31 - 1, "other columns still have extreme values"
    assert generated_steps.generate_steps(ddl, sized={}) == generated_steps.generate_steps(ddl)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT now() AS n FROM t", f"SELECT timestamp_micros({AT}) AS n FROM t"),
        ("SELECT current_timestamp AS n", f"SELECT timestamp_micros({AT}) AS n"),
        ("SELECT CURRENT_DATE() - 1 AS n", f"SELECT CAST(timestamp_micros({AT}) AS DATE) - 1 AS n"),
        ("SELECT localtimestamp() AS n", f"SELECT CAST(timestamp_micros({AT}) AS TIMESTAMP_NTZ) AS n"),
        ("SELECT unix_timestamp() AS n", f"SELECT unix_timestamp(timestamp_micros({AT})) AS n"),
        ("SELECT DATE 'epoch' AS n", "SELECT CAST(timestamp_micros(0) AS DATE) AS n"),
        ("SELECT unix_timestamp(ts) AS n FROM t", "SELECT unix_timestamp(ts) AS n FROM t"),
        (
            "SELECT 'now()' AS s, t.now AS m FROM t -- now()",
            "SELECT 'now()' AS s, t.now AS m FROM t -- now()",
        ),
        ("SELECT `now` AS s FROM t", "SELECT `now` AS s FROM t"),
        ("SELECT current_date FROM (SELECT a AS current_date FROM t)", None),
    ],
)
def test_the_time_of_the_step_is_written_into_the_query(sql: str, expected: str | None) -> None:
    assert with_step_time(sql, AT) == (expected or sql)
    assert reads_clock(sql) == (with_step_time(sql, AT) != sql)


def test_a_column_named_like_a_clock_function_stays_a_column() -> None:
    sql = "SELECT current_date, current_date() AS d FROM t"
    assert (
        with_step_time(sql, 0, ["Current_Date"])
        == "SELECT current_date, CAST(timestamp_micros(0) AS DATE) AS d FROM t"
    )


def test_special_dates_use_the_time_of_the_step() -> None:
    day = int(dt.datetime(2024, 3, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
    assert with_step_time("SELECT DATE 'tomorrow' AS d", day + 5) == (
        f"SELECT CAST(timestamp_micros({day + 86_400_000_000}) AS DATE) AS d"
    )


@pytest.mark.rule("DBSP-19")
def test_a_batch_has_views_of_one_group() -> None:
    output = compile_query("SELECT a FROM t", T).output
    tests = [
        CircuitTest(view=f"v{n}", group=f"g{n % 2}", sql="", output=output, tables={})
        for n in range(2 * BATCH + 2)
    ]
    by_group = list(batches_of(tests))
    batches = [batch for of_group in by_group for batch in of_group]
    assert sorted(test.view for batch in batches for test in batch) == sorted(test.view for test in tests)
    assert all(len({test.group for test in batch}) == 1 for batch in batches)  # type: ignore[attr-defined]
    sizes = [[len(batch) for batch in of_group] for of_group in by_group]
    assert sizes == [[BATCH, 1], [BATCH, 1]], "the batches of a group run one after the other"


@pytest.mark.rule("DBSP-19")
def test_certified_views_of_the_group_are_computed_again_with_a_new_view() -> None:
    output = compile_query("SELECT a FROM t", T).output
    random = compile_query("SELECT rand() AS r FROM t", T).output

    def test_of(view: str, *tables: str, group: str = "g", circuit: ViewOutput = output) -> CircuitTest:
        reads = dict.fromkeys(tables, "a INT")
        return CircuitTest(view=view, group=group, sql="", output=circuit, tables=reads)

    certified = [
        test_of("shares one", "t"),
        test_of("shares two", "t", "u"),
        test_of("shares none", "w"),
        test_of("other group", "t", group="h"),
        test_of("not compared", "t", circuit=random),
    ]
    spark: Any = None
    tester = ViewTester(spark, FakeClock(), [], certified)
    tester.add_certified(test_of("of the batch before", "u"))
    beside = [test.view for test in tester.beside([test_of("new", "t", "u")])]
    assert beside == ["shares two", "shares one", "of the batch before", "shares none"], "most shared first"
    assert "shares none" not in [test.view for test in tester.beside([test_of("shares none", "w")])]
