"""A program: all that a runner runs of one pipeline, with its code.

A pipeline's declarations become a program when it is planned: specs that are stored, and functions that are
not. Every process that imports the pipeline makes the same program; where one has other code, the digests
differ, and a part of the other code's is refused (`CodeDiffers`) instead of run.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.arcs.declarations import ArcSpec
from tidemill.lots.checks import Check
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
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


@dataclass(frozen=True)
class TemplateArc:
    """An arc of a template for one dataset, and the datasets that it reads and writes."""

    arc: ArcProgram
    datasets: Mapping[DatasetId, DatasetRow] = field(default_factory=dict)


MakeTemplateArc = Callable[[str], TemplateArc | None]
"""Makes the arc of this id; None when its dataset does not exist. Raises what is wrong with it."""


class TemplateArcs:
    """The arcs of a program's templates, made when a runner first meets their names (HEAP-12).

    The scheduler of any runner makes a template's subscriptions. Only runners that have the template's
    function know what such an arc runs. They make it when they first meet its id, in a run that is due or in
    a part that another runner has listed. Making one declares its tables. Several runners may do it at once,
    because declaring the same again changes nothing. Several threads may call `find` at once.

    Args:
        templates: the ids of the templates.
        make: makes an arc.
    """

    def __init__(
        self, templates: frozenset[str] = frozenset(), make: MakeTemplateArc = lambda _: None
    ) -> None:
        self.templates = templates
        self._make = make
        self._lock = threading.Lock()
        self._made: Mapping[str, TemplateArc] = {}

    def template_of(self, arc: str) -> str | None:
        """Return the template that an arc of this id belongs to, by its name alone."""
        template, bracket, _ = arc.partition("[")
        return template if bracket and arc.endswith("]") and template in self.templates else None

    @property
    def arcs(self) -> dict[str, ArcProgram]:
        """The arcs that were made so far."""
        return {name: made.arc for name, made in self._made.items()}

    @property
    def datasets(self) -> dict[DatasetId, DatasetRow]:
        """The datasets that the arcs made so far read and write."""
        return {id_: dataset for made in self._made.values() for id_, dataset in made.datasets.items()}

    def find(self, arc: str) -> ArcProgram | None:
        """Return the arc of this id, made if necessary; None if no template of ours has it."""
        made = self._made.get(arc)
        if made is not None:
            return made.arc
        if self.template_of(arc) is None:
            return None
        with self._lock:
            made = self._made.get(arc) or self._make(arc)
            if made is None:
                return None
            self._made = {**self._made, arc: made}  # not in place: other threads may be reading it
        return made.arc


@dataclass(frozen=True, kw_only=True)
class Program:
    """One pipeline: what was planned, and the arcs of templates that are added while it runs."""

    pipeline: str
    datasets: Mapping[DatasetId, DatasetRow]
    arcs: Mapping[str, ArcProgram]
    sources: Mapping[str, PlannedSource]
    groups: Mapping[str, GroupProgram]
    template_arcs: TemplateArcs = field(default_factory=TemplateArcs, repr=False)

    def knows(self, name: str) -> bool:
        """Whether a subscription of this name is ours to run."""
        return name in self.arcs or name in self.groups or self.template_arcs.template_of(name) is not None

    def arc(self, id_: str) -> ArcProgram | None:
        """Return an arc of ours; one of a template is made when it is first needed."""
        return self.arcs.get(id_) or self.template_arcs.find(id_)

    def all_arcs(self) -> dict[str, ArcProgram]:
        """Return the arcs that were planned, and those of templates so far."""
        return {**self.arcs, **self.template_arcs.arcs}

    def all_datasets(self) -> dict[DatasetId, DatasetRow]:
        """Return all datasets, those that were planned and those of templates so far."""
        return {**self.template_arcs.datasets, **self.datasets}

    def dataset(self, id_: DatasetId) -> DatasetRow:
        """Return the declaration of a dataset."""
        return self.datasets[id_] if id_ in self.datasets else self.template_arcs.datasets[id_]

    def schema(self, dataset: DatasetId) -> str:
        """Return the columns of a dataset's files, as DDL."""
        declared = self.dataset(dataset)
        return stored_schema(declared.schema, declared.kind)
