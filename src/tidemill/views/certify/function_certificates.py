"""Functions as views, tried out (DBSP-18, DBSP-19): is one that is declared linear, or keyed, what it says?

linear     what it makes of the change is the change of what it makes: after every generated step its result
           is that before, with what it makes of the rows that came, without what it makes of those that went
keyed by   the rows of a key are made from rows of that key: its results of the tables in two parts, cut
           between keys, are together its result of all

A function that is not what it was declared stays on the rung *full*, which runs it on whole tables; the
certificate says what differed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from tidemill.spark import schema
from tidemill.spark.sessions import expecting_errors
from tidemill.views.certify import generated_steps
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.equality import Row as Value
from tidemill.views.certify.equality import difference
from tidemill.views.certify.query_results import collected
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
) -> ViewCertificate:
    """Try out a function that is declared keyed by these columns, or (without any) linear; one Spark job.

    Args:
        spark: a session with the pinned settings.
        function: of frames, in the order of `reads`.
        reads: names of tables.
        tables: their columns.
        keyed_by: the columns of the key.
        seed: another one makes other rows.
    """
    contents = TableContents(tables)
    told: list[tuple[list[Tables], list[Tables]]] = []  # whose results together must be equal
    for step in generated_steps.generate_steps(tables, seed=seed)[:3]:
        before = {name: contents.rows(name) for name in tables}
        contents.apply(step)
        after = {name: contents.rows(name) for name in tables}
        if keyed_by:
            told.append(([after], _parts(after, tables, keyed_by)))
        else:
            told.append(([after, step.deletes], [before, step.inserts]))
    asked = [rows for left, right in told for rows in (*left, *right)]
    try:
        with expecting_errors():
            found = iter(_results(spark, function, reads, tables, asked))
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        why = f"it raises on generated rows: {' '.join(str(error).split())[:300]}"
        return ViewCertificate(equal=False, kind="none", why=why)
    for number, (left, right) in enumerate(told):
        one: list[Value] = [row for _ in left for row in next(found)]
        other: list[Value] = [row for _ in right for row in next(found)]
        differs = difference(one, other)
        if differs is not None:
            said = "of parts cut between keys" if keyed_by else "of the change"
            why = f"what it makes {said} is not the change of what it makes, after step {number}: {differs}"
            return ViewCertificate(equal=False, why=why[:2000], compared=number + 1)
    return ViewCertificate(equal=True, compared=len(told))


def _parts(rows: Tables, tables: Mapping[str, str], keyed_by: Sequence[str]) -> list[Tables]:
    """The tables in two parts, by the value of the key; one that has no such columns is whole in both."""
    keyed = [name for name, ddl in tables.items() if set(keyed_by) <= set(schema.parse(ddl).names)]
    keys = Counter(_key(row, keyed_by) for name in keyed for row in rows[name])
    first = set(sorted(keys)[::2])
    return [
        {
            name: [row for row in some if name not in keyed or (_key(row, keyed_by) in first) is part]
            for name, some in rows.items()
        }
        for part in (True, False)
    ]


def _key(row: Row, keyed_by: Sequence[str]) -> str:
    # Both zeros are one key, as in Spark's own grouping.
    return repr([0.0 if row.get(name) == 0 else row.get(name) for name in keyed_by])


def _results(
    spark: "SparkSession",
    function: "Callable[..., DataFrame]",
    reads: Sequence[str],
    tables: Mapping[str, str],
    asked: Sequence[Tables],
) -> list[list[Value]]:
    with ExitStack() as stack:
        texts = []
        for rows in asked:
            contents = TableContents(tables)
            contents.apply(Step(inserts=rows))
            view = f"tidemill_function_{next(_numbers)}"
            function(*(contents.frame(spark, name) for name in reads)).createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
            texts.append(f"SELECT * FROM {view}")  # noqa: S608
        return collected(spark, texts, small=True)
