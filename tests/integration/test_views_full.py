"""Views by recompute and diff, on real Spark: the table is what plain Spark gives; changes sum up to it."""

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.integration.views_stage import P, ViewStage, bag, plain, summed
from tidemill import crash
from tidemill.errors import CodeDiffers, ObjectUnreadable, ViewRefused
from tidemill.lots.datasets import Kind
from tidemill.publish.cleaner import Cleaner
from tidemill.spark.operations import RowOperation
from tidemill.triggers import runs
from tidemill.views.kernels.zsets import digest, total_digest
from tidemill.views.spark import table_pieces, weighted_rows
from tidemill.views.spark.step_computer import StepComputer
from tidemill.views.steps import failed_views
from tidemill.views.steps.keys import group_id

ORDERS = "id BIGINT, cust BIGINT, amount DECIMAL(10,2)"
EVERY = (
    "i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, b BINARY, t TIMESTAMP, n TIMESTAMP_NTZ, y DATE, "
    "c DECIMAL(20,4), o BOOLEAN, a ARRAY<INT>, st STRUCT<x: INT, y: STRING>, m MAP<STRING, INT>, "
    "deep ARRAY<STRUCT<k: MAP<INT, ARRAY<DOUBLE>>>>"
)
NAN = float("nan")
WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
EVERYTHING = [
    {},
    {"i": 1, "l": 2**62, "f": NAN, "d": NAN, "s": "", "b": b""},
    {"i": 1, "l": 2**62, "f": NAN, "d": NAN, "s": "", "b": b"\x00"},
    {"f": -0.0, "d": -0.0},
    {"f": 0.0, "d": 0.0},
    {"d": float("inf"), "s": "ü \x01 '`\"", "b": b"\xff\x00\xfe"},
    {"t": WHEN, "n": WHEN.replace(tzinfo=None), "y": dt.date(1, 1, 1)},
    {"c": Decimal("-0.0001"), "o": False},
    {"c": Decimal("9999999999999999.9999"), "o": True},
    {"a": [], "m": {}},
    {"a": [None]},
    {"a": [None, None]},
    {"a": [1, None]},
    {"a": [None, 1]},
    {"st": {"x": None, "y": None}},
    {"st": {"x": None, "y": "1"}},
    {"st": {"x": 1, "y": None}},
    {"m": {"a": 1, "b": 2}},
    {"m": {"b": 2, "a": 1}},
    {"m": {"a": None}},
    {"deep": [{"k": {1: [NAN, None], 2: []}}, None]},
    {"deep": [{"k": {2: [], 1: [NAN, None]}}, None]},
    {"deep": [{"k": None}]},
]


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> ViewStage:
    return ViewStage(spark, tmp_path)


def added_up(df: DataFrame) -> Counter:
    """The sum of changes, by row."""
    return summed((plain(tuple(row[:-2])), row[-2]) for row in df.collect())


@pytest.mark.rule("DBSP-17")
def test_what_cannot_be_made_incremental_is_recomputed_and_diffed(stage: ViewStage) -> None:
    orders = stage.base("orders", ORDERS)
    customers = stage.base(
        "customers", "id BIGINT, region STRING", kind=Kind.KEYED, key=("id",), deletes=True
    )
    sql = """
        WITH ranked AS (
            SELECT c.region, o.id, o.amount,
                   rank() OVER (PARTITION BY c.region ORDER BY o.amount DESC) AS place
            FROM orders o LEFT JOIN customers c ON o.cust = c.id)
        SELECT region, count(*) AS n, sum(amount) AS total, max_by(id, amount) AS best
        FROM ranked WHERE place <= 2 GROUP BY region"""
    stage.view("best", sql, "orders", "customers")
    stage.catch_up()
    assert stage.stored_table("best") == Counter()

    def plain_spark() -> Counter:
        o = stage.dataset_frame(orders, stage.head(orders))
        c = stage.dataset_frame(customers, stage.head(customers))
        o.createOrReplaceTempView("plain_orders")
        c.createOrReplaceTempView("plain_customers")
        try:
            text = sql.replace("orders o", "plain_orders o").replace("customers c", "plain_customers c")
            return bag(stage.spark.sql(text))
        finally:
            stage.spark.catalog.dropTempView("plain_orders")
            stage.spark.catalog.dropTempView("plain_customers")

    stage.append(orders, [{"id": n, "cust": n % 3, "amount": Decimal(n)} for n in range(9)])
    stage.append(customers, [{"id": n, "region": "nord"} for n in range(2)], RowOperation.UPSERT)
    stage.catch_up()
    first = stage.group("g").step
    stage.append(customers, [{"id": 0, "region": "süd"}, {"id": 9, "region": "-"}], RowOperation.UPSERT)
    stage.append(customers, [{"id": 1}], RowOperation.DELETE)
    stage.append(orders, [{"id": 20, "cust": 0, "amount": Decimal(1)}])
    stage.catch_up()
    now = plain_spark()
    assert bag(stage.table("best")) == now
    assert added_up(stage.changes("best", 0)) == now
    assert added_up(stage.changes("best", 0, first)) != now
    untouched = stage.group("g").tables
    stage.append(customers, [{"id": 77, "region": "nobody's"}], RowOperation.UPSERT)
    stage.catch_up()
    assert stage.group("g").tables == untouched  # recomputed, and nothing changed
    assert stage.rows_of_group("g")[-1].outputs == ()


@pytest.mark.rule("DBSP-17")
def test_what_is_retracted_is_what_was_stored_and_never_computed_again(stage: ViewStage) -> None:
    """A query that gives other values each time: whatever it gave is taken back to the last row."""
    orders = stage.base("orders", ORDERS)
    stage.view("odd", "SELECT id, rand() AS r, uuid() AS u FROM orders", "orders")
    for _ in range(3):
        stage.append(orders, [{"id": 1}, {"id": 2}])
        stage.catch_up()
    assert added_up(stage.changes("odd", 0)) == bag(stage.table("odd"))
    assert sum(stage.stored_table("odd").values()) == 6


def test_rows_of_every_type_are_told_apart_as_spark_groups_them(stage: ViewStage) -> None:
    source = stage.base("source", EVERY, kind=Kind.CHANGES, deletes=True)
    stage.view("copy", "SELECT * FROM source", "source")
    stage.append(source, EVERYTHING)
    stage.append(source, EVERYTHING[:4])
    stage.catch_up()
    grouped = stage.dataset_frame(source, 2)
    there = bag(stage.table("copy"))
    assert there == bag(grouped)
    by_spark = grouped.groupBy(*grouped.columns).count()
    weights = Counter({row[:-1]: row[-1] for row in map(plain, by_spark.collect())})
    assert added_up(stage.changes("copy", 0)) == weights == there
    assert len(weights) == len(EVERYTHING) - 3  # -0.0 is 0.0, and maps have no order
    assert sum(weights.values()) == len(EVERYTHING) + 4
    stage.append(source, EVERYTHING[2:], RowOperation.DELETE)
    stage.append(source, [{"i": 7}])
    stage.catch_up()
    there = bag(stage.table("copy"))
    assert there == bag(stage.dataset_frame(source, 4))
    assert sum(there.values()) == 7
    stage.append(source, [*EVERYTHING[:4], *EVERYTHING[:2], {"i": 7}], RowOperation.DELETE)
    stage.catch_up()
    assert stage.stored_table("copy") == Counter()


def test_rows_that_share_their_hash_stay_two_rows(stage: ViewStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted_rows, "_hashable", lambda value, kind: sf.lit(1))
    source = stage.base("source", "id BIGINT, s STRING")
    stage.view("copy", "SELECT * FROM source", "source")
    stage.append(source, [{"id": 1, "s": "a"}, {"id": 2, "s": "a"}, {"id": 2, "s": "b"}])
    stage.catch_up()
    stage.append(source, [{"id": 2, "s": "a"}])
    stage.catch_up()
    assert bag(stage.table("copy")) == Counter({(1, "a"): 1, (2, "a"): 2, (2, "b"): 1})


def test_the_hash_of_a_row_leaves_nothing_out(spark: SparkSession) -> None:
    """Rows that Spark distinguishes have different hashes; rows that it considers equal have the same."""
    arrays = "array(1, NULL), array(NULL, 1), array(NULL), array(), NULL, array(1), array(1, 1)"
    structs = "struct(1 AS x, 2 AS y), struct(NULL AS x, 2 AS y), NULL, struct(2 AS x, NULL AS y)"
    maps = "map(1, 2, 3, 4), map(1, 2), map(1, NULL), map(), NULL, map(2, 1), map(3, 4, 1, 2)"
    for text, distinct in ((arrays, 7), (structs, 4), (maps, 6)):
        df = spark.sql(f"SELECT explode(array({text})) AS v, 1L AS _weight")
        schema = df.drop("_weight").schema
        hashes = {(row["_h1"], row["_h2"]) for row in weighted_rows.identified(df, schema).collect()}
        assert len(hashes) == distinct, text
        assert len({high for high, _ in hashes}) == len({low for _, low in hashes}) == distinct


def test_views_of_a_group_read_each_other_at_the_same_step(stage: ViewStage) -> None:
    orders = stage.base("orders", ORDERS)
    other = stage.base("other", "id BIGINT")
    stage.view("big", "SELECT cust, amount, uuid() AS mark FROM orders WHERE amount > 1", "orders")
    stage.view("by_cust", "SELECT cust, count(*) AS n, max(mark) AS mark FROM big GROUP BY cust", "big")
    stage.view("elsewhere", "SELECT id FROM other", "other")
    stage.append(orders, [{"id": n, "cust": n % 2, "amount": Decimal(n)} for n in range(6)])
    stage.append(other, [{"id": 1}])
    stage.catch_up()
    both = stage.table("by_cust").join(stage.table("big"), ["cust", "mark"])
    assert both.count() == 2  # the marks are those that are stored, not those of another evaluation
    stage.append(other, [{"id": 2}])
    stage.catch_up()
    assert [output.view for output in stage.rows_of_group("g")[-1].outputs] == ["elsewhere"]
    stage.append(orders, [{"id": 9, "cust": 0, "amount": Decimal(0)}])
    stage.catch_up()
    assert stage.table("by_cust").join(stage.table("big"), ["cust", "mark"]).count() == 2


def test_a_replaced_or_removed_lot_is_exchanged_and_a_position_keeps_what_it_was(stage: ViewStage) -> None:
    orders = stage.base("orders", "id BIGINT")
    stage.view("copy", "SELECT id FROM orders", "orders")
    first = stage.append(orders, [{"id": 1}, {"id": 2}])
    second = stage.append(orders, [{"id": 3}])
    stage.catch_up()
    stage.publish_lot(orders, first, 1, [{"id": 1}, {"id": 20}])
    stage.publish_lot(orders, second, 1, None)
    stage.catch_up()
    assert bag(stage.table("copy")) == Counter([(1,), (20,)])
    step = stage.group("g").step
    assert added_up(stage.changes("copy", step - 1)) == Counter({(2,): -1, (3,): -1, (20,): 1})
    assert bag(stage.dataset_frame(orders, 2)) == Counter([(1,), (2,), (3,)])
    assert bag(stage.dataset_frame(orders, 3)) == Counter([(1,), (20,), (3,)])
    assert bag(stage.dataset_frame(orders, 1)) == Counter([(1,), (2,)])
    exchange = stage.inputs.between(orders, 2, 4)
    assert [(row.lot, row.generation) for row in exchange.plus] == [(first, 1)]
    assert [(row.lot, row.generation) for row in exchange.minus] == [(first, 0), (second, 0)]
    assert [row.position for row in stage.inputs.between(orders, 0, 4).plus] == [3]
    assert stage.inputs.between(orders, 0, 4).minus == ()


def test_a_tail_that_grows_is_merged_and_nobody_sees_a_difference(
    stage: ViewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_pieces, "FAN", 3)
    orders = stage.base("orders", "id BIGINT")
    stage.view("copy", "SELECT id % 3 AS k, count(*) AS n FROM orders GROUP BY 1", "orders")
    lengths = []
    for number in range(5):
        stage.append(orders, [{"id": number}, {"id": number + 1}])
        stage.catch_up()
        table = stage.group("g").tables["copy"]
        lengths.append(len(stage.reader.load(table).parts))
        assert sum(row.n for row in stage.table("copy").collect()) == 2 * number + 2
    assert lengths == [1, 2, 1, 2, 1]
    assert added_up(stage.changes("copy", 0)) == bag(stage.table("copy"))


def test_a_view_that_is_declared_anew_is_diffed_and_other_columns_begin_anew(stage: ViewStage) -> None:
    orders = stage.base("orders", ORDERS)
    stage.append(orders, [{"id": 1, "cust": 1}, {"id": 2, "cust": 1}])
    stage.view("v", "SELECT id FROM orders", "orders")
    stage.catch_up()
    first = stage.group("g").step
    stage.view("v", "SELECT id FROM orders WHERE id > 1", "orders")
    stage.catch_up()
    assert added_up(stage.changes("v", first)) == Counter({(1,): -1})
    second = stage.group("g").step
    stage.view("v", "SELECT id, cust FROM orders", "orders")
    stage.catch_up()
    assert added_up(stage.changes("v", second)) == bag(stage.table("v")) == Counter([(1, 1), (2, 1)])
    with pytest.raises(ViewRefused, match="at step 1 differ from its current columns"):
        stage.changes("v", 0)


def test_names_that_nobody_should_use_work(stage: ViewStage) -> None:
    name = "a.b `c` = / % ü"
    quoted = "`a.b ``c`` = / % ü`"
    source = stage.base("source", f"{quoted} BIGINT, k BIGINT", kind=Kind.KEYED, key=(name,), deletes=True)
    stage.view(name, f"SELECT {quoted}, struct({quoted} AS {quoted}) AS s FROM source", "source")
    stage.append(source, [{name: 1, "k": 2}, {name: 1, "k": 3}], RowOperation.UPSERT)
    stage.catch_up()
    assert bag(stage.table(name)) == Counter([(1, (1,))])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT NULL AS x FROM source",
        "SELECT id AS a, id AS A FROM source",
        "SELECT id AS _weight FROM source",
        "SELECT parse_json('1') AS v FROM source",
        "SELECT array(make_interval(1)) AS v FROM source",
    ],
)
def test_a_view_with_columns_that_no_table_can_have_is_set_aside(stage: ViewStage, sql: str) -> None:
    stage.base("source", "id BIGINT")
    stage.view("v", sql, "source")
    stage.catch_up()
    assert stage.group("g").tables == {}
    failed = stage.store.run(lambda tx: failed_views.listed(tx, stage.keys, P, "g"))
    assert failed["v"].is_aside


def test_a_missing_object_of_a_lot_is_named_and_the_step_is_run_again_when_it_is_back(
    stage: ViewStage,
) -> None:
    source = stage.base("source", "id BIGINT")
    stage.append(source, [{"id": 1}])
    stage.view("v", "SELECT * FROM source", "source")
    item = stage.inputs.at(source, 1)[0].objects[0]
    body = stage.objects.get(item.uri)[0]
    stage.objects.delete(item.uri)
    ticket = stage.begin(stage.me, "g")
    with pytest.raises(ObjectUnreadable, match=item.uri.rpartition("/")[2]):
        stage.stepper(compute=compute_of(stage)).run(ticket)
    stage.run(runs.fail, stage.triggers, stage.cluster, ticket, backoff_us=0)
    stage.objects.put(item.uri, body)
    stage.catch_up()
    assert bag(stage.table("v")) == Counter([(1,)])


def test_a_runner_with_other_code_computes_nothing(stage: ViewStage) -> None:
    source = stage.base("source", "id BIGINT")
    stage.append(source, [{"id": 1}])
    stage.view("v", "SELECT id FROM source", "source")
    known = stage.group("g").spec
    stage.view("v", "SELECT id + 1 AS id FROM source", "source")
    old = StepComputer(stage.sources(), [known])
    with pytest.raises(CodeDiffers):
        stage.stepper(compute=old).run(stage.begin(stage.me, "g"))
    assert stage.group("g").step == 0


def compute_of(stage: ViewStage):
    return StepComputer(stage.sources())


def test_a_crash_at_any_durable_write_leaves_the_steps_as_they_are_without_one(
    stage: ViewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One crash after the other, until each point had its own; each step merges its table as well."""
    monkeypatch.setattr(table_pieces, "FAN", 2)
    orders = stage.base("orders", "id BIGINT")
    stage.view("v", "SELECT count(*) AS n FROM orders", "orders")
    stage.catch_up()
    with crash.recorded() as visited:
        stage.append(orders, [{"id": 0}])
        stage.catch_up()
    order = ["views.cut", "views.open", "spark.write", "spark.write_table", "views.manifest", "views.commit"]
    visits = {"views.manifest": 3}  # of the changes, of what was merged, and of the table
    points = [
        (f"{step}.{when}", visit + 1)
        for step in order
        for visit in range(visits.get(step, 1))
        for when in ("before", "after")
    ]
    assert {point for point in visited if point.startswith(("views.", "spark.write"))} == {
        point for point, _ in points
    }
    count = 1
    for number, (point, visit) in enumerate(points):
        if stage.stored_table("v") == Counter({(count,): 1}):  # a step is tried until a crash comes after it
            stage.append(orders, [{"id": number}])
            count += 1
        with crash.armed(point, visit=visit), pytest.raises(crash.Crashed):
            stage.catch_up()
        stage.kill(stage.me)
        stage.look(group_id("shop", "g"))
        stage.forgive(group_id("shop", "g"))  # a group with ten deaths in a row is dead
        stage.me = stage.node(f"life {number}", 10**15)
    stage.append(orders, [{"id": -1}])
    stage.catch_up()
    steps = range(1, stage.group("g").step + 1)
    assert [stage.stored_changes("v", step) for step in steps] == [
        Counter({(0,): 1}),
        *(Counter({(n,): -1, (n + 1,): 1}) for n in range(count + 1)),
    ]
    assert stage.stored_table("v") == Counter({(count + 1,): 1})
    stage.check()
    # The cleaner removes what the crashed ones left, and nothing that a step names.
    cleaner = Cleaner(stage.scope(stage.me))
    there = stage.data_of("v")
    while cleaner.clean():
        pass
    kept = stage.named("v")
    assert stage.data_of("v") == kept < there


@pytest.mark.rule("DBSP-42")
def test_digests_add_up_are_read_again_and_do_not_depend_on_how_steps_are_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One history, step by step and in one step: the step digests differ, the content is the same."""
    contents = []
    for cut in (True, False):
        stage = ViewStage(spark, tmp_path / f"cut-{cut}")
        orders = stage.base("orders", ORDERS, kind=Kind.CHANGES, deletes=True)
        stage.view("v", "SELECT cust, count(*) AS n, max(amount) AS most FROM orders GROUP BY cust", "orders")
        history = [
            ([{"id": 1, "cust": 1, "amount": Decimal("1.50")}, {"id": 2, "cust": None}], RowOperation.APPEND),
            ([{"id": 3, "cust": 1, "amount": Decimal("9.00")}], RowOperation.APPEND),
            ([{"id": 2, "cust": None}], RowOperation.DELETE),
        ]
        for rows_, operation in history:
            stage.append(orders, rows_, operation)
            if cut:
                stage.catch_up()
        if not cut:
            stage.catch_up()
        total = 0
        for row in stage.rows_of_group("g"):
            for output in row.outputs:
                files = [
                    pq.read_table(pa.BufferReader(stage.objects.get(item.uri)[0]))
                    for item in (stage.reader.objects(output.changes) if output.changes else ())
                ]
                read = total_digest(
                    digest(table, weighted_rows.HIGH, weighted_rows.LOW, "_weight") for table in files
                )
                assert output.digest == f"{read:032x}", "what was written is what was computed"
                total = total_digest([total, read])
                assert output.content == f"{total:032x}" == stage.reader.load(output.table).digest
        contents.append(total)
    assert contents[0] == contents[1] != 0
