"""The declarations of a user, as frozen values, each with its line in the user's file (LOT-1).

Declaring uses neither the store nor Spark. The plan checks declarations and derives stages from them. Every
process that imports the pipeline gets the same declarations.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tidemill.errors import DeclarationError
from tidemill.futures.values.code_digests import code_digest
from tidemill.lots import checks as expectations
from tidemill.lots.checks import Check, has_key
from tidemill.lots.datasets import DatasetRow, Drift, Kind
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.pace import FASTEST, NO_GRACE, Duration, Grace, Pace
from tidemill.pipeline.source_line import SourceLine
from tidemill.sources.source import Source, source_label
from tidemill.views.circuit.functions import UserFunction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Changes = Literal["linear", "raw"]
Refresh = Literal["auto", "incremental", "full"]


@dataclass(frozen=True, kw_only=True)
class DatasetDecl:
    """A table that users or a source write to."""

    dataset: DatasetRow
    schema: str
    line: SourceLine
    checks: tuple[Check, ...] = ()
    keep_s: float | None = None
    keep_rows: bool = False

    @property
    def id(self) -> DatasetId:
        return self.dataset.id

    @property
    def expected(self) -> tuple[Check, ...]:
        """The checks of every append, including the check that each row has a key (LOT-40).

        Sources check keys themselves, because they know the file and the line.
        """
        key = self.dataset.key
        return (*self.checks, has_key(*key)) if key else self.checks

    @property
    def retracts(self) -> bool:
        """Whether rows can be removed, other than by a correction."""
        return self.dataset.kind is not Kind.ROWS


@dataclass(frozen=True, kw_only=True)
class SourceDecl:
    """A source, and the dataset that it fills.

    - name: the name of the source, if the dataset has several; otherwise empty.
    """

    dataset: str
    source: Source
    line: SourceLine
    checks: tuple[Check, ...] = ()
    name: str = ""

    @property
    def label(self) -> str:
        """How the source is called, in messages and on the command line: `orders`, or `orders#csv`."""
        return source_label(self.dataset, self.name)


@dataclass(frozen=True, kw_only=True)
class SinkDecl:
    """A table that an arc writes. Without `schema`, Spark derives the schema from the function (LOT-44)."""

    name: str
    partition_by: tuple[str, ...] = ()
    schema: str | None = None
    checks: tuple[Check, ...] = ()
    drift: Drift = Drift.FREEZE
    keep_s: float | None = None
    keep_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class ArcDecl:
    """A function that reads and writes lots; a template, if the first table it reads is a pattern.

    - template: the name of the template that created this arc, if any.
    """

    name: str
    reads: tuple[str, ...]
    sinks: tuple[SinkDecl, ...]
    function: Callable[..., Any] = field(repr=False)
    retries: int = 3
    parts: int = 8
    max_concurrent: int = 1
    changes: Changes | None = None
    pace: Pace = FASTEST
    grace: Grace = NO_GRACE
    enabled: bool = True
    template: str = ""
    line: SourceLine


@dataclass(frozen=True, kw_only=True)
class FunctionDecl:
    """A Python function that queries of views call by its name.

    - returns: the Spark type of its result.
    - deterministic: whether it always returns the same value for the same arguments.
    """

    name: str
    function: Callable[..., Any] = field(repr=False)
    returns: str
    deterministic: bool
    line: SourceLine

    @cached_property
    def declared(self) -> UserFunction:
        """What the compiler knows about the function; the digest changes with its code."""
        code = code_digest(self.function).hex()
        digest = hashlib.sha256(repr((code, self.returns, self.deterministic)).encode()).hexdigest()
        return UserFunction(self.name, digest[:32], self.deterministic)

    def register(self, spark: "SparkSession") -> None:
        """Let queries of this session call the function."""
        from pyspark.sql.functions import udf

        function = udf(self.function, self.returns)
        spark.udf.register(self.name, function if self.deterministic else function.asNondeterministic())


@dataclass(frozen=True, kw_only=True)
class ViewDecl:
    """A query whose result is kept up to date, or a function over DataFrames (DBSP-18).

    - reads: the tables of a function, in the order of its arguments.
    - linear, keyed_by: what the user declares about a function, so that a step need not run it on whole
      tables.
    - checks, failures: the checks of its rows, and the view with the rows that fail.
    - checked: for such a view, the view whose rows it contains.
    """

    name: str
    sql: str = ""
    function: Callable[..., Any] | None = field(default=None, repr=False)
    reads: tuple[str, ...] = ()
    linear: bool = False
    keyed_by: tuple[str, ...] = ()
    group: str
    refresh: Refresh = "auto"
    pace: Pace = FASTEST
    keep_s: float | None = None
    line: SourceLine
    checks: tuple[Check, ...] = ()
    failures: str = ""
    checked: str = ""

    @property
    def declared(self) -> str:
        """What the user declares about a function, as text: linear, keyed by columns, or full."""
        by = f"keyed by {', '.join(self.keyed_by)}" if self.keyed_by else "full"
        return "linear" if self.linear else by


def drift_of(text: str) -> Drift:
    """Return what to do with columns that are not declared."""
    if text not in list(Drift):
        raise DeclarationError(f"invalid drift={text!r}", hint="use freeze, evolve or rescue")
    return Drift(text)


def check_keep_rows(name: str, keep: Duration, *, keep_rows: bool) -> None:
    """Check that a table that keeps the rows of older lots has such lots."""
    if keep_rows and keep is None:
        raise DeclarationError(
            f"{name} has keep_rows=True but no keep=, so it keeps all lots",
            hint='add keep=, like keep="P30D", or omit keep_rows',
        )


def sinks_of(
    writes: str | Sequence[str] | Mapping[str, str],
    *,
    partition_by: str | Sequence[str],
    schema: str | None,
    checks: Sequence[Check] | Mapping[str, Sequence[Check]],
    drift: str,
    keep_s: float | None = None,
    keep_rows: bool = False,
) -> tuple[SinkDecl, ...]:
    """Return the tables that an arc writes, from the arguments of `Pipeline.arc`."""
    by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if drift not in (Drift.FREEZE, Drift.EVOLVE):
        raise DeclarationError(f"drift={drift!r} is not valid for an arc", hint="use freeze or evolve")
    tables = _tables(writes, schema)
    checks_of = _checks_by_table([name for name, _ in tables], checks)
    return tuple(
        SinkDecl(
            name=name,
            partition_by=by,
            schema=ddl,
            checks=expectations.validate(checks_of.get(name, ())),
            drift=Drift(drift),
            keep_s=keep_s,
            keep_rows=keep_rows,
        )
        for name, ddl in tables
    )


def _tables(
    writes: str | Sequence[str] | Mapping[str, str], schema: str | None
) -> Sequence[tuple[str, str | None]]:
    """Return the names of the tables, each with its schema if it is declared."""
    if isinstance(writes, Mapping):
        return list(writes.items())
    names = (writes,) if isinstance(writes, str) else tuple(writes)
    if schema is not None and len(names) != 1:
        raise DeclarationError(
            f"schema= is one schema, but the arc writes {len(names)} tables",
            hint="pass a dictionary: writes={name: schema}",
        )
    return [(name, schema) for name in names]


def _checks_by_table(
    names: Sequence[str], checks: Sequence[Check] | Mapping[str, Sequence[Check]]
) -> Mapping[str, Sequence[Check]]:
    if not isinstance(checks, Mapping):
        if checks and len(names) > 1:
            raise DeclarationError(
                f"checks= is one list, but the arc writes {len(names)} tables",
                hint="pass a dictionary: checks={name: […]}",
            )
        return dict.fromkeys(names, checks)
    unknown = [name for name in checks if name not in names]
    if unknown:
        raise DeclarationError(
            f"checks= refers to {unknown[0]}, but the arc does not write it",
            hint=f"use one of {', '.join(names)}",
        )
    return checks
