"""Results of several queries by one Spark job: rows travel as JSON text, and come back as comparable values.

The queries are put together into one text: for small tables Spark takes longer to understand a query than to
run it, and this way it is asked once. JSON tells NULL from a field that is not there, keeps decimals as they
are written and timestamps to the microsecond; which numbers are floats is said by Spark (`typeof`), never
guessed from the text.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from tidemill.errors import BadSchema
from tidemill.schemas.columns import Array, Map, Struct, Type
from tidemill.schemas.type_table import Family, family_of
from tidemill.spark import schema
from tidemill.views.certify.equality import FloatValue, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS',"
    " 'timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS', 'dateFormat', 'yyyyyy-MM-dd')"
)


SAID = f"to_json(struct(*), {_OPTIONS}) AS said, typeof(struct(*)) AS kind"
"""What is selected of a query's rows, for `ResultReader` to understand."""


def collected(spark: "SparkSession", texts: Sequence[str], *, small: bool = False) -> list[list[Row]]:
    """The rows of each query, all by one job.

    - small: of few rows: one task computes them all. (A task is given the plans of all of them.)
    """
    if not texts:
        return []
    # Each on lines of its own: a query may end in a comment.
    parts = [f"SELECT {place} AS place, {SAID} FROM (\n{text}\n)" for place, text in enumerate(texts)]  # noqa: S608
    every = "\nUNION ALL\n".join(parts)
    if small:
        every = f"SELECT /*+ COALESCE(1) */ * FROM (\n{every}\n)"  # noqa: S608
    readers = [ResultReader(spark, text) for text in texts]
    found: list[list[Row]] = [[] for _ in texts]
    for place, said, kind in spark.sql(every).collect():
        found[place].append(readers[place].row(said, kind))
    return found


class ResultReader:
    """Makes rows of what Spark said about those of one query (`SAID`)."""

    def __init__(self, spark: "SparkSession", text: str) -> None:
        self._spark = spark
        self._text = text
        self._known: Struct | None = None

    def row(self, said: str, kind: str) -> Row:
        """One of its rows."""
        body = json.loads(said, parse_float=str, parse_constant=str)
        if self._known is None:
            known = _kind(kind)
            if not isinstance(known, Struct) or {one.name for one in known.fields} != body.keys():
                # Spark does not quote names there: one that is not a plain word has to be asked for.
                known = Struct(schema.of_spark(self._spark.sql(self._text).schema).columns)
            self._known = known
        return cast(Row, _value(self._known, body))


@lru_cache(maxsize=1024)
def _kind(text: str) -> Type | None:
    try:
        return schema.parse(f"r {text}").columns[0].type
    except BadSchema:
        return None


def _value(kind: Type, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case Struct():
            return tuple(_value(one.type, value.get(one.name)) for one in kind.fields)
        case Array():
            return ("array", *(_value(kind.element, item) for item in value))
        case Map():
            items = [(key, _value(kind.value, item)) for key, item in value.items()]
            return ("map", *sorted(items, key=repr))
        case _:
            if family_of(kind) is Family.FLOAT:
                return FloatValue.of(float(value))
            return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)
