"""Arrange the drawings of the page: the lineage, charts of steps, and circuits as trees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.ui import formats
from tidemill.ui.model.answers import Graph, GraphNode, HealthPage, OperatorAnswer

WIDTH, HEIGHT = 162, 46
ACROSS, DOWN = 200, 60
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

    An edge that skips columns gets a free row in each of them, so that it does not run behind other nodes.

    >>> arrange(Graph(nodes=(), edges=())).width
    28
    """
    columns = {node.id: node.column for node in graph.nodes}
    inputs: dict[str, list[str]] = {}
    waiting: dict[int, list[str]] = {}
    for node in graph.nodes:
        waiting.setdefault(node.column, []).append(node.id)
    paths = []
    passes: set[str] = set()
    for edge in graph.edges:
        path = [edge.source]
        for column in range(columns[edge.source] + 1, columns[edge.target]):
            bend = f"{edge.source}\n{column}"  # edges of one source share their way
            if bend not in passes:
                passes.add(bend)
                waiting.setdefault(column, []).append(bend)
                inputs[bend] = [path[-1]]
            path.append(bend)
        inputs.setdefault(edge.target, []).append(path[-1])
        paths.append((*path, edge.target))
    rows = _rows_of(waiting, inputs)
    places = {
        id_: (MARGIN + column * ACROSS, MARGIN + rows[id_] * DOWN)
        for column, ids in waiting.items()
        for id_ in ids
    }
    placed = tuple(PlacedNode(node, *places[node.id]) for node in graph.nodes)
    edges = tuple(_path([places[id_] for id_ in path]) for path in paths)
    width = 2 * MARGIN + (max(waiting) * ACROSS + WIDTH if waiting else 0)
    height = 2 * MARGIN + (max(rows.values()) * DOWN + HEIGHT if rows else 0)
    return LineageDrawing(width, height, placed, tuple(dict.fromkeys(edges)))


def _rows_of(columns: Mapping[int, Sequence[str]], inputs: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the row of each id: near the rows of its inputs, and one row apart from its neighbours."""
    rows: dict[str, float] = {}
    for column in sorted(columns):

        def mean(id_: str) -> tuple[float, str]:
            above = [rows[source] for source in inputs.get(id_, ()) if source in rows]
            return (sum(above) / len(above) if above else 0.0, id_)

        row = -1.0
        for id_ in sorted(columns[column], key=mean):
            row = max(row + 1, mean(id_)[0])
            rows[id_] = row
    return rows


def _path(places: Sequence[tuple[float, float]]) -> str:
    """Return the path of an edge, from the right side of a node through the columns to another node."""
    middle = HEIGHT / 2
    (x, y), *rest = places
    x += WIDTH
    text = f"M{x:g} {y + middle:g}"
    y += middle
    for number, (to_x, top) in enumerate(rest):
        to_y, bend = top + middle, (to_x - x) / 2
        text += f"C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"
        x, y = to_x, to_y
        if number < len(rest) - 1:
            x += WIDTH
            text += f"H{x:g}"
    return text


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
    """A bar chart; `note` names its important values."""

    title: str
    bars: tuple[ChartBar, ...]
    note: str
    has_values: bool


def chart(title: str, values: Sequence[float], text: Callable[[float], str], note: str = "") -> Chart:
    """Arrange a bar chart; by default, its note has the last and the largest value.

    >>> chart("rows", [1, 2, 0], str).note
    'last 0, most 2'
    """
    most = max(values, default=0)
    step = CHART_WIDTH / max(12, len(values))
    left = CHART_WIDTH - step * len(values)
    bars = []
    for number, value in enumerate(values):
        height = max(1.0, CHART_HEIGHT * value / most) if most else 1.0
        bars.append(
            ChartBar(
                round(left + number * step, 2),
                round(CHART_HEIGHT - height, 2),
                round(step * 0.8, 2),
                round(height, 2),
                text(value),
            )
        )
    note = note or f"last {text(values[-1]) if values else ''}, most {text(most)}"
    return Chart(title, tuple(bars), note, has_values=most > 0)


def health_charts(page: HealthPage) -> list[Chart]:
    """Return the charts of a cluster's health, except those without values."""
    items = page.items
    latencies = [item.latency_s for item in items if item.steps]
    steps, rows = sum(item.steps for item in items), sum(item.rows for item in items)
    last_s = latencies[-1] if latencies else 0
    charts = (
        chart("Steps", [item.steps for item in items], formats.number, f"{steps:,} in all"),
        chart("Rows changed", [item.rows for item in items], formats.number, f"{rows:,} in all"),
        chart(
            "Latency",
            [item.latency_s for item in items],
            formats.duration,
            f"last {formats.duration(last_s)}, most {formats.duration(max(latencies, default=0))}",
        ),
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
