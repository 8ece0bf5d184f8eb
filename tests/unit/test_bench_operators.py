"""What bench.operators measures: rows that depend on their id alone, and changes of the promised size."""

import numpy as np
import pyarrow as pa

from bench.operators import CASES, CHANGED, GROUP, Shape

KEYS = (
    *("outer", "semi", "distinct", "row_number", "topk", "global_topk", "scalar", "band", "session"),
    *("null_keys", "wide", "hot_key", "deep10_ms_per_level"),
)


def test_every_figure_has_a_target() -> None:
    assert {name for name, case in CASES.items() if case.target is not None} == set(KEYS)


def test_a_row_depends_on_its_id_alone() -> None:
    shape, ids = Shape(nulls=0.2), np.arange(100_000)
    rows = shape.facts(ids, 5_000)
    assert rows.take([7, 99_000]).equals(shape.facts(np.array([7, 99_000]), 5_000).combine_chunks())
    assert abs(rows["k"].null_count / len(ids) - 0.2) < 0.01
    assert len(set(rows["k"].drop_null().to_pylist())) == 5_000


def test_new_rows_of_a_hot_group_change_ten_of_its_first_rows() -> None:
    groups, half = 5_000, CHANGED // 2
    base = np.arange(groups * GROUP)
    new = np.arange(len(base), len(base) + half)
    shape = CASES["hot_key"].shape
    before, added = shape.facts(base, groups), shape.facts(new, groups)
    hot = np.asarray(before["k"]) == 0
    assert abs(hot.mean() - shape.hot) < 0.01
    assert set(added["k"].to_pylist()) == {0}

    def first_ten(*tables: pa.Table) -> set[int]:
        rows = pa.concat_tables(tables)
        rows = rows.filter(pa.array(np.asarray(rows["k"]) == 0)).sort_by("v")
        return set(rows["id"].slice(0, 10).to_pylist())

    assert len(first_ten(before) ^ first_ten(before, added)) == 10
