"""Every cell of the table of types, with real Spark: equal to plain Spark after every step, or refused."""

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
from tidemill.spark.expected_errors import expecting_errors
from tidemill.spark.operations import WEIGHT
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.chain.chain import InputKind
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.circuit.rungs import Rung
from tidemill.views.spark import weighted_rows
from tidemill.views.spark.group_chain import GroupChain, group_chain

# Types of table columns that are strings in a query.
IN_QUERIES = {"CHAR(3)": "STRING", "VARCHAR(5)": "STRING"}
KINDS = {name: schema.parse(f"v {name}").columns[0].type for name in TYPES}
NUMBERS = ("1", "-2.5", "1e3", " 7 ", None)


def column_of(name: str, role: Role) -> str:
    """Return the column for a role; strings that are summed have a separate column with numbers."""
    texts = name.startswith(("STRING", "CHAR", "VARCHAR"))
    return f"{'s' if texts and role is Role.AGGREGATED else 'v'}{TYPES.index(name)}"


COLUMNS = {column_of(name, role): IN_QUERIES.get(name, name) for name in TYPES for role in Role}
DDL = {"d": ", ".join(["k INT", *(f"{column} {name}" for column, name in COLUMNS.items())])}


@dataclass
class CellResult:
    """Why a cell is refused, or the rung of its operator."""

    refused: str = ""
    rung: Rung | None = None


class FullRungRows:
    """The columns of a table as the rung *full* stores them: rows with identity and weight."""

    def __init__(self, spark: Any, columns: Sequence[str]) -> None:
        self.spark, self.columns, self.contents = spark, columns, TableContents(DDL)

    def after(self, step: Step) -> Any:
        """Return all rows, after each was inserted, deleted and inserted again."""
        from pyspark.sql import functions as sf

        self.contents.apply(step)
        df = self.contents.frame(self.spark, "d").select(*self.columns)
        weights = sf.explode(sf.array(*(sf.lit(weight).cast("bigint") for weight in (1, -2, 2))))
        identified = weighted_rows.identified(df.withColumn(WEIGHT, weights), df.schema)
        return weighted_rows.repeated(weighted_rows.netted(identified, df.schema), df.schema)


def steps() -> list[Step]:
    """Return steps with inserts, with inserts and deletes, and with extreme values in separate groups."""
    drawn = generated_steps.generate_steps(DDL, seed=5, rows=12)[1:3]

    def numbered(rows_by_table: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        of_texts = [column for column in COLUMNS if column.startswith("s")]
        return {
            "d": [
                row | {column: NUMBERS[len(repr(row)) % 5] for column in of_texts}
                for row in rows_by_table.get("d", ())
            ]
        }

    ends = {column: generated_steps.ends(KINDS[TYPES[int(column[1:])]]) for column in COLUMNS}
    last = [
        {"k": 100 + n, **dict(zip(ends, row, strict=True))}
        for n, row in enumerate(zip_longest(*ends.values()))
    ]
    return [*(Step(numbered(step.inserts), numbered(step.deletes)) for step in drawn), Step({"d": last})]


def rung_of(group: GroupChain, view: str) -> Rung:
    """Return the rung of the only stateful operator of a view."""
    if view not in group.views:
        return Rung.FULL
    assert group.chain is not None
    operators = group.chain.below({group.chain.outputs[view].number})
    by_spark = {f"result:{number}" for number in operators}
    return Rung.KEYED if any(query.table in by_spark for query in group.chain.queries) else Rung.NATIVE


def query_of(name: str, role: Role) -> str:
    column = column_of(name, role)
    sql = QUERIES[role].replace(".v", f".{column}").replace("(v)", f"({column})")
    return sql.replace("SELECT v,", f"SELECT {column},").replace("BY v", f"BY {column}")


@pytest.fixture(scope="module")
def cells(spark: Any) -> dict[tuple[str, Role], CellResult]:
    """Compute every cell: for each type a small table, and a chain with a view for each role."""
    results = {(name, role): CellResult() for name in TYPES for role in Role}
    for name in TYPES:
        columns = {column_of(name, role) for role in Role}
        ddl = {"d": ", ".join(["k INT", *(f"{column} {COLUMNS[column]}" for column in sorted(columns))])}
        outputs: dict[str, ViewOutput] = {}
        with views_oracle.stage(spark, {}, ddl) as tables, expecting_errors():
            for role in Role:
                sql = query_of(name, role)
                try:
                    outputs[role.value] = rewrite(views_oracle.compiled(spark, tables, sql).output)
                    weighted_rows.check_columns("view", spark.sql(sql).schema)
                except (QueryRefused, ViewRefused) as reason:
                    results[name, role].refused = str(reason)
                    outputs.pop(role.value, None)
            chain = group_chain(
                spark, outputs, {"d": spark.createDataFrame([], ddl["d"])}, {"d": InputKind("rows")}, "types"
            )
        for view in outputs:
            results[name, Role(view)].rung = rung_of(chain, view)
    return results


@pytest.mark.rule("DBSP-21")
def test_each_cell_of_the_table_of_types_has_the_stated_rung_or_is_refused(
    cells: dict[tuple[str, Role], CellResult],
) -> None:
    wrong = {}
    for (name, role), cell in cells.items():
        expected = role_of(KINDS[name], role)
        if cell.rung is not expected.rung or bool(cell.refused) != (expected.how is How.REFUSED):
            wrong[name, role.value] = cell
        assert expected.why or expected.how is How.NATIVE
    assert wrong == {}


@pytest.mark.rule("DBSP-21")
def test_a_refused_column_is_named_with_its_reason(cells: dict[tuple[str, Role], CellResult]) -> None:
    for name, kind in KINDS.items():
        expected = role_of(kind, Role.PAYLOAD)
        if expected.how is How.REFUSED:
            refused = cells[name, Role.PAYLOAD].refused
            assert f"column '{column_of(name, Role.PAYLOAD)}' of view view is {expected.why}" in refused


def _accepted(role: Role) -> list[str]:
    return [name for name, kind in KINDS.items() if role_of(kind, role).how is not How.REFUSED]


@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_rows_of_every_type_are_stored_unchanged(spark: Any) -> None:
    """In the rung *full*, exactly the equal rows have the same identity."""
    columns = [column_of(name, Role.PAYLOAD) for name in _accepted(Role.PAYLOAD)]
    assert len(columns) > 25
    case = Case(
        "all columns",
        f"SELECT {', '.join(columns)} FROM d",
        MaintainedView(FullRungRows(spark, columns).after),
    )
    with views_oracle.stage(spark, {}, DDL):
        verdict = Judge(spark, DDL).run([case], steps())
    assert verdict, str(verdict)
    assert verdict.compared == len(steps())


@pytest.mark.crash  # 140 queries with three steps each take more than a minute
@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_every_cell_of_the_table_of_types_equals_spark_after_every_step(spark: Any, tmp_path: Path) -> None:
    queries = {f"{name} {role.value}": query_of(name, role) for role in Role for name in _accepted(role)}
    with views_oracle.stage(spark, {}, DDL) as tables:
        outputs = {
            f"v{n}": rewrite(views_oracle.compiled(spark, tables, sql).output)
            for n, sql in enumerate(queries.values())
        }
        kernels = Kernels(spark, tmp_path, DDL, outputs)
        cases = []
        for (view, output), (name, sql) in zip(outputs.items(), queries.items(), strict=True):
            actual = kernels.maintained(view) if view in kernels.group.views else interpret(output)
            cases.append(Case(name, sql, actual, equality_of(output)))
        verdict = Judge(spark, DDL, batch=100).run(cases, steps())
    assert verdict, str(verdict)
    assert verdict.compared == len(steps()) * len(cases)
    assert verdict.raised == 0
