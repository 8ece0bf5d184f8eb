"""Gaps of a pipeline's tables: what should be there and is not, and where that began (LOT-32).

From the store alone: neither an object nor Spark is needed to know it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from tidemill.arcs.census import ALL, LATE_S, Census
from tidemill.arcs.gaps import Cause, Coverage, Gap, Gaps, GapState
from tidemill.arcs.keys import ArcKeys
from tidemill.errors import DeclarationError
from tidemill.pipeline import graph
from tidemill.pipeline.graph import Bound
from tidemill.sources.keys import SourceKeys

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


class GapReport(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps of a pipeline's tables. True when there are none.

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
        """All of them, table by table."""
        return [gap for table in self.tables for gap in table.gaps]

    def __bool__(self) -> bool:
        return not any(table.gaps for table in self.tables)

    def __str__(self) -> str:
        lines = []
        for table in self.tables:
            lines.append(f"{table.table}: {len(table.gaps)} gaps in {table.expected} lots")
            lines += [f"  {gap.lot} {gap.state.value}: {gap.cause.why}" for gap in table.gaps[:20]]
        return "\n".join(lines)


def gaps_of(
    pipeline: "Pipeline",
    tables: Iterable[str] = (),
    *,
    first: Bound = None,
    last: Bound = None,
    late_s: float = LATE_S,
) -> GapReport:
    """The gaps of these tables, or of all; of a view those of the tables it is made from.

    - first, last: look at these lots only, both included.
    - late_s: how long after its end an interval's lot is expected.
    """
    names = _named(pipeline, tables)
    site = pipeline.site
    keys, specs = ArcKeys(site.place.cluster), graph.specs(pipeline)
    found = []
    censuses: dict[object, Gaps] = {}
    for name in names:
        unit = graph.unit_of(pipeline, name)
        span = ALL if first is None and last is None else graph.span(unit, first, last)
        if span not in censuses:
            censuses[span] = Gaps(Census(site.store, keys, specs, span, late_s=late_s))
        covered = censuses[span].of(graph.id_of(pipeline, name))
        found.append(_with_windows(pipeline, name, covered) if name in pipeline.sources else covered)
    return GapReport(pipeline=pipeline.name, tables=tuple(found))


def _named(pipeline: "Pipeline", tables: Iterable[str]) -> list[str]:
    names = list(tables) or [name for name in pipeline.names if name not in pipeline.views]
    found: dict[str, None] = {}
    for name in names:
        if name not in pipeline.names:
            raise DeclarationError(
                f"the pipeline {pipeline.name} has no table {name!r}",
                hint=f"there are {', '.join(pipeline.names) or 'none'}",
            )
        found |= dict.fromkeys(graph.read_by(pipeline, name) if name in pipeline.views else [name])
    return list(found)


def _with_windows(pipeline: "Pipeline", name: str, covered: Coverage) -> Coverage:
    """With the files that a source has taken and not published yet."""
    site, source = pipeline.site, pipeline.sources[name].source
    keys = SourceKeys(site.place.cluster)
    gaps = []
    for window in site.store.run(lambda tx: source.status(tx, keys, pipeline.name, name)).pending:
        lot = window.lot or f"window {window.number}"
        what = f"{window.files} files taken"
        if window.error:
            state, why = GapState.MISSING, f"{what}, not read: {window.error}"
        elif window.node:
            state, why = GapState.RUNNING, f"{what}, on {window.node}"
        else:
            state, why = GapState.ABSENT, f"{what}, not published yet"
        gaps.append(Gap(name, lot, state, Cause(name, "", state, why)))
    return msgspec.structs.replace(
        covered, expected=covered.expected + len(gaps), gaps=(*covered.gaps, *gaps)
    )
