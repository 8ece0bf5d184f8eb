"""Circuits of joins that are drawn: whoever remembers the rows, after every step they are what is there."""

import random
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

from tests.unit.lent_stage import Machine, built, hashes_of, join, project, rows_of, source, types_of
from tests.unit.test_views_lent import LOWER, VALUES, WEAK, are_equal, bits, there
from tidemill.views.chain.layer_task import select_columns
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import InputTable, Join, Operator, Project

MASKS = (None, WEAK, LOWER, 0)
Held = dict[str, list[tuple[Any, int]]]


class Drawn:
    """Three tables of any kind, and views that join them once, twice or three times.

    Args:
        seed: what is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        kinds = [self.chance.choice(["changes", "changes", "keyed", "rows"]) for _ in "abc"]
        self.kinds = dict(zip("abc", kinds, strict=True))
        self.types = {
            table: [self.chance.choice(sorted(VALUES)) for _ in range(self.chance.randint(1, 4))]
            for table in self.kinds
        }
        found = [self._view() for _ in range(self.chance.randint(1, 4))]
        self.views = {f"v{n}": op for n, op in enumerate(found) if isinstance(op, Join)}
        self.used = {
            op.table for view in self.views.values() for op in walk(view) if isinstance(op, InputTable)
        }
        self.net: dict[str, dict[Any, tuple[Any, int]]] = {table: {} for table in self.kinds}

    def _view(self) -> Operator:
        left, right = self._table(), self._table()
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            if self.chance.random() < 0.5:
                left = self._joined(left, self._table())
            else:
                right = self._joined(right, self._table())
        return self._joined(left, right)

    def _table(self) -> Operator:
        table = self.chance.choice(sorted(self.kinds))
        types = self.types[table]
        op = source(table, *types, key=(0,) if self.kinds[table] == "keyed" else ())
        if self.chance.random() < 0.6:
            return op
        return project(op, *(self.chance.randrange(len(types)) for _ in range(self.chance.randint(1, 4))))

    def _joined(self, left: Operator, right: Operator) -> Operator:
        """The join by one or two columns of the same types; the left one where there are none."""
        types = types_of(left, right)
        same = [(n, m) for n, a in enumerate(types[left]) for m, b in enumerate(types[right]) if a == b]
        if not same:
            return left
        keys = self.chance.sample(same, min(len(same), self.chance.choice([1, 1, 2])))
        return join(left, right, *keys, null_safe=self.chance.random() < 0.1)

    def change(self, step: int) -> Held:
        """The rows of a step as tables bring them; what is there afterwards is `held`."""
        found: Held = {}
        for table in sorted(self.used):
            kinds = self.types[table]
            rows = [
                tuple(self.chance.choice(VALUES[kind]) for kind in kinds)
                for _ in range(self.chance.randint(0, 8))
            ]
            if self.kinds[table] == "keyed":
                found[table] = [
                    ((*row, self.chance.random() < 0.3, step, ordinal), 1) for ordinal, row in enumerate(rows)
                ]
                for (*values, gone, _, _), _ in found[table]:
                    key = repr(values[0] + 0.0 if isinstance(values[0], float) else values[0])
                    self.net[table][key] = tuple(values), int(not gone)
                continue
            signs = [-2, -1, 1, 1, 1, 2] if self.kinds[table] == "changes" else [1]
            found[table] = [(row, self.chance.choice(signs)) for row in rows]
            for row, weight in found[table]:
                self.net[table][bits(row)] = row, self.net[table].get(bits(row), (row, 0))[1] + weight
        return found

    def held(self, op: Operator) -> list[tuple[Any, int]]:
        """What an operator gives of all that is there, by plain Python."""
        if isinstance(op, InputTable):
            return [one for one in self.net[op.table].values() if one[1] > 0]
        if isinstance(op, Project):
            places = [one.column or 0 for one in op.expressions]
            return [(tuple(row[place] for place in places), weight) for row, weight in self.held(op.input)]
        assert isinstance(op, Join)
        pairs = [(key.left.column or 0, key.right.column or 0, key.null_safe) for key in op.keys]
        return [
            (one + other, weight * times)
            for one, weight in self.held(op.left)
            for other, times in self.held(op.right)
            if all(
                are_equal(one[a], other[b]) or (safe and one[a] is None and other[b] is None)
                for a, b, safe in pairs
            )
        ]


def counted(rows: list[tuple[Any, int]]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for row, weight in rows:
        found[bits(row)] += weight
    return found


@pytest.mark.slow
def test_joins_of_joins_of_tables_of_every_kind_are_what_is_there() -> None:
    lent = 0
    for seed in range(16):
        drawn = Drawn(seed)
        if not drawn.views:
            continue
        chain = built(drawn.views, drawn.kinds)
        lent += sum(bool(one.borrowed) for one in chain.operators)
        ways = {
            operator.view: (edge.origin, edge.plain)
            for edge in chain.edges
            if isinstance(operator := chain.operators[edge.target].operator, OutputSink)
        }
        machine, mask = Machine(chain), MASKS[seed % len(MASKS)]
        outs: dict[str, Counter[tuple[str, ...]]] = {view: Counter() for view in drawn.views}
        with nullcontext() if mask is None else hashes_of(mask):
            for step in range(3):
                given = machine.step(drawn.change(step), drawn.chance.choice([1, 2, 3, 7]))
                for view, op in drawn.views.items():
                    origin, plain = ways[view]
                    assert isinstance(origin, int)
                    assert plain is not None
                    outs[view].update(counted(rows_of([select_columns(one, plain) for one in given[origin]])))
                    assert there(outs[view]) == there(counted(drawn.held(op))), (seed, view)
    assert lent >= 20, "many joins read what sources remember"
