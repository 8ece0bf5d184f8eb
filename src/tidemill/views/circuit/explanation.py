"""Explain a circuit as text, JSON or an SVG drawing: the rung of each operator, and the reason for it.

Columns of a circuit have positions instead of names. The explanation shows the original names as long as an
operator passes a column on unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

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
from tidemill.views.circuit.rungs import OperatorRung, Rung, rungs

SHORT = 8
WIDTH, HEIGHT, GAP, STEP = 190, 46, 18, 70
COLOURS = {"linear": "#d9f2e3", "native": "#dbe9fb", "keyed": "#fdf0cd", "full": "#f8d7d5"}
EDGES = {"linear": "#2f8f5b", "native": "#2d6cc0", "keyed": "#b0820e", "full": "#b3392f"}
FONT = 'font-family="system-ui, sans-serif" font-size="11" role="img"'


@dataclass(frozen=True)
class OperatorLine:
    """What the explanation says about one operator."""

    id: str
    kind: str
    detail: str
    columns: tuple[str, ...]
    inputs: tuple[str, ...]
    placement: OperatorRung
    append_only: bool
    keys: tuple[tuple[str, ...], ...]
    shared: bool

    def json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "kind": self.kind,
            "what": self.detail,
            "columns": list(self.columns),
            "inputs": list(self.inputs),
            "rung": self.placement.rung.value,
            "reason": self.placement.reason,
            "scan": self.placement.scan,
            "deterministic": self.placement.deterministic,
            "append_only": self.append_only,
            "keys": [list(key) for key in self.keys],
            "shared": self.shared,
        }


def explain(
    circuit: Circuit,
    pins: Pins | None = None,
    functions: ViewFunctions | None = None,
    *,
    recomputed: Mapping[Operator, str] | None = None,
) -> "CircuitExplanation":
    """Explain every operator of a circuit.

    Args:
        circuit: the circuit.
        pins: what operator ids depend on.
        functions: the functions that the user declares.
        recomputed: the operators that no chain computes, because each step recomputes their view, and why.
    """
    ids = circuit.ids(pins or Pins())
    names: dict[Operator, tuple[str, ...]] = {}
    consumers = circuit.consumers()
    lines: dict[str, OperatorLine] = {}
    placements: dict[Operator, OperatorRung] = {}
    grows: dict[Operator, bool] = {}
    keys: dict[Operator, frozenset[frozenset[int]]] = {}
    for output in circuit.outputs.values():
        placements |= rungs(output, functions)
        grows |= append_only(output)
        keys |= unique(output)
    for op, why in (recomputed or {}).items():
        if op in placements and placements[op].incremental:
            placements[op] = OperatorRung(Rung.FULL, why, scan=True)
    for op in circuit.operators():
        names[op] = column_names(op, names)
        lines[ids[op]] = OperatorLine(
            id=ids[op],
            kind=op.kind if not isinstance(op, Join) else f"{op.join} join",
            detail=description(op, [names[child] for child in op.inputs]),
            columns=names[op],
            inputs=tuple(ids[child] for child in op.inputs),
            placement=placements[op],
            append_only=grows[op],
            keys=tuple(tuple(names[op][i] for i in sorted(key)) for key in sorted(keys[op], key=sorted)),
            shared=len(consumers[op]) > 1,
        )
    outputs = {view: ids[output] for view, output in sorted(circuit.outputs.items())}
    return CircuitExplanation(lines, outputs, circuit.notes)


@dataclass(frozen=True)
class CircuitExplanation:
    """The operators of a circuit by id, inputs first, and the id of each view's output."""

    lines: Mapping[str, OperatorLine]
    outputs: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]

    def incremental(self, view: str) -> bool:
        """Return whether the view is incremental.

        It is not incremental if one of its operators may read a whole table, has the rung `full`, or is not
        deterministic.
        """
        return all(line.placement.incremental for line in self._below(self.outputs[view]))

    def _below(self, root: str) -> list[OperatorLine]:
        lines: dict[str, OperatorLine] = {}
        stack = [root]
        while stack:
            line = self.lines[stack.pop()]
            if line.id not in lines:
                lines[line.id] = line
                stack += line.inputs
        return list(lines.values())

    def json(self) -> dict[str, object]:
        """Return the explanation as JSON, with everything that the text says."""
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
        """Return the explanation as text: a tree for each view, the output first.

        An operator that several views share is described once; later trees refer to it.
        """
        lines: list[str] = []
        printed: set[str] = set()
        for view, root in self.outputs.items():
            state = "incremental" if self.incremental(view) else "not incremental"
            lines.append(f"{view}: {state}")
            lines += [f"  note: {note}" for note in self.notes.get(view, ())]
            self._add_lines(root, "  ", "  ", lines, printed)
        return "\n".join(lines)

    def _add_lines(self, root: str, head: str, indent: str, lines: list[str], printed: set[str]) -> None:
        line = self.lines[root]
        short = line.id[:SHORT]
        if root in printed:
            lines.append(f"{head}{line.kind} {short} (see above)")
            return
        printed.add(root)
        marks = [line.placement.rung.value]
        marks += ["scan"] if line.placement.scan else []
        marks += ["shared"] if line.shared else []
        lines.append(f"{head}{line.kind} {short} [{', '.join(marks)}] {line.detail}".rstrip())
        lines.append(f"{indent}{'│  ' if line.inputs else '   '}{line.placement.reason}")
        for number, child in enumerate(line.inputs):
            last = number == len(line.inputs) - 1
            self._add_lines(
                child,
                indent + ("└─ " if last else "├─ "),
                indent + ("   " if last else "│  "),
                lines,
                printed,
            )


def column_names(op: Operator, names: Mapping[Operator, tuple[str, ...]]) -> tuple[str, ...]:
    """Return names for the columns of an operator: their original names, or the text of the expression."""
    inputs = [names[child] for child in op.inputs]
    if isinstance(op, InputTable):
        return tuple(column.name for column in op.columns)
    if isinstance(op, ViewOutput):
        return op.names
    if isinstance(op, Project):
        return tuple(_sql(expr, inputs[0]) for expr in op.expressions)
    if isinstance(op, Aggregate):
        columns = [_sql(expr, inputs[0]) for expr in op.groups]
        columns += [_sql(call.value, inputs[0]) for call in op.calls]
        return tuple(columns + (["grouping_id()"] if op.sets is not None else []))
    if isinstance(op, Window):
        return (*inputs[0], *(f"{_sql(call.value, inputs[0])} OVER …" for call in op.calls))
    if isinstance(op, Join):
        return inputs[0] if op.left_only else (*inputs[0], *inputs[1])
    if isinstance(op, Generate):
        return (*inputs[0], *(f"generated {i}" for i in range(op.produces)))
    if isinstance(op, Scalar):
        return (*inputs[0], f"({inputs[1][0]})" if inputs[1] else "(…)")
    if isinstance(op, LiteralRows | Opaque):
        return tuple(f"col{i + 1}" for i in range(op.width))
    return inputs[0]


def description(op: Operator, inputs: list[tuple[str, ...]]) -> str:
    """Describe in one line what an operator does."""
    if isinstance(op, InputTable):
        return op.table + (f", key {', '.join(op.columns[i].name for i in op.key)}" if op.key else "")
    if isinstance(op, LiteralRows):
        return f"{len(op.rows)} row{'s' * (len(op.rows) != 1)}"
    if isinstance(op, Filter):
        return " AND ".join(_sql(expr, inputs[0]) for expr in op.conditions)
    if isinstance(op, TemporalFilter):
        return f"{_sql(op.value, inputs[0])} {op.comparison} {op.bound.sql()}"
    if isinstance(op, Project):
        return ", ".join(_sql(expr, inputs[0]) for expr in op.expressions)
    if isinstance(op, Generate):
        return ("outer " if op.outer else "") + _sql(op.call, inputs[0])
    if isinstance(op, Join):
        columns = (*inputs[0], *inputs[1])
        on = [_key(key, inputs) for key in op.keys]
        on += [f"{_key(key, inputs)} or unknown" for key in op.null_aware]
        return " AND ".join([*on, *(_sql(expr, columns) for expr in op.residual)])
    if isinstance(op, SetOp):
        return op.operation + (" all" if op.keep_all else "")
    if isinstance(op, Aggregate):
        return _aggregate(op, inputs[0])
    if isinstance(op, Window):
        calls = ", ".join(_sql(call.value, inputs[0]) for call in op.calls)
        by = ", ".join(_sql(expr, inputs[0]) for expr in op.partition)
        order = ", ".join(_order(expr, inputs[0]) for expr in op.order)
        return calls + (f" by {by}" if by else "") + (f" in order of {order}" if order else "")
    if isinstance(op, TopK):
        order = ", ".join(_order(expr, inputs[0]) for expr in op.order)
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


def _aggregate(op: Aggregate, columns: tuple[str, ...]) -> str:
    calls = ", ".join(_sql(call.value, columns) for call in op.calls) or "groups"
    by = [_sql(expr, columns) for expr in op.groups]
    if op.sets is not None:
        sets = ", ".join("(" + ", ".join(by[i] for i in expr) + ")" for expr in op.sets)
        return f"{calls} by grouping sets {sets}"
    return calls + (f" by {', '.join(by)}" if by else "")


def _key(key: JoinKey, inputs: list[tuple[str, ...]]) -> str:
    return f"{_sql(key.left, inputs[0])} {'<=>' if key.null_safe else '='} {_sql(key.right, inputs[1])}"


def _order(key: SortKey, columns: tuple[str, ...]) -> str:
    return f"{_sql(key.value, columns)} {key.suffix.lower()}"


def _sql(expr: Expr, names: tuple[str, ...]) -> str:
    return expr.sql(lambda i: names[i] if i < len(names) else f"c{i}")


# --- the drawing -------------------------------------------------------------------------------------------


def draw(explained: CircuitExplanation) -> str:
    """Draw the circuit as an SVG file: inputs on the left, views on the right, colours by rung."""
    columns = layers(explained)
    positions = {
        operator_id: (GAP + x * (WIDTH + STEP), GAP + y * (HEIGHT + GAP))
        for x, column in enumerate(columns)
        for y, operator_id in enumerate(column)
    }
    tallest = max((len(column) for column in columns), default=1)
    wide = 2 * GAP + len(columns) * WIDTH + (len(columns) - 1) * STEP
    high = GAP + tallest * (HEIGHT + GAP) + 24
    views = {root: view for view, root in explained.outputs.items()}
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {FONT}>']
    parts.append(f"<title>{escape(', '.join(explained.outputs))}</title>")
    parts += [
        _arrow(positions[child], positions[operator_id])
        for operator_id, line in explained.lines.items()
        for child in line.inputs
    ]
    for operator_id, line in explained.lines.items():
        parts.append(_box(line, positions[operator_id], views.get(operator_id)))
    parts.append(_legend(high))
    return "\n".join([*parts, "</svg>"]) + "\n"


def layers(explained: CircuitExplanation) -> list[list[str]]:
    """Group operators by their distance from the inputs, so that each is to the right of its inputs."""
    depth: dict[str, int] = {}
    for operator_id, line in explained.lines.items():
        depth[operator_id] = 1 + max((depth[child] for child in line.inputs), default=-1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for operator_id, distance in depth.items():
        columns[distance].append(operator_id)
    return columns


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + WIDTH, start[1] + HEIGHT // 2
    x2, y2 = end[0], end[1] + HEIGHT // 2
    bend = max(STEP // 2, (x2 - x1) // 2)
    path = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#8a8f98" stroke-width="1.2"/>'


def _box(line: OperatorLine, position: tuple[int, int], view: str | None) -> str:
    x, y = position
    rung = line.placement.rung.value
    title = view if view is not None else line.kind
    tooltip = f"{line.kind} {line.id[:SHORT]}: {line.detail}\n{rung}: {line.placement.reason}"
    dashed = ' stroke-dasharray="4 3"' if line.placement.scan else ""
    return (
        f"<g><title>{escape(tooltip)}</title>"
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{COLOURS[rung]}"'
        f' stroke="{EDGES[rung]}" stroke-width="{2 if view else 1}"{dashed}/>'
        f'<text x="{x + 9}" y="{y + 18}" font-weight="600">{escape(_short(title, 26))}</text>'
        f'<text x="{x + 9}" y="{y + 35}" fill="#4a4f57">{escape(_short(line.detail, 32))}</text></g>'
    )


def _legend(high: int) -> str:
    parts = []
    for number, (rung, colour) in enumerate(COLOURS.items()):
        x = GAP + number * 80
        box = f'<rect x="{x}" y="{high - 22}" width="12" height="12" fill="{colour}" stroke="{EDGES[rung]}"/>'
        parts.append(f'{box}<text x="{x + 17}" y="{high - 12}">{rung}</text>')
    return "".join(parts) + f'<text x="{GAP + 320}" y="{high - 12}">dashed: may scan everything</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
