"""The catalog: the tables, arcs and view groups that the store knows, in the order of the data flow.

It reads declarations only. A cluster has few of them compared with lots and futures.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

from tidemill.arcs import declarations
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.lots import datasets, owners
from tidemill.lots.checks import quarantine_of
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.store import Store, Tx
from tidemill.views.steps import groups
from tidemill.views.steps.groups import ViewGroup, ViewSpec
from tidemill.views.steps.keys import StepKeys

PAGE = 500
MOST = 20_000
"""The maximum number of datasets, of arcs and of groups that the page shows."""

T = TypeVar("T")


@dataclass(frozen=True)
class ViewEntry:
    """A view, its group, and the pipeline of the group."""

    pipeline: str
    group: ViewGroup
    spec: ViewSpec

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True)
class Declarations:
    """The declarations of a cluster.

    Args:
        datasets: the declared datasets, by id, and their rows.
        owners: the pipelines of each dataset, with the time at which each retired it, or 0.
        arcs: the arcs, by id.
        groups: the view groups, each with its pipeline.
    """

    datasets: dict[DatasetId, DatasetRow]
    owners: dict[DatasetId, dict[str, int]]
    arcs: dict[str, ArcSpec]
    groups: list[tuple[str, ViewGroup]]

    @cached_property
    def pipelines(self) -> tuple[str, ...]:
        """The names of all pipelines."""
        names = {name for pipelines in self.owners.values() for name in pipelines}
        names |= {spec.pipeline for spec in self.arcs.values()} | {name for name, _ in self.groups}
        return tuple(sorted(names))

    @cached_property
    def makers(self) -> dict[DatasetId, ArcSpec]:
        """The arc that writes each table."""
        return {sink.dataset: spec for spec in self.arcs.values() for sink in spec.sinks}

    @cached_property
    def views(self) -> dict[tuple[str, str], ViewEntry]:
        """The views, by pipeline and name."""
        return {
            (pipeline, spec.name): ViewEntry(pipeline, group, spec)
            for pipeline, group in self.groups
            for spec in group.spec.views
        }

    @cached_property
    def quarantines(self) -> dict[DatasetId, DatasetId]:
        """The tables that have a quarantine, by the id of the quarantine."""
        pairs = {quarantine_of(dataset): dataset for dataset in self.datasets}
        return {quarantine: owner for quarantine, owner in pairs.items() if quarantine in self.datasets}

    def base(self, table: DatasetId) -> DatasetId:
        """Return the dataset at the beginning of a table's arcs: both have the same lot ids."""
        visited = {table}
        while (spec := self.makers.get(table)) is not None and spec.reads[0] not in visited:
            table = spec.reads[0]
            visited.add(table)
        return table

    @cached_property
    def ordered(self) -> list[DatasetId]:
        """All tables except views: inputs before outputs, each quarantine after its table."""
        depths: dict[DatasetId, int] = {}

        def depth(table: DatasetId) -> int:
            if table not in depths:
                depths[table] = 0  # in case arcs form a circle
                spec = self.makers.get(table)
                depths[table] = 0 if spec is None else 1 + max(depth(read) for read in spec.reads)
            return depths[table]

        def place(table: DatasetId) -> tuple[str, int, DatasetId, bool]:
            owner = self.quarantines.get(table, table)
            return self.base(owner).name, depth(owner), owner, table != owner

        return sorted(self.datasets, key=place)

    def is_retired(self, table: DatasetId) -> bool:
        """Return whether no pipeline declares the table any more."""
        pipelines = self.owners.get(table, {})
        return bool(pipelines) and all(pipelines.values())


def read(store: Store, keys: StepKeys, arc_keys: ArcKeys) -> Declarations:
    """Read the declarations of a cluster."""
    declared = _pages(
        store,
        lambda tx, last: datasets.listed(tx, keys.lots, last.id if last else None, PAGE),
    )
    specs = _pages(store, lambda tx, last: declarations.listed(tx, arc_keys, last.id if last else "", PAGE))
    return Declarations(
        datasets={row.id: row for row in declared},
        owners=owners.listed(store, keys.lots),
        arcs={spec.id: spec for spec in specs},
        groups=store.run(partial(groups.listed_all, keys=keys, limit=MOST)),
    )


def _pages(store: Store, page_after: Callable[[Tx, T | None], Sequence[T]]) -> Iterator[T]:
    last: T | None = None
    for _ in range(MOST // PAGE):
        page = store.run(lambda tx, last=last: page_after(tx, last))  # type: ignore[misc]
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1]
