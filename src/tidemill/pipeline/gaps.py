"""Find gaps in a pipeline's tables: lots that are expected but not published, with the reason (LOT-32).

All information comes from the store. Object storage and Spark are not used.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidemill.arcs.gaps import Cause, Coverage, Gap, Gaps, GapState
from tidemill.arcs.inventory import ALL, LATE_S, Inventory
from tidemill.arcs.keys import ArcKeys
from tidemill.errors import DeclarationError
from tidemill.obs.lines import counted
from tidemill.pipeline import graph
from tidemill.pipeline.graph import Bound
from tidemill.pipeline.notebook import preformatted
from tidemill.sources.keys import SourceKeys
from tidemill.sources.source import PendingWindow, source_id

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


class GapReport(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps in a pipeline's tables. The report is true if there are no gaps.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT")
    >>> bool(shop.gaps()), shop.gaps().gaps
    (True, [])
    """

    pipeline: str
    tables: tuple[Coverage, ...]

    @property
    def gaps(self) -> list[Gap]:
        """All gaps, table by table."""
        return [gap for table in self.tables for gap in table.gaps]

    def __bool__(self) -> bool:
        return not any(table.gaps for table in self.tables)

    def __str__(self) -> str:
        lines = []
        for table in self.tables:
            lines.append(
                f"{table.table}: {counted(len(table.gaps), 'gap')} in {counted(table.expected, 'lot')}"
            )
            lines += [f"  {gap.lot} {gap.state.value}: {gap.cause.why}" for gap in table.gaps[:20]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return preformatted(str(self))


def gaps_of(
    pipeline: "Pipeline",
    tables: Iterable[str] = (),
    *,
    first: Bound = None,
    last: Bound = None,
    late_s: float = LATE_S,
) -> GapReport:
    """Return the gaps in these tables, or in all tables. For a view, return the gaps in the tables it reads.

    - first, last: the range of lots to check, both included.
    - late_s: how many seconds after the end of its interval a lot is expected.
    """
    names = _table_names(pipeline, tables)
    context = pipeline.context
    keys, specs = ArcKeys(context.place.cluster), graph.specs(pipeline)
    coverages = []
    by_span: dict[object, Gaps] = {}
    for name in names:
        span = ALL if first is None and last is None else graph.span(pipeline, name, first, last)
        if span not in by_span:
            by_span[span] = Gaps(Inventory(context.store, keys, specs, span, late_s=late_s))
        coverage = by_span[span].of(graph.id_of(pipeline, name))
        coverages.append(_with_windows(pipeline, name, coverage))
    return GapReport(pipeline=pipeline.name, tables=tuple(coverages))


def _table_names(pipeline: "Pipeline", tables: Iterable[str]) -> list[str]:
    names = list(tables) or [name for name in pipeline.names if name not in pipeline.views]
    base_tables: dict[str, None] = {}
    for name in names:
        if name not in pipeline.names:
            raise DeclarationError(
                f"the pipeline {pipeline.name} has no table {name!r}",
                hint=f"use one of its tables: {', '.join(pipeline.names) or '(none)'}",
            )
        base_tables |= dict.fromkeys(graph.read_by(pipeline, name) if name in pipeline.views else [name])
    return list(base_tables)


def _with_windows(pipeline: "Pipeline", name: str, coverage: Coverage) -> Coverage:
    """Add the files that the sources of a table have listed but not published yet."""
    keys = SourceKeys(pipeline.context.place.cluster)
    pending: list[PendingWindow] = []
    for decl in pipeline.sources_of(name):
        id_ = source_id(pipeline.name, decl.label)
        read = partial(decl.source.status, keys=keys, source=id_)
        pending += pipeline.context.store.run(read).pending
    gaps = []
    for window in pending:
        lot = window.lot or f"window {window.number}"
        files = counted(window.files, "file")
        if window.error:
            state, why = GapState.MISSING, f"{files} could not be read: {window.error}"
        elif window.node:
            state, why = GapState.RUNNING, f"{window.node} is reading {files}"
        else:
            state, why = GapState.ABSENT, f"{files}, not published yet"
        gaps.append(Gap(name, lot, state, Cause(name, "", state, why)))
    return msgspec.structs.replace(
        coverage, expected=coverage.expected + len(gaps), gaps=(*coverage.gaps, *gaps)
    )
