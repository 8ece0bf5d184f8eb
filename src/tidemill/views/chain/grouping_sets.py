"""The columns of an aggregate with grouping sets: GROUPING SETS, CUBE and ROLLUP.

The kernel groups by all keys and by the id of the set. A row of the input reaches it once for each set, with
NULL in the keys that are not part of the set. The id tells these NULLs from those of the data.
"""

from collections.abc import Sequence

from tidemill.views.circuit.expr import Expr, cast, column, text


def columns_of_set(
    grouped: Sequence[int], keys: Sequence[int], values: Sequence[int], types: Sequence[str]
) -> list[Expr]:
    """Return what the kernel reads for one grouping set: its keys, its id, and the values.

    Args:
        grouped: which of the keys are part of the set.
        keys: the columns of all keys.
        values: the columns of the aggregates' arguments.
        types: the types of all columns.
    """
    null = text("NULL")
    columns = [
        column(place) if n in grouped else cast(null, "VOID", types[place]) for n, place in enumerate(keys)
    ]
    last = len(keys) - 1
    number = sum(1 << (last - n) for n in range(len(keys)) if n not in grouped)
    return [*columns, cast(text(str(number)), "INT", "BIGINT"), *map(column, values)]


def columns_read(
    sets: Sequence[Sequence[int]] | None, keys: Sequence[int], values: Sequence[int], types: Sequence[str]
) -> list[list[Expr]]:
    """Return what the kernel reads of each row, keys first: once, or once for each grouping set."""
    if sets is None:
        return [[*map(column, keys), *map(column, values)]]
    return [columns_of_set(grouped, keys, values, types) for grouped in sets]


def result_places(groups: int, calls: int) -> list[int]:
    """Return the kernel's columns in the order of the result: keys, aggregates, and the id of the set."""
    return [*range(groups), *range(groups + 1, groups + 1 + calls), groups]
