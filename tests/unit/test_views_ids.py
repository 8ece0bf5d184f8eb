import pytest

from tests.unit.views_stage import circuit, output
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.functions import UserFunction
from tidemill.views.circuit.ids import FORMAT, Pins, expressions_of, fingerprint, ids, normal_form
from tidemill.views.circuit.operators import (
    KINDS,
    Aggregate,
    InputTable,
    Join,
    Operator,
    SparkColumn,
    ViewOutput,
)
from tidemill.views.circuit.rewrites import rewrite

TOTALS = "SELECT region, sum(amount) AS total FROM orders o JOIN customers c ON o.cust = c.id GROUP BY region"


def test_an_id_does_not_depend_on_names_layout_or_case() -> None:
    other = """
        select C.Region as where_, /* the same */ SUM(o.amount) as s  -- in other words
        from orders as o join customers as C on o.cust=C.id
        group by 1"""
    totals, same_totals = output(TOTALS), output(other)
    assert totals.input == same_totals.input
    assert totals != same_totals, "the column names are part of the output"


def test_ids_equal_those_of_the_previous_release() -> None:
    """Other ids would rebuild the state of all users. If that is intended, raise FORMAT."""
    assert FORMAT == 1
    pins = Pins({"ansi": "true"}, {})
    view = output("SELECT cust, count(*) AS n FROM orders WHERE amount > 0 GROUP BY cust")
    ids_by_kind = {op.kind: identity for op, identity in ids(walk(view), pins).items()}
    assert ids_by_kind == GOLDEN


GOLDEN = {
    "source": "df7252b4cebef2ac7e5d2c79af45f753",
    "filter": "7a832dc67bfd275af032ac212638c294",
    "aggregate": "af8884f2b4d57c086d4ca88fe01270cf",
    "project": "12e59bbb39a656a5a26c7aa64271d0bd",
    "output": "c30aaf495a52895d9e539ae7b2a62650",
}


@pytest.mark.parametrize(
    ("sql", "golden"),
    [
        ("SELECT v.p + 1 AS q FROM VALUES (1, 'a'), (2, NULL) AS v(p, q)", "f71da70cd539"),
        ("SELECT id FROM events WHERE at < now() - INTERVAL 1 DAY AND kind <> 'x'", "8e1c630346f2"),
        ("SELECT id, tag FROM events LATERAL VIEW OUTER explode(tags) t AS tag", "09b1aab6a35e"),
        ("SELECT id FROM orders UNION ALL SELECT cust FROM orders", "28a0e631db29"),
        (
            (
                "SELECT o.id, c.region FROM orders o LEFT JOIN customers c ON o.cust = c.id AND c.region <=>"
                " 'n' JOIN events e ON e.id = o.id AND e.kind < c.region"
            ),
            "c3f1f5b5317e",
        ),
        (
            "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM customers c WHERE c.id = o.cust)",
            "62647759ee62",
        ),
        ("SELECT DISTINCT region FROM customers", "b214ee16049b"),
        (
            "SELECT id FROM orders EXCEPT ALL SELECT id FROM customers INTERSECT SELECT id FROM events",
            "cafc4bd4f54e",
        ),
        (
            (
                "SELECT day, cust, count(DISTINCT id) AS n, sum(amount) FILTER (WHERE id > 1) AS s FROM"
                " orders GROUP BY ROLLUP (day, cust)"
            ),
            "f07210f9e85d",
        ),
        (
            (
                "SELECT id, sum(amount) OVER (PARTITION BY cust ORDER BY day ROWS BETWEEN 2 PRECEDING AND"
                " CURRENT ROW) AS s FROM orders"
            ),
            "d33857998e6c",
        ),
        ("SELECT id FROM orders ORDER BY amount DESC NULLS LAST, id LIMIT 3 OFFSET 1", "443d1efa51c8"),
        ("SELECT id FROM orders WHERE amount > (SELECT max(amount) FROM orders)", "6c6180c52de6"),
    ],
)
def test_ids_of_every_kind_of_operator_equal_those_of_the_previous_release(sql: str, golden: str) -> None:
    """An id depends on the ids of the inputs, so checking the id of the output is enough."""
    view = output(sql)
    assert ids(walk(view), Pins({"ansi": "true"}, {}))[view].startswith(golden)


def test_two_views_share_equal_operators() -> None:
    views = circuit(a=TOTALS, b=f"{TOTALS} HAVING sum(amount) > 9")
    shared = [op for op, readers in views.consumers().items() if len(readers) > 1]
    assert [op.kind for op in shared] == ["aggregate"]


def test_an_edit_changes_only_the_ids_above_it() -> None:
    before = ids(walk(output(TOTALS)), Pins())
    after = ids(walk(output(TOTALS.replace("sum(amount)", "sum(amount * 2)"))), Pins())
    same = {op.kind for op, identity in after.items() if identity in before.values()}
    changed = {op.kind for op, identity in after.items() if identity not in before.values()}
    assert same == {"source", "join"}
    assert changed >= {"aggregate", "output"}


def test_settings_are_part_of_every_id_except_those_of_input_tables() -> None:
    view = output(TOTALS)
    in_utc, in_rome = (ids(walk(view), Pins({"time zone": zone})) for zone in ("UTC", "Europe/Rome"))
    assert {op.kind for op in in_utc if in_utc[op] == in_rome[op]} == {"source"}


def test_the_code_of_a_function_is_part_of_the_ids_of_its_callers_and_above() -> None:
    score = UserFunction("score", deterministic=True)
    view = output(
        "SELECT s FROM (SELECT score(amount) AS s, id FROM orders WHERE id > 0) q WHERE s > 1", score
    )
    before, after = (ids(walk(view), Pins({}, {"score": digest})) for digest in ("v1", "v2"))
    unchanged = [op for op in before if before[op] == after[op]]
    assert [op.kind for op in unchanged] == ["source", "filter"]


def test_a_new_column_type_changes_the_input_table() -> None:
    old = InputTable("t", (SparkColumn("a", "int"),))
    assert old != InputTable("t", (SparkColumn("a", "bigint"),))
    assert old == InputTable("t", (SparkColumn("a", "int"),))


def test_a_deep_tree_with_sharing_is_hashed_once_per_operator() -> None:
    tree: Operator = InputTable("t", (SparkColumn("a", "int"),))
    for _ in range(60):  # 2^60 paths
        tree = Join("cross", tree, tree)
        tree = Aggregate(tree, (), ())
    assert len(list(walk(tree))) == 121
    assert len(ids(walk(tree), Pins())) == 121


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_unique_name_and_a_width(kind: type[Operator]) -> None:
    assert [other.kind for other in KINDS].count(kind.kind) == 1
    assert "width" in vars(kind)


def test_the_normal_form_is_json_and_contains_its_format() -> None:
    view = output("SELECT id, now() AS t FROM orders WHERE amount > 1.5")
    form = normal_form(view.input)
    assert isinstance(form, dict)
    assert form["format"] == FORMAT
    assert form["expressions"] == [[0], [{"now": "TIMESTAMP"}]]
    assert {part for expr in expressions_of(view.input) for part in expr.columns} == {0}
    assert fingerprint(view) == view.fingerprint


def test_views_over_views_are_linked_into_one_circuit() -> None:
    totals = output(TOTALS)
    from tests.unit.views_stage import TABLES
    from tidemill.views.sql.catalog import QueryTable
    from tidemill.views.sql.compiler import compile_query

    tables = {
        **TABLES,
        "totals": QueryTable(
            "totals", (SparkColumn("region", "string"), SparkColumn("total", "decimal(20,2)"))
        ),
    }
    big = compile_query("SELECT region FROM totals WHERE total > 100", tables).output
    linked = Circuit({"big": big, "totals": totals}).linked()
    assert [table.table for table in linked.sources()] == ["orders", "customers"]
    assert linked.outputs["totals"] in list(walk(linked.outputs["big"]))
    assert isinstance(rewrite(linked.outputs["big"]), ViewOutput)
