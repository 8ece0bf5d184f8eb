"""What a user declared, before anything of it is done: frozen values, each with its line (LOT-1).

Declaring touches neither a store nor Spark. `plan` turns declarations into steps, and says what is wrong with
them; the same declarations are made by every process that imports the pipeline.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tidemill.lots.checks import Check, has_key
from tidemill.lots.datasets import Dataset, Drift, Kind
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.pace import FASTEST, NO_GRACE, Grace, Pace
from tidemill.pipeline.source_line import Line
from tidemill.sources.source import Source

Changes = Literal["linear", "raw"]
Refresh = Literal["auto", "incremental", "full"]


@dataclass(frozen=True, kw_only=True)
class DatasetDecl:
    """A table that somebody writes to."""

    dataset: Dataset
    schema: str
    line: Line
    checks: tuple[Check, ...] = ()

    @property
    def id(self) -> DatasetId:
        return self.dataset.id

    @property
    def expected(self) -> tuple[Check, ...]:
        """What every append must pass: the checks, and that each row has its key (LOT-40). Sources see to
        keys themselves, where they still know the file and the line.
        """
        key = self.dataset.key
        return (*self.checks, has_key(*key)) if key else self.checks

    @property
    def retracts(self) -> bool:
        """Can rows of it go away again, other than by a correction?"""
        return self.dataset.kind is not Kind.ROWS


@dataclass(frozen=True, kw_only=True)
class SourceDecl:
    """A source, and the dataset that it fills."""

    dataset: str
    source: Source
    line: Line
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SinkDecl:
    """One table an arc writes; its schema is what Spark makes of the function unless it is given (LOT-44)."""

    name: str
    partition_by: tuple[str, ...] = ()
    schema: str | None = None
    checks: tuple[Check, ...] = ()
    drift: Drift = Drift.FREEZE


@dataclass(frozen=True, kw_only=True)
class ArcDecl:
    """A function from lots to lots; or a template, if the first table it reads is a pattern.

    - template: of a template's child, that template.
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
    line: Line


@dataclass(frozen=True, kw_only=True)
class ViewDecl:
    """A query whose result is kept up to date; or a function over frames of what it reads (DBSP-18).

    - reads: of a function, in the order of its arguments.
    - linear, keyed_by: what a function is declared to be, so that it need not always be run on whole tables.
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
    line: Line

    @property
    def declared(self) -> str:
        """What a function is declared to be."""
        by = f"keyed by {', '.join(self.keyed_by)}" if self.keyed_by else "full"
        return "linear" if self.linear else by
