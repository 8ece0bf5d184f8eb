"""The health of a cluster over time: steps of views, changed rows, latency and state."""

from collections.abc import Iterable, Iterator
from functools import partial

from tidemill.store import Tx
from tidemill.ui.model.answers import HealthBucket, HealthPage
from tidemill.ui.model.reader import StoreReader
from tidemill.views.steps import commits, records
from tidemill.views.steps.commits import StepRow

MOST_STEPS = 200
"""How many steps of a group are read at most."""

MOST_GROUPS = 20
BUCKETS = 48
SPANS_S = (60, 300, 900, 3600, 6 * 3600)
"""How much time a bucket may cover. The shortest that shows all steps which were read is chosen."""


def read(reader: StoreReader) -> HealthPage:
    """Return the steps of the last hours or days, in buckets of equal length."""
    groups = reader.catalog().groups[:MOST_GROUPS]
    steps = [
        reader.run(partial(_steps, reader=reader, pipeline=pipeline, group=group.spec.name))
        for pipeline, group in groups
    ]
    times = [row.wall_at / 1e6 for rows in steps for row, _ in rows]
    now = max([reader.clock.wall(), *times])  # the clocks of nodes differ a little
    oldest = min(times, default=now)
    every_s = next((span for span in SPANS_S if now - oldest <= span * BUCKETS), SPANS_S[-1])
    first = (int(now) // every_s - BUCKETS + 1) * every_s
    return HealthPage(items=tuple(_buckets(steps, first, every_s)), every_s=every_s)


def _steps(tx: Tx, reader: StoreReader, pipeline: str, group: str) -> list[tuple[StepRow, float]]:
    """Return the last steps of a group, oldest first, each with its latency in seconds; -1 if unknown."""
    rows = commits.newest(tx, reader.keys, pipeline, group, MOST_STEPS)
    if not rows:
        return []
    count = min(MOST_STEPS, rows[0].step - rows[-1].after)
    began = {
        record.number: record.now
        for record in records.read(tx, reader.keys, pipeline, rows[0].step - count, count)
    }
    return [
        (row, max(0, row.wall_at - began[row.step]) / 1e6 if row.step in began else -1.0)
        for row in reversed(rows)
    ]


def _buckets(
    groups: Iterable[list[tuple[StepRow, float]]], first: float, every_s: float
) -> Iterator[HealthBucket]:
    """Yield the buckets from `first` on. State is carried on from the step before a bucket."""
    steps = [0] * BUCKETS
    rows = [0] * BUCKETS
    state = [0] * BUCKETS
    latencies: list[list[float]] = [[] for _ in range(BUCKETS)]
    for group in groups:
        sizes: dict[int, int] = {}
        for row, latency_s in group:
            place = int((row.wall_at / 1e6 - first) // every_s)
            sizes[max(place, 0)] = row.state_bytes
            if not 0 <= place < BUCKETS:
                continue
            steps[place] += 1
            rows[place] += sum(output.rows for output in row.outputs if output.changes)
            if latency_s >= 0:
                latencies[place].append(latency_s)
        size = 0
        for place in range(BUCKETS):
            size = sizes.get(place, size)
            state[place] += size
    for place in range(BUCKETS):
        known = latencies[place]
        yield HealthBucket(
            at=first + place * every_s,
            steps=steps[place],
            rows=rows[place],
            latency_s=sum(known) / len(known) if known else 0.0,
            state_size=state[place],
        )
