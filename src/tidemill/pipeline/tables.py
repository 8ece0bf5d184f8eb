"""Tables as users hold them: a dataset, what an arc writes, a view.

All can be read: `df()` is the table now, `changes(after)` what came and went since a position. A dataset can
be written as well.
"""

from typing import TYPE_CHECKING, Any

from tidemill.lots.producers import Receipt
from tidemill.pipeline import correcting
from tidemill.pipeline import writes as appending
from tidemill.pipeline.declarations import DatasetDecl
from tidemill.spark.operations import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.pipeline.explanation import Explanation
    from tidemill.pipeline.gaps import GapReport
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.status import LotInfo
    from tidemill.runner.compacting import Compacted
    from tidemill.sources.source import PushAddress


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

    def df(self) -> "DataFrame":
        """The table now, as a Spark DataFrame: of what is published at this moment, and stays so."""
        from tidemill.pipeline import reader as reading

        return reading.table(self.pipeline, self.name)

    def changes(self, after: int = 0) -> "DataFrame":
        """What was published behind a position: rows with `_weight`, `_position`, and the lots each was made
        from as `_inputs`. None for rows that came from outside, NULL where they are more than 1,000.
        """
        from tidemill.pipeline.changes import changes

        return changes(self.pipeline, self.name, after)

    @property
    def position(self) -> int:
        """Of what was published last: one number per table; 0 before anything was."""
        from tidemill.pipeline import reader as reading

        return reading.position(self.pipeline, self.name)

    @property
    def schema(self) -> str:
        """Its columns, as Spark writes them."""
        from tidemill.pipeline import reader as reading

        return reading.columns(self.pipeline, self.name)

    def gaps(self) -> "GapReport":
        """Its lots that should be there and are not, each with where that began; see `Pipeline.gaps`."""
        return self.pipeline.gaps(self.name)

    def lots(self) -> "list[LotInfo]":
        """Its lots, in the order of their publication."""
        from tidemill.pipeline import status as overview

        return overview.lots_of(self.pipeline, self.name)

    def compact(self, *lots: str) -> "list[Compacted]":
        """Put the small files of each lot together, of these or of all: what was done, lot by lot.

        The table stays what it is, for readers that have begun as well. A runner does the same by itself for
        lots with many small files.
        """
        from tidemill.pipeline import compaction as compacting

        return compacting.compact(self.pipeline, self.name, lots)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.pipeline.name}>"

    def _repr_html_(self) -> str:
        from html import escape

        frame = self.df().limit(20)
        head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>"
            for row in frame.collect()
        )
        table = f"<table><tr>{head}</tr>{body}</table>"
        return f"<b>{escape(self.name)}</b> at position {self.position}{table}"


class Dataset(Table):
    """A table that is written from outside.

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
            rows: columns go by name; one that is missing is NULL.
            producer: who sends this. With `seq` the append may be repeated, and is taken once.
            seq: grows from one append of this producer to the next, and may skip.
        """
        return self._write(rows, Operation.APPEND, producer, seq)

    def upsert(self, rows: Any, *, producer: str | None = None, seq: int | None = None) -> Receipt:
        """Set rows by their key: those that are there are replaced."""
        return self._write(rows, Operation.UPSERT, producer, seq)

    def delete(self, rows: Any, *, producer: str | None = None, seq: int | None = None) -> Receipt:
        """Take rows out: by key where there is one, else whole rows, each once."""
        return self._write(rows, Operation.DELETE, producer, seq)

    def replace(self, lot: str, rows: Any) -> Receipt:
        """Correct a lot that is published: from now on it holds these rows instead.

        It is the lot's next generation: readers have the old rows until it is published, `changes()` gives
        them back with weight -1, views take them out, and arcs make that lot again, and nothing else. Where
        rows have a key this is refused: a correction is another `upsert` there.

        Args:
            lot: its id, see `lots()`.
            rows: all it is to hold, as for `append`; none for an empty lot.
        """
        return correcting.replace(self.pipeline.site, self._decl, lot, rows)

    def remove(self, lot: str, *, why: str = "") -> Receipt:
        """Take a lot back: its rows go from the table and from all that was made from it.

        The lot stays in the list, as removed, and can be given rows again by `replace`.

        Args:
            lot: its id, see `lots()`.
            why: for whoever looks at it later.
        """
        return correcting.remove(self.pipeline.site, self._decl, lot, why=why)

    def address(self) -> "PushAddress":
        """Return where to push its rows now (`tm.http_push`), and the token to show."""
        from tidemill.pipeline import status as overview

        return overview.address_of(self.pipeline, self.name)

    def _write(self, rows: Any, operation: Operation, producer: str | None, seq: int | None) -> Receipt:
        return appending.append(
            self.pipeline.site, self._decl, rows, operation=operation, producer=producer, seq=seq
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
        """Its query; empty for one that is a function."""
        return self.pipeline.views[self.name].sql

    def explain(self) -> "Explanation":
        """How it is kept: its operators, the rung each could have and why, and how it compared with Spark."""
        from tidemill.pipeline import explanation as explaining

        return explaining.explain(self.pipeline, self.name)
