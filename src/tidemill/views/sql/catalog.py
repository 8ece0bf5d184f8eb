"""The tables that a query may read, and the type of the function that analyses a query with Spark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.views.circuit.operators import SparkColumn


@dataclass(frozen=True)
class QueryTable:
    """A dataset or a view that a query may read.

    `key` names the columns of its primary key, if a new row replaces the row with the same key. `append_only`
    means that rows are only added.
    """

    name: str
    columns: tuple[SparkColumn, ...]
    key: tuple[str, ...] = ()
    append_only: bool = False


# `analyse(sql, tables)` returns the columns of a query, with names and types as Spark writes them. The tables
# may be empty. `analyse` raises `tidemill.errors.QueryRefused` if Spark refuses the query.
Analyse = Callable[[str, Mapping[str, QueryTable]], Sequence[SparkColumn]]


class NotDecomposed(Exception):
    """The query contains a construct that the compiler cannot split into operators.

    The query, or the smallest part of it that Spark can run alone, becomes an `Opaque` operator. Users never
    see this exception, only its reason.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
