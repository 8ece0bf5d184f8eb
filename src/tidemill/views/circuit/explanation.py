"""A circuit told to people: a text, JSON, and (in `drawing`) a picture. Every operator with its rung and why.

Columns have no names inside a circuit, only positions; here they get back the names that led to them, as
far as a column was handed on unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.views.circuit.circuit import Circuit
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.functions import ViewFunctions
from tidemill.views.circuit.ids import Pins
from tidemill.views.circuit.operators import (
    Aggregate,
    Filter,
    Generate,
    InputTable,
    Join,
    JoinKey,
    LiteralRows,
    Opaque,
    Operator,
    Project,
    Scalar,
    SetOp,
    SortKey,
    TemporalFilter,
    TopK,
    ViewOutput,
    Window,
)
from tidemill.views.circuit.row_properties import append_only, unique
from tidemill.views.circuit.rungs import OperatorRung, rungs

SHORT = 8


@dataclass(frozen=True)
class OperatorLine:
    """One operator as it is told."""

    id: str
    kind: str
    what: str
    columns: tuple[str, ...]
    inputs: tuple[str, ...]
    placed: OperatorRung
    append_only: bool
    keys: tuple[tuple[str, ...], ...]
    shared: bool

    def json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "kind": self.kind,
            "what": self.what,
            "columns": list(self.columns),
            "inputs": list(self.inputs),
            "rung": self.placed.rung.value,
            "reason": self.placed.reason,
            "scan": self.placed.scan,
            "deterministic": self.placed.steady,
            "append_only": self.append_only,
            "keys": [list(key) for key in self.keys],
            "shared": self.shared,
        }


def explain(
    circuit: Circuit, pins: Pins | None = None, functions: ViewFunctions | None = None
) -> "CircuitExplanation":
    """What there is to say about a circuit."""
    ids = circuit.ids(pins or Pins())
    names: dict[Operator, tuple[str, ...]] = {}
    consumers = circuit.consumers()
    lines: dict[str, OperatorLine] = {}
    placed: dict[Operator, OperatorRung] = {}
    grows: dict[Operator, bool] = {}
    keys: dict[Operator, frozenset[frozenset[int]]] = {}
    for output in circuit.outputs.values():
        placed |= rungs(output, functions)
        grows |= append_only(output)
        keys |= unique(output)
    for op in circuit.operators():
        names[op] = column_names(op, names)
        lines[ids[op]] = OperatorLine(
            id=ids[op],
            kind=op.kind if not isinstance(op, Join) else f"{op.join} join",
            what=description(op, [names[child] for child in op.inputs]),
            columns=names[op],
            inputs=tuple(ids[child] for child in op.inputs),
            placed=placed[op],
            append_only=grows[op],
            keys=tuple(tuple(names[op][i] for i in sorted(key)) for key in sorted(keys[op], key=sorted)),
            shared=len(consumers[op]) > 1,
        )
    outputs = {view: ids[output] for view, output in sorted(circuit.outputs.items())}
    return CircuitExplanation(lines, outputs, circuit.notes)


@dataclass(frozen=True)
class CircuitExplanation:
    """Operators by their ids, inputs first, and the ids of the views."""

    lines: Mapping[str, OperatorLine]
    outputs: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]

    def incremental(self, view: str) -> bool:
        """Whether no step of this view scans everything, and nothing in it changes by itself."""
        return all(line.placed.incremental for line in self._below(self.outputs[view]))

    def _below(self, root: str) -> list[OperatorLine]:
        seen: dict[str, OperatorLine] = {}
        stack = [root]
        while stack:
            line = self.lines[stack.pop()]
            if line.id not in seen:
                seen[line.id] = line
                stack += line.inputs
        return list(seen.values())

    def json(self) -> dict[str, object]:
        """For programs: everything that the text says."""
        return {
            "views": {
                view: {
                    "output": root,
                    "incremental": self.incremental(view),
                    "notes": list(self.notes.get(view, ())),
                }
                for view, root in self.outputs.items()
            },
            "operators": [line.json() for line in self.lines.values()],
        }

    def text(self) -> str:
        """For people: a tree for each view, the last operator first;
        what stands elsewhere is named, not repeated.
        """
        said: list[str] = []
        told: set[str] = set()
        for view, root in self.outputs.items():
            state = "incremental" if self.incremental(view) else "not incremental"
            said.append(f"{view}: {state}")
            said += [f"  note: {note}" for note in self.notes.get(view, ())]
            self._tell(root, "  ", "  ", said, told)
        return "\n".join(said)

    def _tell(self, root: str, first: str, rest: str, said: list[str], told: set[str]) -> None:
        line = self.lines[root]
        short = line.id[:SHORT]
        if root in told:
            said.append(f"{first}{line.kind} {short} (see above)")
            return
        told.add(root)
        marks = [line.placed.rung.value]
        marks += ["scan"] if line.placed.scan else []
        marks += ["shared"] if line.shared else []
        said.append(f"{first}{line.kind} {short} [{', '.join(marks)}] {line.what}".rstrip())
        said.append(f"{rest}{'│  ' if line.inputs else '   '}{line.placed.reason}")
        for place, child in enumerate(line.inputs):
            last = place == len(line.inputs) - 1
            self._tell(
                child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), said, told
            )


def column_names(op: Operator, names: Mapping[Operator, tuple[str, ...]]) -> tuple[str, ...]:
    """What the columns of an operator may be called:
    the names they came with, or the text that makes them.
    """
    below = [names[child] for child in op.inputs]
    if isinstance(op, InputTable):
        return tuple(column.name for column in op.columns)
    if isinstance(op, ViewOutput):
        return op.names
    if isinstance(op, Project):
        return tuple(_said(expr, below[0]) for expr in op.expressions)
    if isinstance(op, Aggregate):
        made = [_said(expr, below[0]) for expr in op.groups]
        made += [_said(call.value, below[0]) for call in op.calls]
        return tuple(made + (["grouping_id()"] if op.sets is not None else []))
    if isinstance(op, Window):
        return (*below[0], *(f"{_said(call.value, below[0])} OVER …" for call in op.calls))
    if isinstance(op, Join):
        return below[0] if op.left_only else (*below[0], *below[1])
    if isinstance(op, Generate):
        return (*below[0], *(f"generated {i}" for i in range(op.produces)))
    if isinstance(op, Scalar):
        return (*below[0], f"({below[1][0]})" if below[1] else "(…)")
    if isinstance(op, LiteralRows | Opaque):
        return tuple(f"col{i + 1}" for i in range(op.width))
    return below[0]


def description(op: Operator, below: list[tuple[str, ...]]) -> str:
    """What an operator does, in one line."""
    if isinstance(op, InputTable):
        return op.table + (f", key {', '.join(op.columns[i].name for i in op.key)}" if op.key else "")
    if isinstance(op, LiteralRows):
        return f"{len(op.rows)} row{'s' * (len(op.rows) != 1)}"
    if isinstance(op, Filter):
        return " AND ".join(_said(one, below[0]) for one in op.conditions)
    if isinstance(op, TemporalFilter):
        return f"{_said(op.value, below[0])} {op.comparison} {op.bound.sql()}"
    if isinstance(op, Project):
        return ", ".join(_said(one, below[0]) for one in op.expressions)
    if isinstance(op, Generate):
        return ("outer " if op.outer else "") + _said(op.call, below[0])
    if isinstance(op, Join):
        both = (*below[0], *below[1])
        on = [_key(key, below) for key in op.keys]
        on += [f"{_key(key, below)} or unknown" for key in op.null_aware]
        return " AND ".join([*on, *(_said(one, both) for one in op.residual)])
    if isinstance(op, SetOp):
        return op.operation + (" all" if op.keep_all else "")
    if isinstance(op, Aggregate):
        return _aggregate(op, below[0])
    if isinstance(op, Window):
        calls = ", ".join(_said(call.value, below[0]) for call in op.calls)
        by = ", ".join(_said(one, below[0]) for one in op.partition)
        order = ", ".join(_order(one, below[0]) for one in op.order)
        return calls + (f" by {by}" if by else "") + (f" in order of {order}" if order else "")
    if isinstance(op, TopK):
        order = ", ".join(_order(one, below[0]) for one in op.order)
        limit = "all" if op.limit is None else f"{op.limit:,}"
        return (
            limit
            + (f" after {op.offset:,}" if op.offset else "")
            + (f" in order of {order}" if order else "")
        )
    if isinstance(op, Opaque):
        return " ".join(op.sql.split())
    if isinstance(op, ViewOutput):
        return ", ".join(op.names)
    return ""


def _aggregate(op: Aggregate, below: tuple[str, ...]) -> str:
    calls = ", ".join(_said(call.value, below) for call in op.calls) or "groups"
    by = [_said(one, below) for one in op.groups]
    if op.sets is not None:
        sets = ", ".join("(" + ", ".join(by[i] for i in one) + ")" for one in op.sets)
        return f"{calls} by grouping sets {sets}"
    return calls + (f" by {', '.join(by)}" if by else "")


def _key(key: JoinKey, below: list[tuple[str, ...]]) -> str:
    return f"{_said(key.left, below[0])} {'<=>' if key.null_safe else '='} {_said(key.right, below[1])}"


def _order(key: SortKey, below: tuple[str, ...]) -> str:
    return f"{_said(key.value, below)} {key.suffix.lower()}"


def _said(expr: Expr, names: tuple[str, ...]) -> str:
    return expr.sql(lambda i: names[i] if i < len(names) else f"c{i}")
