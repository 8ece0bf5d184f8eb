"""Define the objects through which users read and write tables: `Table`, `Dataset`, `View`, retired tables.

`df()` returns the rows of any of them. `changes(after)` returns the changes of a table since a position. A
dataset can also be written.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tidemill.errors import MissingDriver
from tidemill.lots.producers import Receipt
from tidemill.pipeline import writes
from tidemill.pipeline.declarations import DatasetDecl
from tidemill.spark.operations import RowOperation

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidemill.lots.keys import DatasetId
    from tidemill.pipeline.explanation import Explanation
    from tidemill.pipeline.gaps import GapReport
    from tidemill.pipeline.lot_info import LotInfo
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.runner.compaction import Compacted
    from tidemill.sources.source import PushAddress
    from tidemill.views.steps.retired import RetiredTable


class Table:
    """A table of a pipeline.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT, day DATE")
    >>> orders.schema, orders.position
    ('id bigint, day date', 0)
    """

    def __init__(self, pipeline: "Pipeline", name: str) -> None:
        self.pipeline = pipeline
        self.name = name

    def df(self, *, as_of: "int | datetime | None" = None) -> "DataFrame":
        """Return the table as a Spark DataFrame. Later lots do not change the DataFrame.

        Args:
            as_of: a position or a time (with a time zone): the table as it was there. By default, as it is
                now. Raises `HistoryExpired` if `keep=` has removed what is needed.
        """
        if as_of is not None:
            from tidemill.pipeline.history import table_as_of

            return table_as_of(self.pipeline, self.name, as_of)
        from tidemill.pipeline import reader

        return reader.table(self.pipeline, self.name)

    def arrow(self) -> "pa.Table":
        """Return the table as it is now, as an Arrow table. Most tables are read without Spark.

        >>> import tidemill as tm
        >>> shop = tm.Pipeline("shop", home="shop-home")
        >>> orders = shop.dataset("orders", "id BIGINT, day DATE")
        >>> _ = orders.append([{"id": 1, "day": None}])
        >>> orders.arrow().to_pylist()
        [{'id': 1, 'day': None}]
        """
        from tidemill.pipeline.arrow_reader import arrow_table

        return arrow_table(self.pipeline, self.name)

    def pandas(self) -> Any:
        """Return the table as it is now, as a pandas DataFrame."""
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """Return the table as it is now, as a Polars DataFrame; needs the package polars."""
        return _package("polars").from_arrow(self.arrow())

    def duckdb(self) -> Any:
        """Return the table as it is now, as a DuckDB relation; needs the package duckdb."""
        return _package("duckdb").from_arrow(self.arrow())

    def changes(self, after: int = 0) -> "DataFrame":
        """Return the rows that were inserted and deleted after a position.

        Each row also has the columns `_weight`, `_position` and `_inputs`. `_inputs` lists the lots that the
        row was computed from. It is empty for rows that users or sources wrote, and NULL if there are more
        than 1,000 lots.

        If the columns of a view changed, or the view was removed and declared again, its changes cannot be
        applied to rows that were read before. Then this method raises `ViewRefused`: read the complete view,
        and continue after its position.
        """
        from tidemill.pipeline.changes import changes

        return changes(self.pipeline, self.name, after)

    @property
    def position(self) -> int:
        """The position of the last publication; 0 if nothing was published yet."""
        from tidemill.pipeline import reader

        return reader.position(self.pipeline, self.name)

    @property
    def schema(self) -> str:
        """The columns, as Spark writes them."""
        from tidemill.pipeline import reader

        return reader.columns(self.pipeline, self.name)

    def gaps(self) -> "GapReport":
        """Return the lots that are expected but not published; see `Pipeline.gaps`."""
        return self.pipeline.gaps(self.name)

    def lots(self) -> "list[LotInfo]":
        """Return the lots of the table; for a view, its steps."""
        from tidemill.pipeline.lot_info import lots_of
        from tidemill.pipeline.notebook import LotList

        return LotList(lots_of(self.pipeline, self.name))

    def register_consumer(self, name: str, position: int = 0) -> None:
        """Keep all changes after a position for a consumer, even if the table declares `keep=` (LOT-39).

        Call it again with a higher position when the consumer has read further.

        Args:
            name: the name of the consumer.
            position: the position up to which it has read; see `changes`.
        """
        from tidemill.pipeline import retention

        retention.register_consumer(self.pipeline, self.name, name, position)

    def remove_consumer(self, name: str) -> bool:
        """Remove a consumer, so that it no longer keeps changes. Return False if there is none."""
        from tidemill.pipeline import retention

        return retention.remove_consumer(self.pipeline, self.name, name)

    def compact(self, *lots: str) -> "list[Compacted]":
        """Merge the small files of these lots, or of all lots; return the result for each changed lot.

        The rows stay the same, even for readers that have already started. A runner compacts lots with many
        small files automatically.
        """
        from tidemill.pipeline.compaction import compact

        return compact(self.pipeline, self.name, lots)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.pipeline.name}>"

    def _repr_html_(self) -> str:
        from tidemill.pipeline.notebook import table_html

        return table_html(self)


def _package(name: str) -> Any:
    """Import an optional package; raise `MissingDriver` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDriver(f"{name} is not installed", hint=f"pip install {name}") from error


class Dataset(Table):
    """A table that users append to, or that a source writes.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT, amount DECIMAL(10,2)")
    >>> orders.append([{"id": 1, "amount": 9.5}]).position
    1
    """

    @property
    def _decl(self) -> DatasetDecl:
        return self.pipeline.datasets[self.name]

    def append(self, rows: Any, *, producer: str | None = None, seq: int | None = None) -> Receipt:
        """Add rows: dictionaries, tuples, an Arrow table, a pandas or a Spark DataFrame.

        Args:
            rows: columns match by name; a missing column becomes NULL.
            producer: the name of the sender. With `seq`, a repeated append takes effect only once.
            seq: a number that grows with each append of the producer; numbers may be skipped.
        """
        return self._write(rows, RowOperation.APPEND, producer, seq)

    def upsert(self, rows: Any, *, producer: str | None = None, seq: int | None = None) -> Receipt:
        """Insert rows, or replace the rows that have the same key. The arguments are those of `append`."""
        return self._write(rows, RowOperation.UPSERT, producer, seq)

    def delete(self, rows: Any, *, producer: str | None = None, seq: int | None = None) -> Receipt:
        """Delete rows.

        If the dataset has a key, rows are deleted by key. Otherwise, each row that you pass deletes one equal
        row.
        """
        return self._write(rows, RowOperation.DELETE, producer, seq)

    def replace(self, lot: str, rows: Any) -> Receipt:
        """Replace the rows of a published lot.

        The new rows are the lot's next generation. Readers see the old rows until the new generation is
        published. Then `changes()` returns the old rows with weight -1, views remove them, and arcs process
        only this lot again. A dataset with a key refuses this: upsert the corrected rows instead.

        Args:
            lot: the id of the lot; see `lots()`.
            rows: all rows of the lot, as for `append`; an empty list for an empty lot.
        """
        return writes.replace(self.pipeline.context, self._decl, lot, rows)

    def remove(self, lot: str, *, why: str = "") -> Receipt:
        """Remove a lot: its rows disappear from the table and from everything computed from them.

        `lots()` still lists the lot, as removed. `replace` can give it rows again.

        Args:
            lot: the id of the lot; see `lots()`.
            why: a comment, shown with the lot.
        """
        return writes.remove(self.pipeline.context, self._decl, lot, why=why)

    def address(self) -> "PushAddress":
        """Return the address to which senders push rows now (`tm.http_push`), and the token they need."""
        from tidemill.pipeline.status import address_of

        return address_of(self.pipeline, self.name)

    def _write(self, rows: Any, operation: RowOperation, producer: str | None, seq: int | None) -> Receipt:
        return writes.append(
            self.pipeline.context, self._decl, rows, operation=operation, producer=producer, seq=seq
        )


class View(Table):
    """A query whose result is kept up to date.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT, day DATE")
    >>> days = shop.view("days", "SELECT day, count(*) AS n FROM orders GROUP BY day")
    >>> days.sql
    'SELECT day, count(*) AS n FROM orders GROUP BY day'
    """

    @property
    def sql(self) -> str:
        """The query; empty if the view is a function."""
        return self.pipeline.views[self.name].sql

    def explain(self) -> "Explanation":
        """Explain how the view is computed: its operators, how Tidemill keeps each up to date, and why.

        The explanation also has the result of the comparison with plain Spark.
        """
        from tidemill.pipeline.explanation import explain

        return explain(self.pipeline, self.name)


class RetiredDataset:
    """A dataset, or a table of an arc, that is no longer declared.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> shop.retired()
    {}
    """

    def __init__(self, pipeline: "Pipeline", name: str, dataset: "DatasetId") -> None:
        self.pipeline = pipeline
        self.name = name
        self.dataset = dataset

    @property
    def position(self) -> int:
        """The position of the last publication."""
        from tidemill.pipeline import reader

        return reader.head(self.pipeline, self.dataset)

    def df(self) -> "DataFrame":
        """Return the rows, as a Spark DataFrame."""
        from tidemill.pipeline import reader

        return reader.table(self.pipeline, self.name)

    def drop(self) -> bool:
        """Drop the dataset. Return False if it was already dropped or is declared again.

        A dropped dataset cannot be read. A day later, a runner deletes its files. Its name and version cannot
        be used again. If an arc or a view still reads it, this raises `UsageError`.
        """
        from tidemill.pipeline.retired import drop_dataset

        return drop_dataset(self.pipeline, self.dataset)

    def __repr__(self) -> str:
        return f"<RetiredDataset {self.name} of {self.pipeline.name}>"


class RetiredView:
    """A view that is no longer declared.

    Until it is dropped, you can still read its rows as of its last step.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> shop.retired()
    {}
    """

    def __init__(self, pipeline: "Pipeline", retired: "RetiredTable") -> None:
        self.pipeline = pipeline
        self.name = retired.view
        self.position = retired.step
        """The last step of the view."""

    def df(self) -> "DataFrame":
        """Return the rows, as a Spark DataFrame."""
        from tidemill.pipeline import reader

        return reader.table(self.pipeline, self.name)

    def drop(self) -> bool:
        """Drop the view. Return False if it was already dropped or is declared again.

        A dropped view cannot be read. Once the readers that have already started are done, a runner removes
        the view's files.
        """
        from tidemill.views.steps import retired

        context = self.pipeline.context
        return context.store.run(lambda tx: retired.drop(tx, context.keys, self.pipeline.name, self.name))

    def __repr__(self) -> str:
        return f"<RetiredView {self.name} of {self.pipeline.name}, at step {self.position}>"
