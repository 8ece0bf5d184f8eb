"""Ties broken: where the order of a query leaves rows equal, the row's hash is its last key (DBSP-20).

Spark gives any of several results there, another one on another partitioning. A view has one: the key stands
in the normal form of the circuit, so that every rung, every replay and the oracle break a tie alike. It is
H128 of the row that the operator reads, as it was before any rewrite, the same two hashes that row identity
is made of (`views.spark.weighted_rows`). Rows that are equal in all columns may be in any order: it makes no
difference.

    Window     row_number, ntile, lag, lead and frames of ROWS; never rank, dense_rank, percent_rank,
               cume_dist, nor a frame of RANGE, whose peers are one
    TopK       always
    Aggregate  first and last become the row of the least and the greatest hash, max_by and min_by order by
               (their key, the hash), lists are sorted by it; mode gives the lowest of the most frequent

What is left, and only that, may still hang on ties: what a frame of RANGE says of single rows (last_value),
calls with a treatment of NULLs, and queries that are kept whole. `has_one_result` says whether anything is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidemill.schemas.type_table import row_of
from tidemill.views.aggregates.registry import TieBreak, aggregate
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr, Part, joined
from tidemill.views.circuit.interpreter import split_list, struct_fields
from tidemill.views.circuit.operators import (
    Aggregate,
    AggregateCall,
    Opaque,
    Operator,
    SortKey,
    TopK,
    ViewOutput,
    Window,
    WindowCall,
)
from tidemill.views.circuit.render import breaks_ties
from tidemill.views.trace.row_equality import SALTS

WHOLE = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
SO_FAR = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
WAYS = 6
"""In so many ways ties are broken to see whether there are any."""
_WORDS = frozenset({"xxhash64", "isnull", "named_struct", "size", "transform", "array_sort", "map_entries"})


def depends_on_ties(output: Operator) -> bool:
    """Does plain Spark have several results where the query's order leaves ties?"""
    return bool(tie_dependent(output))


def tie_dependent(output: Operator) -> list[Operator]:
    """The operators in which it has."""
    return [op for op in walk(output) if _hangs(op)]


def has_one_result(output: Operator) -> bool:
    """Has the circuit one result, whatever ties there are?"""
    return not any(_unsettled(op) for op in walk(output))


def with_other_tie_breaks(sql: str) -> list[str]:
    """The text of a circuit with all its ties broken in other ways: some of them differ where there are any.

    The opposite way first. It is not enough by itself: of three rows that tie for two places, the one in the
    middle is in both, and the other two may look alike in the result.
    """
    opposite = sql
    for salt in SALTS:
        # All bits turned are the opposite order.
        opposite = opposite.replace(f"xxhash64({salt},", f"~xxhash64({salt},")
    if opposite == sql:
        return []
    found = [opposite]
    for number in range(1, WAYS):
        other = sql
        for salt in SALTS:
            other = other.replace(f"xxhash64({salt},", f"xxhash64({salt - number},")
        found.append(other)
    return found


def break_ties(output: ViewOutput, types: Mapping[Operator, Sequence[str]]) -> ViewOutput:
    """The circuit with the hash of the row as the last key of every order that may leave ties.

    - types: of every operator's columns, as Spark writes them.
    """
    done: dict[Operator, Operator] = {}
    for op in walk(output):
        inputs = [done[child] for child in op.inputs]
        same = all(new is old for new, old in zip(inputs, op.inputs, strict=True))
        # An input has the columns that it had: its types are asked under what it was.
        kinds = types.get(op.inputs[0], ()) if op.inputs else ()
        done[op] = _broken(op if same else op.with_inputs(inputs), kinds)
    made = done[output]
    assert isinstance(made, ViewOutput)
    return made


def _broken(op: Operator, types: Sequence[str]) -> Operator:
    if isinstance(op, TopK):
        return replace(op, order=(*op.order, *_keys(types)))
    if isinstance(op, Window) and any(_of_window(op, call) for call in op.calls):
        calls = tuple(_framed(op, call) for call in op.calls)
        return replace(op, calls=calls, ties=_keys(types))
    if isinstance(op, Aggregate) and any(_ties(call) for call in op.calls) and types:
        hashes = hash_of(types)
        return replace(op, calls=tuple(_call(call, hashes) for call in op.calls))
    return op


# --- H128 ---------------------------------------------------------------------------------------------------


def hash_of(types: Sequence[str]) -> tuple[Expr, Expr]:
    """The two halves of H128 of a row with columns of these types."""
    parts: list[Part] = []
    for place, kind in enumerate(types):
        parts += [", isnull(", place, "), ", *hashable((place,), kind)]
    first, second = (Expr(joined([f"xxhash64({salt}", *parts, ")"]), _WORDS) for salt in SALTS)
    return first, second


def hashable(value: tuple[Part, ...], kind: str, depth: int = 0) -> tuple[Part, ...]:
    """A value as `xxhash64` takes it, with nothing of it passed over: the SQL of `rows.identified`."""
    item = f"i{depth}"
    if kind.startswith("array<"):
        inner = _flagged((item,), kind[6:-1], depth + 1)
        size = ("named_struct('n', size(", *value, "), 'v', transform(", *value)
        return (*size, f", {item} -> ", *inner, "))")
    if kind.startswith("map<"):
        of_key, of_value = split_list(kind[4:-1])
        key = hashable((f"{item}.key",), of_key, depth + 1)
        inner = _flagged((f"{item}.value",), of_value, depth + 1)
        order = "(l, r) -> CASE WHEN l.key < r.key THEN -1 WHEN l.key > r.key THEN 1 ELSE 0 END"
        entries: tuple[Part, ...] = ("array_sort(map_entries(", *value, f"), {order})")
        size = ("named_struct('n', size(", *value, "), 'v', transform(", *entries)
        return (*size, f", {item} -> named_struct('k', ", *key, ", 'v', ", *inner, ")))")
    if kind.startswith("struct<"):
        parts: list[Part] = []
        for number, (name, of_field) in enumerate(struct_fields(kind)):
            quoted = "`" + name.replace("`", "``") + "`"
            parts += [", " if number else "", f"'f{number}', "]
            parts += _flagged((*value, f".{quoted}"), of_field, depth + 1)
        return ("named_struct(", *parts, ")")
    before, _, after = row_of(kind).hashed.partition("{}")
    return joined((before, *value, after)) if before else value


def _flagged(value: tuple[Part, ...], kind: str, depth: int) -> tuple[Part, ...]:
    return ("named_struct('null', isnull(", *value, "), 'v', ", *hashable(value, kind, depth), ")")


def _keys(types: Sequence[str]) -> tuple[SortKey, ...]:
    return tuple(SortKey(half) for half in hash_of(types)) if types else ()


# --- windows ------------------------------------------------------------------------------------------------


def _of_window(op: Window, call: WindowCall) -> bool:
    return breaks_ties(call.name, _framed(op, call).frame)


def _framed(op: Window, call: WindowCall) -> WindowCall:
    """The call with a frame of ROWS where that says the same and lets the key decide."""
    if call.frame or not _ties(call) or _ignores_nulls(call):
        return call
    if not op.order:  # the frame is the whole partition, in any order
        return replace(call, frame=WHOLE)
    # The first row of the frame is the first of the partition, whatever its peers are.
    return replace(call, frame=SO_FAR) if _ties(call) is TieBreak.FIRST else call


def _ignores_nulls(call: WindowCall) -> bool:
    return (
        len(call.arguments) != (2 if _ties(call) is TieBreak.BY else 1) or "nulls" in call.value.sql().lower()
    )


# --- aggregates ---------------------------------------------------------------------------------------------


def _call(call: AggregateCall, hashes: tuple[Expr, Expr]) -> AggregateCall:
    if not _known(call):
        return call
    value = call.arguments[0]
    filters = [] if call.filter is None else [call.filter]
    row = Expr(joined(("named_struct('h', ", *hashes[0].parts, ", 'i', ", *hashes[1].parts, ")")), _WORDS)
    said: tuple[Part, ...]
    ties = _ties(call)
    if ties in {TieBreak.FIRST, TieBreak.LAST}:
        by = "min_by" if ties is TieBreak.FIRST else "max_by"
        said = (f"{by}(", *value.parts, ", ", *row.parts, ")")
        calls = {by}
    elif ties is TieBreak.BY:
        key = call.arguments[1]
        pair: tuple[Part, ...] = ("named_struct('k', ", *key.parts, ", 'r', ", *row.parts, ")")
        filters.append(Expr(joined((*key.enclosed().parts, " IS NOT NULL")), key.calls))
        said = (f"{call.name}(", *value.parts, ", ", *pair, ")")
        calls = {call.name}
    elif ties is TieBreak.MODE:
        said = ("mode(", *value.parts, ", true)")
        calls = {"mode"}
    elif ties is TieBreak.TEXT:
        rest: list[Part] = []
        for argument in call.arguments[1:]:
            rest += [", ", *argument.parts]
        order = (*hashes[0].parts, ", ", *hashes[1].parts)
        said = (f"{call.name}(", *value.parts, *rest, ") WITHIN GROUP (ORDER BY ", *order, ")")
        calls = {call.name}
    else:
        pair = ("named_struct('r', ", *row.parts, ", 'v', ", *value.parts, ")")
        order = ("(l, r) -> CASE WHEN l.r < r.r THEN -1 WHEN l.r > r.r THEN 1 ELSE 0 END",)
        filters.append(Expr(joined((*value.enclosed().parts, " IS NOT NULL")), value.calls))
        inner = (f"{call.name}(", *pair, ")", *_filter(filters))
        said = ("transform(array_sort(", *inner, ", ", *order, "), i -> i.v)")
        filters, calls = [], {call.name}
    used = frozenset(calls).union(_WORDS, *(one.calls for one in (*call.arguments, *filters)))
    made = Expr(joined((*said, *_filter(filters))), used)
    return replace(call, value=made, plain=False)


def _filter(filters: Sequence[Expr]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for one in filters:
        parts += [" AND " if parts else " FILTER (WHERE ", *one.enclosed().parts]
    return (*parts, ")") if parts else ()


def _ties(call: AggregateCall | WindowCall) -> TieBreak | None:
    return aggregate(call.name).ties


def _known(call: AggregateCall) -> bool:
    if not _ties(call) or call.distinct or not call.plain:
        return False
    wanted = 2 if _ties(call) is TieBreak.BY else 1
    return len(call.arguments) == wanted or (_ties(call) is TieBreak.TEXT and len(call.arguments) == 2)


# --- what is left -------------------------------------------------------------------------------------------


def _hangs(op: Operator) -> bool:
    if isinstance(op, TopK):
        return True
    if isinstance(op, Aggregate):
        return any(_ties(call) for call in op.calls)
    if isinstance(op, Window):
        return any(_ties(call) or _by_row(call) for call in op.calls)
    return isinstance(op, Opaque) and _opaque_hangs(op)


def _unsettled(op: Operator) -> bool:
    if isinstance(op, Aggregate):
        return any(_ties(call) and not _settled_call(call) for call in op.calls)
    if isinstance(op, Window):
        return any(
            (_ties(call) or call.name == "nth_value" or _by_row(call))
            and not (op.ties and breaks_ties(call.name, call.frame))
            for call in op.calls
        )
    if isinstance(op, TopK):
        return not any("xxhash64" in key.value.calls for key in op.order) and op.width > 0
    return isinstance(op, Opaque) and _opaque_hangs(op)


def _by_row(call: WindowCall) -> bool:
    return call.name == "nth_value" or breaks_ties(call.name, call.frame)


def _settled_call(call: AggregateCall) -> bool:
    return "xxhash64" in call.value.calls


_BY_ROW = frozenset({"row_number", "ntile", "lag", "lead", "nth_value"})


def _opaque_hangs(op: Opaque) -> bool:
    text = " ".join(op.sql.lower().split())
    by_order = " limit " in f" {text} " or " offset " in f" {text} " or " rows " in text
    return by_order or any(aggregate(name).ties or name in _BY_ROW for name in op.calls)
