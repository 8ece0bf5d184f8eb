"""Every cell of the table of types, on real Spark: kept equal to plain Spark over steps, or refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.integration import views_oracle
from tests.integration.views_kernels import Kernels
from tests.type_roles import QUERIES, TYPES, How, Role, role_of
from tidemill.errors import QueryRefused, ViewRefused
from tidemill.spark import schema
from tidemill.spark.operations import WEIGHT
from tidemill.spark.sessions import expecting_errors
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.circuit.rungs import Rung
from tidemill.views.spark import weighted_rows
from tidemill.views.spark.group_chain import GroupChain, group_chain

# These are types of tables; in a query they are strings.
IN_QUERIES = {"CHAR(3)": "STRING", "VARCHAR(5)": "STRING"}
KINDS = {name: schema.parse(f"v {name}").columns[0].type for name in TYPES}
NUMBERS = ("1", "-2.5", "1e3", " 7 ", None)


def column_of(name: str, role: Role) -> str:
    """Texts that are added up have a column of their own: others than numbers raise, in plain Spark too."""
    texts = name.startswith(("STRING", "CHAR", "VARCHAR"))
    return f"{'s' if texts and role is Role.AGGREGATED else 'v'}{TYPES.index(name)}"


COLUMNS = {column_of(name, role): IN_QUERIES.get(name, name) for name in TYPES for role in Role}
DDL = {"d": ", ".join(["k INT", *(f"{column} {name}" for column, name in COLUMNS.items())])}


@dataclass
class Found:
    """What became of a cell: why it was refused, or where it is computed."""

    refused: str = ""
    rung: Rung | None = None


class Kept:
    """A table's columns as the rung *full* keeps rows: with identity and weight, netted, and repeated."""

    def __init__(self, spark: Any, columns: Sequence[str]) -> None:
        self.spark, self.columns, self.contents = spark, columns, TableContents(DDL)

    def after(self, step: Step) -> Any:
        """All rows, of which some were taken back and came again."""
        from pyspark.sql import functions as sf

        self.contents.apply(step)
        df = self.contents.frame(self.spark, "d").select(*self.columns)
        weights = sf.explode(sf.array(*(sf.lit(one).cast("bigint") for one in (1, -2, 2))))
        every = weighted_rows.identified(df.withColumn(WEIGHT, weights), df.schema)
        return weighted_rows.repeated(weighted_rows.netted(every, df.schema), df.schema)


def steps() -> list[Step]:
    """Rows that come, rows that come and go, then the ends of each type, each in a group of its own."""
    drawn = generated_steps.generate_steps(DDL, seed=5, rows=12)[1:3]

    def numbered(given: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        of_texts = [column for column in COLUMNS if column.startswith("s")]
        return {
            "d": [row | {one: NUMBERS[len(repr(row)) % 5] for one in of_texts} for row in given.get("d", ())]
        }

    ends = {column: generated_steps.ends(KINDS[TYPES[int(column[1:])]]) for column in COLUMNS}
    last = [
        {"k": 100 + n, **dict(zip(ends, row, strict=True))}
        for n, row in enumerate(zip_longest(*ends.values()))
    ]
    return [*(Step(numbered(one.inserts), numbered(one.deletes)) for one in drawn), Step({"d": last})]


def rung_of(found: GroupChain, view: str) -> Rung:
    """Where the one operator of a view that has state is computed."""
    if view not in found.views:
        return Rung.FULL
    assert found.chain is not None
    mine = found.chain.below({found.chain.outputs[view].number})
    by_spark = {f"result:{number}" for number in mine}
    return Rung.KEYED if any(one.table in by_spark for one in found.chain.queries) else Rung.NATIVE


def query_of(name: str, role: Role) -> str:
    column = column_of(name, role)
    sql = QUERIES[role].replace(".v", f".{column}").replace("(v)", f"({column})")
    return sql.replace("SELECT v,", f"SELECT {column},").replace("BY v", f"BY {column}")


@pytest.fixture(scope="module")
def cells(spark: Any) -> dict[tuple[str, Role], Found]:
    """What becomes of every cell: for each type a small table, and a chain of the views of its roles."""
    found = {(name, role): Found() for name in TYPES for role in Role}
    for name in TYPES:
        mine = {column_of(name, role) for role in Role}
        ddl = {"d": ", ".join(["k INT", *(f"{column} {COLUMNS[column]}" for column in sorted(mine))])}
        outputs: dict[str, ViewOutput] = {}
        with views_oracle.stage(spark, {}, ddl) as tables, expecting_errors():
            for role in Role:
                sql = query_of(name, role)
                try:
                    outputs[role.value] = rewrite(views_oracle.compiled(spark, tables, sql).output)
                    weighted_rows.check_columns("view", spark.sql(sql).schema)
                except (QueryRefused, ViewRefused) as reason:
                    found[name, role].refused = str(reason)
                    outputs.pop(role.value, None)
            chain = group_chain(
                spark, outputs, {"d": spark.createDataFrame([], ddl["d"])}, {"d": "rows"}, "types"
            )
        for view in outputs:
            found[name, Role(view)].rung = rung_of(chain, view)
    return found


@pytest.mark.rule("DBSP-21")
def test_each_cell_of_the_table_of_types_is_computed_where_it_says_or_refused(
    cells: dict[tuple[str, Role], Found],
) -> None:
    wrong = {}
    for (name, role), cell in cells.items():
        wanted = role_of(KINDS[name], role)
        if cell.rung is not wanted.rung or bool(cell.refused) != (wanted.how is How.REFUSED):
            wrong[name, role.value] = cell
        assert wanted.why or wanted.how is How.NATIVE
    assert wrong == {}


@pytest.mark.rule("DBSP-21")
def test_a_refused_column_is_named_with_its_reason(cells: dict[tuple[str, Role], Found]) -> None:
    for name, kind in KINDS.items():
        wanted = role_of(kind, Role.PAYLOAD)
        if wanted.how is How.REFUSED:
            refused = cells[name, Role.PAYLOAD].refused
            assert f"column '{column_of(name, Role.PAYLOAD)}' of view view is {wanted.why}" in refused


def _kept(role: Role) -> list[str]:
    return [name for name, kind in KINDS.items() if role_of(kind, role).how is not How.REFUSED]


@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_rows_of_every_type_are_kept_as_they_were(spark: Any) -> None:
    """What the rung *full* does with rows: their identity brings equal ones together, and no others."""
    columns = [column_of(name, Role.PAYLOAD) for name in _kept(Role.PAYLOAD)]
    assert len(columns) > 25
    kept = Case("kept", f"SELECT {', '.join(columns)} FROM d", MaintainedView(Kept(spark, columns).after))
    with views_oracle.stage(spark, {}, DDL):
        verdict = Judge(spark, DDL).run([kept], steps())
    assert verdict, str(verdict)
    assert verdict.compared == len(steps())


@pytest.mark.crash  # 140 queries, each in three steps: a minute and more
@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_every_cell_of_the_table_of_types_is_equal_to_spark_after_every_step(
    spark: Any, tmp_path: Path
) -> None:
    drawn = {f"{name} {role.value}": query_of(name, role) for role in Role for name in _kept(role)}
    with views_oracle.stage(spark, {}, DDL) as tables:
        outputs = {
            f"v{n}": rewrite(views_oracle.compiled(spark, tables, sql).output)
            for n, sql in enumerate(drawn.values())
        }
        kernels = Kernels(spark, tmp_path, DDL, outputs)
        cases = []
        for (view, output), (name, sql) in zip(outputs.items(), drawn.items(), strict=True):
            held = kernels.holding(view) if view in kernels.found.views else interpret(output)
            cases.append(Case(name, sql, held, equality_of(output)))
        verdict = Judge(spark, DDL, batch=100).run(cases, steps())
    assert verdict, str(verdict)
    assert verdict.compared == len(steps()) * len(cases)
    assert verdict.raised == 0
