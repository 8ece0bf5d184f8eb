"""The windows of a view's table that a step rewrites: within its budget, and every row counts once."""

import random
from collections import Counter
from typing import Any

import pytest

from tidemill.lots import manifest
from tidemill.lots.manifest import Manifest, ManifestState, StoredObject
from tidemill.views.spark import table_pieces
from tidemill.views.spark.table_pieces import (
    EVERY,
    FAN,
    TablePiece,
    listing,
    overlap,
    pieces_after_merge,
    pieces_of,
    plan_windows,
    run_of,
    window_budget,
)
from tidemill.views.trace.hash_space import GRAINS


class Model:
    """A table with rows (grain, number) and weights, and the rows of all its runs."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.runs: dict[str, Counter[tuple[int, int]]] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.pieces: list[TablePiece] = []
        self.truth: Counter[tuple[int, int]] = Counter()
        self.rewritten = 0

    def step(self, inserted: int, deleted: int = 0) -> None:
        """Apply the changes of a step, and its merges."""
        change: Counter[tuple[int, int]] = Counter()
        for _ in range(inserted):
            change[self.rng.randrange(GRAINS), self.rng.randrange(1 << 40)] += 1
        for row in self.rng.sample(sorted(self.truth), min(deleted, len(self.truth))):
            change[row] -= 1
        self.add(change, EVERY)
        self.truth = Counter({row: 1 for row, weight in (self.truth | change).items() if change[row] >= 0})
        budget = window_budget(len(change), self.pieces)
        rewritten = 0
        for window in plan_windows(self.pieces, budget):
            rows: Counter[tuple[int, int]] = Counter()
            for piece in window.pieces:
                piece_rows = self.rows(piece)
                rows.update(piece_rows)
                rewritten += len(piece_rows)
            left = Counter({row: weight for row, weight in rows.items() if weight})
            self.pieces = pieces_after_merge(self.pieces, window, [])
            if left:
                self.add(left, (window.low, window.high))
        self.rewritten += rewritten
        assert rewritten <= budget * 1.5  # the rows of a cut piece are an estimate

    def add(self, rows: Counter[tuple[int, int]], grains: tuple[int, int]) -> None:
        name = f"run-{len(self.runs)}"
        self.runs[name], self.spans[name] = rows, grains
        self.pieces.append(run_of(name, grains, len(rows)))

    def rows(self, piece: TablePiece) -> Counter[tuple[int, int]]:
        run_rows = self.runs[piece.part].items()
        return Counter({row: weight for row, weight in run_rows if piece.low <= row[0] <= piece.high})

    def check(self) -> None:
        total: Counter[tuple[int, int]] = Counter()
        for piece in self.pieces:
            total.update(self.rows(piece))
        assert {row: weight for row, weight in total.items() if weight} == self.truth
        parts, within = listing(self.pieces)  # as a manifest lists them
        again = pieces_of(body(parts=parts, within=within), [self.leaf(part) for part in parts])
        exact = lambda piece: (*piece[:3], *piece[4:])  # noqa: E731 - without the estimate of rows
        assert sorted(map(exact, again)) == sorted(map(exact, self.pieces))

    def leaf(self, part: str) -> Manifest:
        span = self.spans[part]
        listed = [StoredObject(uri=part, rows=len(self.runs[part]))]
        return body(objects=listed, within=[] if span == EVERY else [[span]])


def body(**fields: Any) -> Manifest:
    content = Manifest(state=ManifestState.COMPLETE, dataset="t", version="1", lot="l", attempt="a", **fields)
    return manifest.decode(manifest.encode(content))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of hundreds of rows instead of a hundred thousand."""
    monkeypatch.setattr(table_pieces, "FLOOR_ROWS", 100)
    monkeypatch.setattr(table_pieces, "SLICE_ROWS", 400)
    monkeypatch.setattr(table_pieces, "SHARE", 16)


@pytest.mark.slow
@pytest.mark.rule("DBSP-47")
@pytest.mark.parametrize("seed", range(2))
def test_every_row_counts_once_and_no_step_rewrites_more_than_its_budget(small: None, seed: int) -> None:
    rng = random.Random(seed)
    table = Model(rng)
    table.step(3_000)  # a load
    most = 0
    for number in range(100):
        size = rng.choice([1, 5, 40, 40, 200])
        table.step(size, rng.randrange(size + 1))
        most = max(most, len(table.pieces))
        if number % 25 == 0:
            table.check()
    table.check()
    assert table.rewritten > 3_000  # the load was merged as well
    assert most < 60


@pytest.mark.rule("DBSP-47")
def test_a_growing_table_is_rewritten_a_few_times_and_not_in_every_step(small: None) -> None:
    table = Model(random.Random(1))
    for _ in range(150):
        table.step(30)
    table.check()
    assert table.rewritten < 12 * 150 * 30
    assert len(table.pieces) < 60


@pytest.mark.slow
def test_pieces_with_few_rows_left_are_merged(small: None) -> None:
    table = Model(random.Random(2))
    table.step(4_000)
    for _ in range(60):
        table.step(100)
    assert len(table.pieces) > 16
    for _ in range(70):
        table.step(0, 140)
    for _ in range(60):
        table.step(2, 2)
    table.check()
    assert len(table.truth) < 300
    assert len(table.pieces) < 16


def test_few_runs_are_not_merged_and_consecutive_pieces_do_not_overlap() -> None:
    runs = [run_of(f"r{n}", EVERY, 10) for n in range(FAN - 1)]
    assert plan_windows(runs, 10**6) == []
    (window,) = plan_windows([*runs, run_of("r8", EVERY, 10)], 10**6)
    assert (window.low, window.high, len(window.pieces)) == (*EVERY, FAN)
    assert overlap(runs)
    assert not overlap([run_of("a", (0, 9), 1), run_of("b", (10, 20), 1)])
    assert listing([run_of("a", (0, 9), 1), run_of("b", EVERY, 1)]) == (["a", "b"], [])
    cut = run_of("b", EVERY, 10).within(100, GRAINS - 1)
    assert cut is not None
    assert listing([cut]) == (["b"], [[(100, GRAINS - 1)]])


@pytest.mark.rule("DBSP-47")
def test_a_large_table_is_rewritten_in_windows_within_the_budget() -> None:
    table = [run_of("load", EVERY, 10_000_000)]
    rewritten = []
    for number in range(400):
        table.append(run_of(f"c{number}", EVERY, 10_000))
        budget = window_budget(10_000, table)
        windows = plan_windows(table, budget)
        rewritten.append(sum(window.rows for window in windows))
        for place, window in enumerate(windows):
            table = pieces_after_merge(
                table, window, [run_of(f"m{number}-{place}", (window.low, window.high), round(window.rows))]
            )
        assert rewritten[-1] <= budget + 1 <= 210_000
        assert len({piece.part for piece in table}) < 40 + 14_000_000 / 65_536
        cut = {(piece.low, piece.high) for piece in table if not piece.complete}
        assert len(cut) <= 2  # a reader needs one more scan for each
    assert not any(piece.part == "load" for piece in table)
    assert abs(sum(piece.rows for piece in table) - 14_000_000) < 10_000
    assert sum(rewritten) < 10 * (10_000_000 + 4_000_000)
