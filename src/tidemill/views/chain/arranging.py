"""By which columns a source remembers its rows: by the key of joins, which then read them there (ADR 20)."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidemill.views.circuit import operators as ops
from tidemill.views.circuit.operators import Operator

Places = tuple[int, ...]
Types = Mapping[Operator, tuple[str, ...]]


def origin(op: Operator) -> tuple[ops.Source, Places] | None:
    """The source whose rows an operator gives as they are, and which columns of it; None if it does more."""
    if isinstance(op, ops.Source):
        return op, tuple(range(op.width))
    if isinstance(op, ops.Project) and (below := origin(op.input)) is not None:
        source, places = below
        chosen = [one.column for one in op.expressions]
        if None not in chosen:
            return source, tuple(places[place] for place in chosen if place is not None)
    return None


def side_key(op: ops.Join, side: int, types: Types) -> tuple[ops.Source, Places, Places] | None:
    """The source of a join's side, its columns there, and those of them that are the key.

    None unless the join could read them at the source: it has to compare them as they are stored, and by
    `=`, so that nothing is looked for by NULL.
    """
    below = origin(op.inputs[side]) if op.join == "inner" and op.keys else None
    if below is None or any(key.null_safe for key in op.keys):
        return None
    source, places = below
    mine = []
    for key in op.keys:
        left, right = key.left.column, key.right.column
        if left is None or right is None or types[op.left][left] != types[op.right][right]:
            return None
        mine.append(places[(left, right)[side]])
    return (source, places, tuple(mine)) if len(set(mine)) == len(mine) else None


def arranged(operators: Iterable[Operator], types: Types) -> dict[ops.Source, Places]:
    """For each source the key that most joins could use; of several the first by its columns."""
    asked: dict[ops.Source, Counter[Places]] = {}
    for op in operators:
        if isinstance(op, ops.Join):
            for side in (0, 1):
                if (found := side_key(op, side, types)) is not None:
                    source, _, key = found
                    asked.setdefault(source, Counter())[key] += 1
    return {source: min(keys, key=lambda one: (-keys[one], one)) for source, keys in asked.items()}
