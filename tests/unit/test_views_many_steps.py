"""Hundreds of steps in memory: no step rewrites or writes more than a bound."""

import random
import statistics

import pyarrow as pa
import pytest

from tests.unit.single_operator import SingleOperator
from tidemill.views.chain.native_operators import StatefulAggregate
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel
from tidemill.views.trace import merge_plan
from tidemill.views.trace.hash_space import GRAINS

INT, BIG = pa.int32(), pa.int64()
BASE, STEPS, CHANGES, BUDGET = 10_000, 300, 40, 2_000
AGGS = (
    GroupAggregate("count", None, "n"),
    GroupAggregate("sum", "v0", "total"),
    GroupAggregate("max", "v0", "most"),
)
GROUPS = GroupKernel(pa.schema([("k0", INT)]), pa.schema([("v0", BIG)]), AGGS)


@pytest.mark.slow
@pytest.mark.rule("DBSP-47")
def test_no_step_rewrites_or_writes_more_than_its_bound_even_if_it_merges_the_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_plan, "FLOOR_ROWS", BUDGET)
    operator = SingleOperator(StatefulAggregate(GROUPS, (BIG, BIG, BIG)), ((INT, BIG),))
    rng = random.Random(4)

    def rows(count: int) -> list[tuple[tuple[int, int], int]]:
        return [((rng.randrange(BASE // 2), rng.randrange(1 << 40)), 1) for _ in range(count)]

    base = rows(BASE)
    operator.step({0: base}, first=True)
    loaded = operator.objects.head("step-1/0").size
    merged: list[int] = []
    sizes: list[int] = []
    for step in range(STEPS):
        operator.output.clear()  # not needed here; adding it up takes time
        deleted = [(row, -1) for row, _ in base[step * 5 : step * 5 + 5]]
        operator.step({0: [*rows(CHANGES), *deleted]}, pieces=1)
        (report,) = operator.reports
        rewritten = dict.fromkeys(operator.chain.traces, 0)
        for merge in report.changes.merged:
            rewritten[merge.trace] += merge.entry.rows if merge.entry else 0
        merged.append(max(rewritten.values()))
        sizes.append(operator.objects.head(f"step-{operator.version.step}/0").size)
    assert max(merged) <= 1.5 * BUDGET
    assert sum(merged) > BASE, "each row of the base was rewritten"
    for runs in operator.version.traces.values():
        left = [entry.high - entry.low + 1 for entry in runs if entry.file == "step-1/0"]
        assert sum(left) < GRAINS, "the base was merged"
    assert max(sizes) < loaded / 3
    assert statistics.median(sizes) < loaded / 10
    assert max(map(len, operator.version.traces.values())) < 150
