"""Test a view that is a function against its declaration (DBSP-18).

    linear     Given only the changed rows, the function returns the change in its result. After each
               generated step, the result is the previous result, plus the result for the inserted rows, minus
               the result for the deleted rows.
    keyed by   The rows of a key depend only on input rows of that key. If the tables are divided by key into
               two parts, the two results together are the result for the complete tables.

A function that fails the test stays on the rung *full*, and the certificate says what differed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from tidemill.spark import schema
from tidemill.spark.expected_errors import expecting_errors
from tidemill.spark.sessions import repinned
from tidemill.views.certify import generated_steps
from tidemill.views.certify.bounds import Bounds, is_query_error
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.equality import Row as Value
from tidemill.views.certify.equality import difference
from tidemill.views.certify.query_results import collect_rows
from tidemill.views.certify.table_contents import Row, Step, TableContents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tables = Mapping[str, Sequence[Row]]
_numbers = count()


def certify_function(
    spark: "SparkSession",
    function: "Callable[..., DataFrame]",
    reads: Sequence[str],
    tables: Mapping[str, str],
    *,
    keyed_by: Sequence[str] = (),
    seed: int = 0,
    bounds: Bounds | None = None,
) -> ViewCertificate:
    """Test in one Spark job whether a function is keyed by `keyed_by`, or linear if `keyed_by` is empty.

    Args:
        spark: a session with the pinned settings.
        function: takes DataFrames in the order of `reads`, and returns a DataFrame.
        reads: the names of the tables that the function reads.
        tables: the columns of the tables.
        keyed_by: the columns of the key.
        seed: the seed of the generated rows.
        bounds: limits on the size of results and on the time; exceeding one raises `BoundExceeded`.
    """
    contents = TableContents(tables)
    equations: list[tuple[list[Tables], list[Tables]]] = []  # both sides must have equal results
    for step in generated_steps.generate_steps(tables, seed=seed)[:3]:
        before = {name: contents.rows(name) for name in tables}
        contents.apply(step)
        after = {name: contents.rows(name) for name in tables}
        if keyed_by:
            equations.append(([after], _parts(after, tables, keyed_by)))
        else:
            equations.append(([after, step.deletes], [before, step.inserts]))
    inputs = [rows for left_tables, right_tables in equations for rows in (*left_tables, *right_tables)]
    try:
        with expecting_errors():
            results = iter(_results(spark, function, reads, tables, inputs, bounds))
    except Exception as error:
        if not is_query_error(error):
            raise
        why = f"raises an error on generated rows: {' '.join(str(error).split())[:300]}"
        return ViewCertificate(equal=False, kind="none", why=why)
    for number, (left_tables, right_tables) in enumerate(equations):
        left_rows: list[Value] = [row for _ in left_tables for row in next(results)]
        right_rows: list[Value] = [row for _ in right_tables for row in next(results)]
        diff = difference(left_rows, right_rows)
        if diff is not None:
            rule = (
                "the results for two parts of the tables, divided by key, are not the result for all rows"
                if keyed_by
                else "the result for the changed rows is not the change in the result"
            )
            why = f"{rule}, after step {number}: {diff}"
            return ViewCertificate(equal=False, why=why[:2000], compared=number + 1)
    return ViewCertificate(equal=True, compared=len(equations))


def _parts(rows: Tables, tables: Mapping[str, str], keyed_by: Sequence[str]) -> list[Tables]:
    """Divide the tables into two parts by their keys; a table without the key columns is in both parts."""
    keyed = [name for name, ddl in tables.items() if set(keyed_by) <= set(schema.parse(ddl).names)]
    keys = Counter(_key(row, keyed_by) for name in keyed for row in rows[name])
    first_keys = set(sorted(keys)[::2])
    return [
        {
            name: [
                row for row in table_rows if name not in keyed or (_key(row, keyed_by) in first_keys) is part
            ]
            for name, table_rows in rows.items()
        }
        for part in (True, False)
    ]


def _key(row: Row, keyed_by: Sequence[str]) -> str:
    # 0.0 and -0.0 are the same key, as in Spark's grouping.
    return repr([0.0 if row.get(name) == 0 else row.get(name) for name in keyed_by])


def _results(
    spark: "SparkSession",
    function: "Callable[..., DataFrame]",
    reads: Sequence[str],
    tables: Mapping[str, str],
    inputs: Sequence[Tables],
    bounds: Bounds | None,
) -> list[list[Value]]:
    with ExitStack() as stack:
        texts = []
        for rows in inputs:
            contents = TableContents(tables)
            contents.apply(Step(inserts=rows))
            view = f"tidemill_function_{next(_numbers)}"
            frames = [contents.frame(spark, name) for name in reads]
            with repinned(spark):
                result = function(*frames)
            result.createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
            texts.append(f"SELECT * FROM {view}")  # noqa: S608
        return collect_rows(spark, texts, small=True, bounds=bounds)
