"""A program: all that a runner runs of one pipeline, with its code.

A pipeline's declarations become a program when it is planned: specs that are stored, and functions that are
not. Every process that imports the pipeline makes the same program; where one has other code, the digests
differ, and a part of the other code's is refused (`CodeDiffers`) instead of run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.arcs.declarations import ArcSpec
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Dataset
from tidemill.lots.keys import DatasetId
from tidemill.runner.children import Children
from tidemill.sources.source import PlannedSource
from tidemill.spark.operations import stored_schema
from tidemill.views.circuit.operators import ViewOutput as CircuitOutput
from tidemill.views.spark.clock_alarms import ClockUse
from tidemill.views.steps.groups import GroupSpec


@dataclass(frozen=True, kw_only=True)
class ArcProgram:
    """An arc with its function; `where` is its line, for errors; what is expected of its tables, by name."""

    spec: ArcSpec
    function: Callable[..., Any] = field(repr=False)
    where: str
    checks: Mapping[str, tuple[Check, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ViewProgram:
    """A view: its query, and the tables by the names the query has for them.

    - function, reads: instead of a query, a function over frames of these tables, in this order.
    - code: the digest of all that decides its result.
    - clock: what its query asks of the clock; None for one that does not ask.
    - circuit: its query as a circuit, for kernels; None where there is none.
    - refresh: `full` keeps it away from them.
    """

    name: str
    sql: str
    schema: str
    datasets: Mapping[str, DatasetId]
    views: tuple[str, ...]
    where: str
    code: str
    function: Callable[..., Any] | None = field(default=None, repr=False)
    reads: tuple[str, ...] = ()
    clock: ClockUse | None = field(default=None, repr=False)
    circuit: CircuitOutput | None = field(default=None, repr=False)
    refresh: str = "auto"


@dataclass(frozen=True, kw_only=True)
class GroupProgram:
    """A group of views, in the order in which they are computed."""

    spec: GroupSpec
    views: tuple[ViewProgram, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """One pipeline. What is planned stands in its fields; `children` come to it while it runs."""

    pipeline: str
    datasets: Mapping[DatasetId, Dataset]
    arcs: Mapping[str, ArcProgram]
    sources: Mapping[str, PlannedSource]
    groups: Mapping[str, GroupProgram]
    children: Children = field(default_factory=Children, repr=False)

    def knows(self, name: str) -> bool:
        """Is a subscription of this name ours to run?"""
        return name in self.arcs or name in self.groups or self.children.template_of(name) is not None

    def arc(self, id_: str) -> ArcProgram | None:
        """An arc of ours; a template's child is made when it is first asked for."""
        return self.arcs.get(id_) or self.children.find(id_)

    def all_arcs(self) -> dict[str, ArcProgram]:
        """Those that were planned, and those that came since."""
        return {**self.arcs, **self.children.arcs}

    def all_datasets(self) -> dict[DatasetId, Dataset]:
        """All tables of lots, of what was planned and of what came since."""
        return {**self.children.datasets, **self.datasets}

    def dataset(self, id_: DatasetId) -> Dataset:
        """A table of lots."""
        return self.datasets[id_] if id_ in self.datasets else self.children.datasets[id_]

    def schema(self, dataset: DatasetId) -> str:
        """The columns of a dataset's files, as DDL."""
        declared = self.dataset(dataset)
        return stored_schema(declared.schema, declared.kind)
