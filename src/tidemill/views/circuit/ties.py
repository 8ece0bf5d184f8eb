"""Tie breaking: where a sort order leaves ties, the hash of the row is the last sort key (DBSP-20).

If there are ties, Spark may return any of several results, depending on the partitioning. A view has exactly
one result: the hash is part of the normal form of the circuit, so every rung, every replay and certification
break ties in the same way. The hash is H128 of the row that the operator reads, before any rewrite; row
identity uses the same two hashes (`views.spark.weighted_rows`). Rows that are equal in all columns may have
any order: the result is the same.

    Window     row_number, ntile, lag, lead and ROWS frames; never rank, dense_rank, percent_rank, cume_dist
               or a RANGE frame, which treat peers equally
    TopK       always
    Aggregate  first and last use the row with the lowest and the highest hash; max_by and min_by order by
               their key, then by the hash; lists are sorted by the hash; mode returns the lowest of the
               most frequent values

Three things can still depend on ties: functions that pick single rows from a RANGE frame (last_value), calls
with IGNORE NULLS, and opaque queries. `has_one_result` returns False for a circuit that contains one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidemill.schemas.type_table import row_of
from tidemill.views.aggregates.registry import TieBreak, aggregate
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr, Part, merge_parts
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
from tidemill.views.circuit.render import breaks_ties, quoted
from tidemill.views.trace.row_equality import SALTS

WHOLE = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
SO_FAR = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
TIE_BREAKS = 6
"""The number of different tie breaks that are tried to find out whether there are ties."""
_FUNCTIONS = frozenset(
    {"xxhash64", "isnull", "named_struct", "size", "transform", "array_sort", "map_entries"}
)


def depends_on_ties(output: Operator) -> bool:
    """Return whether plain Spark may return several results, because a sort order leaves ties."""
    return bool(tie_dependent(output))


def tie_dependent(output: Operator) -> list[Operator]:
    """List the operators whose result in plain Spark depends on ties."""
    return [op for op in walk(output) if _depends_on_ties(op)]


def has_one_result(output: Operator) -> bool:
    """Return whether the circuit has exactly one result, even if there are ties."""
    return not any(_has_open_ties(op) for op in walk(output))


def with_other_tie_breaks(sql: str) -> list[str]:
    """Return the SQL of a circuit with ties broken in other ways; if there are ties, some results differ.

    The first circuit reverses the order. That alone is not enough: if three rows tie for two places, the
    middle row is in both results, and the other two rows may look the same in the result.
    """
    opposite = sql
    for salt in SALTS:
        # Inverting all bits reverses the order.
        opposite = opposite.replace(f"xxhash64({salt},", f"~xxhash64({salt},")
    if opposite == sql:
        return []
    texts = [opposite]
    for number in range(1, TIE_BREAKS):
        other = sql
        for salt in SALTS:
            other = other.replace(f"xxhash64({salt},", f"xxhash64({salt - number},")
        texts.append(other)
    return texts


def break_ties(output: ViewOutput, types: Mapping[Operator, Sequence[str]]) -> ViewOutput:
    """Add the hash of the row as the last key of every sort order that may leave ties.

    - types: the column types of every operator, as Spark writes them.
    """
    new_operators: dict[Operator, Operator] = {}
    for op in walk(output):
        inputs = [new_operators[child] for child in op.inputs]
        same = all(new is old for new, old in zip(inputs, op.inputs, strict=True))
        # The new input has the same columns as the old one, so the old one's types apply.
        kinds = types.get(op.inputs[0], ()) if op.inputs else ()
        new_operators[op] = _with_tie_breaks(op if same else op.with_inputs(inputs), kinds)
    result = new_operators[output]
    assert isinstance(result, ViewOutput)
    return result


def _with_tie_breaks(op: Operator, types: Sequence[str]) -> Operator:
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
    """Return the two halves of H128 of a row with columns of these types."""
    parts: list[Part] = []
    for position, kind in enumerate(types):
        parts += [", isnull(", position, "), ", *hashable((position,), kind)]
    first, second = (Expr(merge_parts([f"xxhash64({salt}", *parts, ")"]), _FUNCTIONS) for salt in SALTS)
    return first, second


def hashable(value: tuple[Part, ...], kind: str, depth: int = 0) -> tuple[Part, ...]:
    """Return SQL that prepares a value for `xxhash64`, so that the hash covers its NULLs and lengths."""
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
            parts += [", " if number else "", f"'f{number}', "]
            parts += _flagged((*value, f".{quoted(name)}"), of_field, depth + 1)
        return ("named_struct(", *parts, ")")
    before, _, after = row_of(kind).hashed.partition("{}")
    return merge_parts((before, *value, after)) if before else value


def _flagged(value: tuple[Part, ...], kind: str, depth: int) -> tuple[Part, ...]:
    return ("named_struct('null', isnull(", *value, "), 'v', ", *hashable(value, kind, depth), ")")


def _keys(types: Sequence[str]) -> tuple[SortKey, ...]:
    return tuple(SortKey(half) for half in hash_of(types)) if types else ()


def hash_keys(order: Sequence[SortKey]) -> tuple[SortKey, ...]:
    """Return the last two sort keys if they are the hash that breaks ties; otherwise none."""
    last = tuple(order[-len(SALTS) :])
    starts = [
        str(key.value.parts[0]).startswith(f"xxhash64({salt}, ")
        for key, salt in zip(last, SALTS, strict=False)
    ]
    return last if len(last) == len(SALTS) and all(starts) else ()


# --- windows ------------------------------------------------------------------------------------------------


def _of_window(op: Window, call: WindowCall) -> bool:
    return breaks_ties(call.name, _framed(op, call).frame)


def _framed(op: Window, call: WindowCall) -> WindowCall:
    """Replace the default frame with an equal ROWS frame, so that the tie-breaking key applies."""
    if call.frame or not _ties(call) or _ignores_nulls(call):
        return call
    if not op.order:  # the frame is the complete partition, in any order
        return replace(call, frame=WHOLE)
    # The first row of the frame is the first row of the partition in any case.
    return replace(call, frame=SO_FAR) if _ties(call) is TieBreak.FIRST else call


def _ignores_nulls(call: WindowCall) -> bool:
    return (
        len(call.arguments) != (2 if _ties(call) is TieBreak.BY else 1) or "nulls" in call.value.sql().lower()
    )


# --- aggregates ---------------------------------------------------------------------------------------------


def _call(call: AggregateCall, hashes: tuple[Expr, Expr]) -> AggregateCall:
    if not _can_break_ties(call):
        return call
    value = call.arguments[0]
    filters = [] if call.filter is None else [call.filter]
    row = Expr(
        merge_parts(("named_struct('h', ", *hashes[0].parts, ", 'i', ", *hashes[1].parts, ")")), _FUNCTIONS
    )
    parts: tuple[Part, ...]
    ties = _ties(call)
    ordered = call.arguments
    if ties in {TieBreak.FIRST, TieBreak.LAST}:
        by = "min_by" if ties is TieBreak.FIRST else "max_by"
        parts = (f"{by}(", *value.parts, ", ", *row.parts, ")")
        calls, ordered = {by}, (value, row)
    elif ties is TieBreak.BY:
        key = call.arguments[1]
        pair: tuple[Part, ...] = ("named_struct('k', ", *key.parts, ", 'r', ", *row.parts, ")")
        filters.append(Expr(merge_parts((*key.parenthesized().parts, " IS NOT NULL")), key.calls))
        parts = (f"{call.name}(", *value.parts, ", ", *pair, ")")
        calls, ordered = {call.name}, (value, Expr(merge_parts(pair), _FUNCTIONS | key.calls))
    elif ties is TieBreak.MODE:
        parts = ("mode(", *value.parts, ", true)")
        calls = {"mode"}
    elif ties is TieBreak.TEXT:
        separator: list[Part] = []
        for argument in call.arguments[1:]:
            separator += [", ", *argument.parts]
        order = (*hashes[0].parts, ", ", *hashes[1].parts)
        parts = (f"{call.name}(", *value.parts, *separator, ") WITHIN GROUP (ORDER BY ", *order, ")")
        calls = {call.name}
    else:
        pair = ("named_struct('r', ", *row.parts, ", 'v', ", *value.parts, ")")
        order = ("(l, r) -> CASE WHEN l.r < r.r THEN -1 WHEN l.r > r.r THEN 1 ELSE 0 END",)
        filters.append(Expr(merge_parts((*value.parenthesized().parts, " IS NOT NULL")), value.calls))
        inner = (f"{call.name}(", *pair, ")", *_filter(filters))
        parts = ("transform(array_sort(", *inner, ", ", *order, "), i -> i.v)")
        filters, calls = [], {call.name}
    used = frozenset(calls).union(_FUNCTIONS, *(expr.calls for expr in (*call.arguments, *filters)))
    expr = Expr(merge_parts((*parts, *_filter(filters))), used)
    return replace(call, value=expr, arguments=ordered, plain=False)


def row_order(call: AggregateCall) -> Expr | None:
    """Return what decides which row an aggregate returns, if ties are broken: its key, and the hash."""
    by_order = _ties(call) in {TieBreak.FIRST, TieBreak.LAST, TieBreak.BY} and _breaks_ties(call)
    return call.arguments[1] if by_order and "xxhash64" in call.arguments[1].calls else None


def _filter(filters: Sequence[Expr]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for condition in filters:
        parts += [" AND " if parts else " FILTER (WHERE ", *condition.parenthesized().parts]
    return (*parts, ")") if parts else ()


def _ties(call: AggregateCall | WindowCall) -> TieBreak | None:
    return aggregate(call.name).ties


def _can_break_ties(call: AggregateCall) -> bool:
    if not _ties(call) or call.distinct or not call.plain:
        return False
    count = 2 if _ties(call) is TieBreak.BY else 1
    return len(call.arguments) == count or (_ties(call) is TieBreak.TEXT and len(call.arguments) == 2)


# --- which operators depend on ties -------------------------------------------------------------------------


def _depends_on_ties(op: Operator) -> bool:
    if isinstance(op, TopK):
        return True
    if isinstance(op, Aggregate):
        return any(_ties(call) for call in op.calls)
    if isinstance(op, Window):
        return any(_ties(call) or _by_row(call) for call in op.calls)
    return isinstance(op, Opaque) and _opaque_depends_on_ties(op)


def _has_open_ties(op: Operator) -> bool:
    if isinstance(op, Aggregate):
        return any(_ties(call) and not _breaks_ties(call) for call in op.calls)
    if isinstance(op, Window):
        return any(
            (_ties(call) or call.name == "nth_value" or _by_row(call))
            and not (op.ties and breaks_ties(call.name, call.frame))
            for call in op.calls
        )
    if isinstance(op, TopK):
        return not any("xxhash64" in key.value.calls for key in op.order) and op.width > 0
    return isinstance(op, Opaque) and _opaque_depends_on_ties(op)


def _by_row(call: WindowCall) -> bool:
    return call.name == "nth_value" or breaks_ties(call.name, call.frame)


def _breaks_ties(call: AggregateCall) -> bool:
    return "xxhash64" in call.value.calls


_BY_ROW = frozenset({"row_number", "ntile", "lag", "lead", "nth_value"})


def _opaque_depends_on_ties(op: Opaque) -> bool:
    text = " ".join(op.sql.lower().split())
    by_order = " limit " in f" {text} " or " offset " in f" {text} " or " rows " in text
    return by_order or any(aggregate(name).ties or name in _BY_ROW for name in op.calls)
