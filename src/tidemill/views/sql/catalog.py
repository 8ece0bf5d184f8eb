"""What a query is resolved against: tables with typed columns, and Spark's own analysis as a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.views.circuit.operators import SparkColumn


@dataclass(frozen=True)
class QueryTable:
    """A dataset or a view that a query may read.

    `key` names its primary key, if rows are replaced by key; `append_only` says that rows are only ever
    added.
    """

    name: str
    columns: tuple[SparkColumn, ...]
    key: tuple[str, ...] = ()
    append_only: bool = False


# `analyse(sql, tables)` gives the columns of a query over tables that may be empty, with names and types as
# Spark writes them; it raises `tidemill.errors.QueryRefused` where Spark refuses the query.
Analyse = Callable[[str, Mapping[str, QueryTable]], Sequence[SparkColumn]]


class NotDecomposed(Exception):
    """A construct that has no operators of its own. The query around it is kept whole:
    never shown to a user.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
