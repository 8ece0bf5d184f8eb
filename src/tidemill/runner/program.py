"""A program: everything that a runner runs for one pipeline, with its code.

Planning a pipeline turns its declarations into a program. The program consists of specs, which are stored,
and functions, which are not. Every process that imports the pipeline gets the same program. Each part carries
a digest of the code that planned it. A process whose code has another digest refuses the part
(`CodeDiffers`).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.arcs.declarations import ArcSpec
from tidemill.lots.checks import Check
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.sources.source import PlannedSource
from tidemill.spark.operations import stored_schema
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.view_tests import ViewTest
from tidemill.views.circuit.operators import ViewOutput as CircuitOutput
from tidemill.views.spark.clock_alarms import ClockUse
from tidemill.views.steps.groups import GroupSpec


@dataclass(frozen=True, kw_only=True)
class ArcProgram:
    """An arc with its function.

    - where: the line of its declaration, for error messages.
    - checks: for each table that it writes, by name, the checks of that table.
    """

    spec: ArcSpec
    function: Callable[..., Any] = field(repr=False)
    where: str
    checks: Mapping[str, tuple[Check, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ViewProgram:
    """A view: its query, and its tables by the names that the query uses.

    - function, reads: instead of a query, a function and the tables whose frames it takes, in this order.
    - code: the digest of everything that decides its result.
    - copied: the views of other groups that it reads, and the views that they read, inputs first. Its group
      computes them too, from `datasets`: groups apply steps at different times.
    - clock: how its query uses the clock; None if it does not.
    - circuit: its query as a circuit, for kernels; None if the query has no circuit.
    - refresh: `full` recomputes the view from scratch, without kernels.
    - checks, failures: the checks of its rows, and the view with the rows that fail.
    - checked: for such a view, the view whose rows it contains.
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
    copied: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    failures: str = ""
    checked: str = ""

    def certified_by(self, certificates: "Mapping[str, ViewCertificate | None]") -> "ViewProgram":
        """Return the view as a step computes it: without its circuit if a part of the circuit is refused.

        - certificates: the certificates of views, by name.
        """
        parts = [certificates.get(name) for name in (self.name, *self.copied)]
        refused = any(each is not None and each.refused for each in parts)
        return replace(self, circuit=None) if refused else self


@dataclass(frozen=True, kw_only=True)
class GroupProgram:
    """A group of views, in the order in which they are computed."""

    spec: GroupSpec
    views: tuple[ViewProgram, ...]


@dataclass(frozen=True)
class TemplateArc:
    """The arc that a template makes for one dataset, and the datasets that this arc reads and writes."""

    arc: ArcProgram
    datasets: Mapping[DatasetId, DatasetRow] = field(default_factory=dict)


MakeTemplateArc = Callable[[str], TemplateArc | None]
"""Makes the arc with this id.

Returns None if its dataset does not exist, and raises an error if the arc is invalid.
"""


class TemplateArcs:
    """The arcs of a program's templates, created when a runner first needs them (HEAP-12).

    The scheduler of any runner creates a template's subscriptions. Only runners that have the template's
    function can run such an arc. A runner creates the arc when it first sees the arc's id, in a due run or
    in a part that another runner submitted. Creating an arc declares its tables. Several runners may do this
    at the same time, because repeating a declaration changes nothing. Several threads may call `find` at the
    same time.

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
        self._arcs: Mapping[str, TemplateArc] = {}

    def template_of(self, arc: str) -> str | None:
        """Return the template that this arc id belongs to, without checking whether the arc exists."""
        template, bracket, _ = arc.partition("[")
        return template if bracket and arc.endswith("]") and template in self.templates else None

    @property
    def arcs(self) -> dict[str, ArcProgram]:
        """The arcs that were created so far."""
        return {name: created.arc for name, created in self._arcs.items()}

    @property
    def datasets(self) -> dict[DatasetId, DatasetRow]:
        """The datasets that these arcs read and write."""
        return {id_: dataset for created in self._arcs.values() for id_, dataset in created.datasets.items()}

    def find(self, arc: str) -> ArcProgram | None:
        """Return the arc with this id, and create it if needed; None if none of our templates has it."""
        created = self._arcs.get(arc)
        if created is not None:
            return created.arc
        if self.template_of(arc) is None:
            return None
        with self._lock:
            created = self._arcs.get(arc) or self._make(arc)
            if created is None:
                return None
            self._arcs = {**self._arcs, arc: created}  # not in place: other threads may be reading it
        return created.arc


@dataclass(frozen=True, kw_only=True)
class Program:
    """One pipeline: the result of planning, and the template arcs that are added while the pipeline runs.

    - tests: the tests that certify views, by view. A view without a test needs no certificate.
    """

    pipeline: str
    datasets: Mapping[DatasetId, DatasetRow]
    arcs: Mapping[str, ArcProgram]
    sources: Mapping[str, PlannedSource]
    groups: Mapping[str, GroupProgram]
    tests: Mapping[str, ViewTest] = field(default_factory=dict, repr=False)
    template_arcs: TemplateArcs = field(default_factory=TemplateArcs, repr=False)

    def knows(self, name: str) -> bool:
        """Return whether the subscription with this name belongs to this pipeline."""
        return name in self.arcs or name in self.groups or self.template_arcs.template_of(name) is not None

    def arc(self, id_: str) -> ArcProgram | None:
        """Return an arc of this pipeline; the arc of a template is created when first needed."""
        return self.arcs.get(id_) or self.template_arcs.find(id_)

    def all_arcs(self) -> dict[str, ArcProgram]:
        """Return the planned arcs, and the template arcs that were created so far."""
        return {**self.arcs, **self.template_arcs.arcs}

    def all_datasets(self) -> dict[DatasetId, DatasetRow]:
        """Return the planned datasets, and those of the template arcs that were created so far."""
        return {**self.template_arcs.datasets, **self.datasets}

    def dataset(self, id_: DatasetId) -> DatasetRow:
        """Return the declaration of a dataset."""
        return self.datasets[id_] if id_ in self.datasets else self.template_arcs.datasets[id_]

    def schema(self, dataset: DatasetId) -> str:
        """Return the columns of a dataset's files, as DDL."""
        declared = self.dataset(dataset)
        return stored_schema(declared.schema, declared.kind)
