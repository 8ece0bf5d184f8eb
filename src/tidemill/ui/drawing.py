"""Arrange the drawings of the page: the lineage, charts of steps, and circuits as trees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.ui import formats
from tidemill.ui.model.answers import Graph, GraphNode, HealthPage, OperatorAnswer

WIDTH, HEIGHT = 172, 46
ACROSS, DOWN = 226, 62
MARGIN = 14

CHART_WIDTH, CHART_HEIGHT = 320, 72


@dataclass(frozen=True)
class PlacedNode:
    """A node of the lineage with its place in the drawing."""

    node: GraphNode
    x: float
    y: float


@dataclass(frozen=True)
class LineageDrawing:
    """The drawing of a lineage: its size, its nodes, and its edges as paths of SVG."""

    width: float
    height: float
    nodes: tuple[PlacedNode, ...]
    edges: tuple[str, ...]


def arrange(graph: Graph) -> LineageDrawing:
    """Put the nodes of a lineage into columns, and order each column by the places of its inputs.

    >>> arrange(Graph(nodes=(), edges=())).width
    28
    """
    inputs: dict[str, list[str]] = {}
    for edge in graph.edges:
        inputs.setdefault(edge.target, []).append(edge.source)
    columns: dict[int, list[GraphNode]] = {}
    for node in graph.nodes:
        columns.setdefault(node.column, []).append(node)
    rows: dict[str, float] = {}
    placed = []
    for column in sorted(columns):

        def mean(node: GraphNode) -> tuple[float, str]:
            above = [rows[source] for source in inputs.get(node.id, ()) if source in rows]
            return (sum(above) / len(above) if above else 0.0, node.name)

        row = -1.0
        for node in sorted(columns[column], key=mean):
            row = max(row + 1, mean(node)[0])
            rows[node.id] = row
            placed.append(PlacedNode(node, MARGIN + column * ACROSS, MARGIN + row * DOWN))
    places = {each.node.id: each for each in placed}
    edges = [_curve(places[edge.source], places[edge.target]) for edge in graph.edges]
    width = 2 * MARGIN + (max(columns) * ACROSS + WIDTH if columns else 0)
    height = 2 * MARGIN + (max(rows.values()) * DOWN + HEIGHT if rows else 0)
    return LineageDrawing(width, height, tuple(placed), tuple(edges))


def _curve(source: PlacedNode, target: PlacedNode) -> str:
    x, y = source.x + WIDTH, source.y + HEIGHT / 2
    to_x, to_y = target.x, target.y + HEIGHT / 2
    bend = max(24.0, (to_x - x) / 2)
    return f"M{x:g} {y:g}C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"


@dataclass(frozen=True)
class ChartBar:
    """One bar of a chart, and its value as text."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A bar chart with its largest and its last value as text."""

    title: str
    bars: tuple[ChartBar, ...]
    most: str
    last: str
    has_values: bool


def chart(title: str, values: Sequence[float], text: Callable[[float], str]) -> Chart:
    """Arrange a bar chart.

    >>> chart("rows", [1, 2], str).most
    '2'
    """
    most = max(values, default=0)
    step = CHART_WIDTH / max(24, len(values))
    bars = []
    for number, value in enumerate(values):
        height = max(1.0, CHART_HEIGHT * value / most) if most else 1.0
        bars.append(
            ChartBar(
                round(number * step, 2),
                round(CHART_HEIGHT - height, 2),
                round(step * 0.8, 2),
                round(height, 2),
                text(value),
            )
        )
    return Chart(title, tuple(bars), text(most), text(values[-1]) if values else "", has_values=most > 0)


def health_charts(page: HealthPage) -> list[Chart]:
    """Return the charts of a cluster's health, except those without values."""
    items = page.items
    charts = (
        chart("Steps", [item.steps for item in items], formats.number),
        chart("Rows changed", [item.rows for item in items], formats.number),
        chart("Latency", [item.latency_s for item in items], formats.duration),
        chart("State", [item.state_size for item in items], formats.size),
    )
    return [each for each in charts if each.has_values]


@dataclass(frozen=True)
class OperatorRow:
    """An operator of a circuit at its depth below the output; `again` if it is shown further up."""

    depth: int
    operator: OperatorAnswer
    again: bool = False


def circuit_tree(operators: Sequence[OperatorAnswer]) -> list[OperatorRow]:
    """Return the operators of a circuit as a tree, the output first."""
    by_id = {operator.id: operator for operator in operators}
    read = {source for operator in operators for source in operator.inputs}
    rows: list[OperatorRow] = []
    shown: set[str] = set()
    stack = [(operator.id, 0) for operator in operators if operator.id not in read]
    while stack:
        id_, depth = stack.pop()
        if id_ not in by_id:
            continue
        rows.append(OperatorRow(depth, by_id[id_], again=id_ in shown))
        if id_ not in shown:
            shown.add(id_)
            stack += [(source, depth + 1) for source in reversed(by_id[id_].inputs)]
    return rows
