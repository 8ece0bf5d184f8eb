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
    one, two = output(TOTALS), output(other)
    assert one.input == two.input
    assert one != two, "the names of a view's columns are its own"


def test_ids_are_those_of_the_release_before() -> None:
    """Golden: a change of these rebuilds everybody's state. If it is meant, raise FORMAT."""
    assert FORMAT == 1
    pins = Pins({"ansi": "true"}, {})
    made = output("SELECT cust, count(*) AS n FROM orders WHERE amount > 0 GROUP BY cust")
    found = {one.kind: identity for one, identity in ids(walk(made), pins).items()}
    assert found == GOLDEN


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
def test_the_ids_of_every_kind_of_operator_are_those_of_the_release_before(sql: str, golden: str) -> None:
    """Golden: an id depends on those of its inputs, so that of the output stands for all below it."""
    made = output(sql)
    assert ids(walk(made), Pins({"ansi": "true"}, {}))[made].startswith(golden)


def test_two_views_share_what_they_both_compute() -> None:
    both = circuit(a=TOTALS, b=f"{TOTALS} HAVING sum(amount) > 9")
    shared = [op for op, readers in both.consumers().items() if len(readers) > 1]
    assert [op.kind for op in shared] == ["aggregate"]


def test_an_edit_changes_the_ids_above_it_and_no_others() -> None:
    before = ids(walk(output(TOTALS)), Pins())
    after = ids(walk(output(TOTALS.replace("sum(amount)", "sum(amount * 2)"))), Pins())
    same = {op.kind for op, identity in after.items() if identity in before.values()}
    changed = {op.kind for op, identity in after.items() if identity not in before.values()}
    assert same == {"source", "join"}
    assert changed >= {"aggregate", "output"}


def test_settings_are_part_of_every_id_but_that_of_a_source() -> None:
    made = output(TOTALS)
    one, two = (ids(walk(made), Pins({"time zone": zone})) for zone in ("UTC", "Europe/Rome"))
    assert {op.kind for op in one if one[op] == two[op]} == {"source"}


def test_the_code_of_a_function_is_part_of_the_ids_that_call_it_and_of_those_above() -> None:
    score = UserFunction("score", deterministic=True)
    made = output(
        "SELECT s FROM (SELECT score(amount) AS s, id FROM orders WHERE id > 0) q WHERE s > 1", score
    )
    one, two = (ids(walk(made), Pins({}, {"score": digest})) for digest in ("v1", "v2"))
    kept = [op for op in one if one[op] == two[op]]
    assert [op.kind for op in kept] == ["source", "filter"]


def test_a_column_that_changes_its_type_changes_the_source() -> None:
    old = InputTable("t", (SparkColumn("a", "int"),))
    assert old != InputTable("t", (SparkColumn("a", "bigint"),))
    assert old == InputTable("t", (SparkColumn("a", "int"),))


def test_a_deep_tree_with_sharing_is_hashed_once_per_operator() -> None:
    made: Operator = InputTable("t", (SparkColumn("a", "int"),))
    for _ in range(60):  # 2^60 paths
        made = Join("cross", made, made)
        made = Aggregate(made, (), ())
    assert len(list(walk(made))) == 121
    assert len(ids(walk(made), Pins())) == 121


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_name_of_its_own_and_says_its_width(kind: type[Operator]) -> None:
    assert [one.kind for one in KINDS].count(kind.kind) == 1
    assert "width" in vars(kind)


def test_the_normal_form_is_plain_and_names_its_format() -> None:
    made = output("SELECT id, now() AS t FROM orders WHERE amount > 1.5")
    form = normal_form(made.input)
    assert isinstance(form, dict)
    assert form["format"] == FORMAT
    assert form["expressions"] == [[0], [{"now": "TIMESTAMP"}]]
    assert {part for one in expressions_of(made.input) for part in one.columns} == {0}
    assert fingerprint(made) == made.fingerprint


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
    assert [one.table for one in linked.sources()] == ["orders", "customers"]
    assert linked.outputs["totals"] in list(walk(linked.outputs["big"]))
    assert isinstance(rewrite(linked.outputs["big"]), ViewOutput)
