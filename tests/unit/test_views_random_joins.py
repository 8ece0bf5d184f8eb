"""Random circuits of joins: after every step, views equal a join of the current rows in plain Python."""

import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.memory_chain import (
    MemoryChain,
    built,
    join,
    masked_hashes,
    project,
    rows_of,
    source,
    types_of,
)
from tests.unit.test_views_shared_sources import LOWER, VALUES, WEAK, are_equal, bits, nonzero
from tidemill.views.chain.layer_task import select_columns
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import InputTable, Join, JoinKey, JoinKind, Operator, Project

MASKS = (None, WEAK, LOWER, 0)
KINDS: tuple[JoinKind, ...] = ("inner", "inner", "left", "right", "full", "semi", "anti")
WeightedRows = dict[str, list[tuple[Any, int]]]


class RandomViews:
    """Three tables of any kind, and views that join them once, twice or three times.

    Args:
        seed: the seed of the random choices.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        kinds = [self.rng.choice(["changes", "changes", "keyed", "rows"]) for _ in "abc"]
        self.kinds = dict(zip("abc", kinds, strict=True))
        self.types = {
            table: [self.rng.choice(sorted(VALUES)) for _ in range(self.rng.randint(1, 4))]
            for table in self.kinds
        }
        joins = [self._view() for _ in range(self.rng.randint(1, 4))]
        self.views = {f"v{n}": op for n, op in enumerate(joins) if isinstance(op, Join)}
        self.used = {
            op.table for view in self.views.values() for op in walk(view) if isinstance(op, InputTable)
        }
        self.net: dict[str, dict[Any, tuple[Any, int]]] = {table: {} for table in self.kinds}

    def _view(self) -> Operator:
        left, right = self._table(), self._table()
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            if self.rng.random() < 0.5:
                left = self._joined(left, self._table())
            else:
                right = self._joined(right, self._table())
        return self._joined(left, right)

    def _table(self) -> Operator:
        table = self.rng.choice(sorted(self.kinds))
        types = self.types[table]
        op = source(table, *types, key=(0,) if self.kinds[table] == "keyed" else ())
        if self.rng.random() < 0.6:
            return op
        return project(op, *(self.rng.randrange(len(types)) for _ in range(self.rng.randint(1, 4))))

    def _joined(self, left: Operator, right: Operator) -> Operator:
        """Join by one or two columns of the same types; return the left operator if there are none."""
        types = types_of(left, right)
        same = [(n, m) for n, a in enumerate(types[left]) for m, b in enumerate(types[right]) if a == b]
        if not same:
            return left
        keys = self.rng.sample(same, min(len(same), self.rng.choice([1, 1, 2])))
        op = join(left, right, *keys, null_safe=self.rng.random() < 0.1)
        return replace(op, join=self.rng.choice(KINDS))

    def change(self, step: int) -> WeightedRows:
        """Return the random rows of a step, and apply them; `rows_of_operator` returns the rows after it."""
        changes: WeightedRows = {}
        for table in sorted(self.used):
            kinds = self.types[table]
            rows = [
                tuple(self.rng.choice(VALUES[kind]) for kind in kinds) for _ in range(self.rng.randint(0, 8))
            ]
            if self.kinds[table] == "keyed":
                changes[table] = [
                    ((*row, self.rng.random() < 0.3, step, ordinal), 1) for ordinal, row in enumerate(rows)
                ]
                for (*values, deletes, _, _), _ in changes[table]:
                    key = repr(values[0] + 0.0 if isinstance(values[0], float) else values[0])
                    self.net[table][key] = tuple(values), int(not deletes)
                continue
            signs = [-2, -1, 1, 1, 1, 2] if self.kinds[table] == "changes" else [1]
            changes[table] = [(row, self.rng.choice(signs)) for row in rows]
            for row, weight in changes[table]:
                self.net[table][bits(row)] = row, self.net[table].get(bits(row), (row, 0))[1] + weight
        return changes

    def rows_of_operator(self, op: Operator) -> list[tuple[Any, int]]:
        """Compute the rows of an operator with plain Python."""
        if isinstance(op, InputTable):
            return [(row, weight) for row, weight in self.net[op.table].values() if weight > 0]
        if isinstance(op, Project):
            places = [expr.column or 0 for expr in op.expressions]
            return [
                (tuple(row[place] for place in places), weight)
                for row, weight in self.rows_of_operator(op.input)
            ]
        assert isinstance(op, Join)
        lefts, rights = (self.rows_of_operator(side) for side in (op.left, op.right))
        pairs = [
            (left, right)
            for left in lefts
            for right in rights
            if all(_meets(key, left[0], right[0]) for key in op.keys)
        ]
        partners = [{bits(pair[side][0]) for pair in pairs} for side in (0, 1)]
        alone = [
            [item for item in rows if bits(item[0]) not in partners[side]]
            for side, rows in enumerate((lefts, rights))
        ]
        if op.left_only:
            return alone[0] if op.join == "anti" else [item for item in lefts if item not in alone[0]]
        joined = [(left + right, weight * times) for (left, weight), (right, times) in pairs]
        if op.join in {"left", "full"}:
            joined += [(row + (None,) * op.right.width, weight) for row, weight in alone[0]]
        if op.join in {"right", "full"}:
            joined += [((None,) * op.left.width + row, weight) for row, weight in alone[1]]
        return joined


def _meets(key: JoinKey, left: Any, right: Any) -> bool:
    a, b = left[key.left.column or 0], right[key.right.column or 0]
    return are_equal(a, b) or (key.null_safe and a is None and b is None)


def counted(rows: list[tuple[Any, int]]) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for row, weight in rows:
        counts[bits(row)] += weight
    return counts


@pytest.mark.slow
def test_joins_of_joins_of_tables_of_every_kind_equal_plain_python() -> None:
    shared = 0
    for seed in range(32):
        drawn = RandomViews(seed)
        if not drawn.views:
            continue
        chain = built(drawn.views, drawn.kinds)
        shared += sum(bool(placed.borrowed) for placed in chain.operators)
        edges = {
            operator.view: (edge.origin, edge.plain)
            for edge in chain.edges
            if isinstance(operator := chain.operators[edge.target].operator, OutputSink)
        }
        memory_chain, mask = MemoryChain(chain), MASKS[seed % len(MASKS)]
        outputs: dict[str, Counter[tuple[str, ...]]] = {view: Counter() for view in drawn.views}
        with nullcontext() if mask is None else masked_hashes(mask):
            for step in range(3):
                step_output = memory_chain.step(drawn.change(step), drawn.rng.choice([1, 2, 3, 7]))
                for view, op in drawn.views.items():
                    origin, plain = edges[view]
                    assert isinstance(origin, int)
                    assert plain is not None
                    outputs[view].update(
                        counted(rows_of([select_columns(piece, plain) for piece in step_output[origin]]))
                    )
                    assert nonzero(outputs[view]) == nonzero(counted(drawn.rows_of_operator(op))), (
                        seed,
                        view,
                    )
    assert shared >= 20, "many joins read the traces of sources"
