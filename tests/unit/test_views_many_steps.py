"""Hundreds of steps over a base, in process: what one of them rewrites and writes stays within a bound."""

import random
import statistics

import pyarrow as pa
import pytest

from tests.unit.chain_stage import Alone
from tidemill.views.chain.native_operators import StatefulAggregate
from tidemill.views.kernels.group_by import GroupAggregate, GroupKernel
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
def test_no_step_of_hundreds_rewrites_or_writes_more_than_its_bound_though_the_base_is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_plan, "FLOOR_ROWS", BUDGET)
    operator = Alone(StatefulAggregate(GROUPS, (BIG, BIG, BIG)), ((INT, BIG),))
    chance = random.Random(4)

    def rows(count: int) -> list[tuple[tuple[int, int], int]]:
        return [((chance.randrange(BASE // 2), chance.randrange(1 << 40)), 1) for _ in range(count)]

    base = rows(BASE)
    operator.step({0: base}, first=True)
    loaded = operator.objects.head("step-1/0").size
    merged: list[int] = []
    sizes: list[int] = []
    for step in range(STEPS):
        operator.given.clear()  # what it came to is of no interest here, and is added up with each step
        gone = [(row, -1) for row, _ in base[step * 5 : step * 5 + 5]]
        operator.step({0: [*rows(CHANGES), *gone]}, pieces=1)
        (told,) = operator.told
        rewritten = dict.fromkeys(operator.chain.traces, 0)
        for one in told.changes.merged:
            rewritten[one.trace] += one.entry.rows if one.entry else 0
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
