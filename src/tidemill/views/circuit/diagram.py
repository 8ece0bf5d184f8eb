"""A circuit as a picture: one SVG, sources at the left, views at the right, colours by rung.
No script, no font.
"""

from html import escape

from tidemill.views.circuit.explanation import SHORT, CircuitExplanation, OperatorLine

WIDTH, HEIGHT, GAP, STEP = 190, 46, 18, 70
COLOURS = {"linear": "#d9f2e3", "native": "#dbe9fb", "keyed": "#fdf0cd", "full": "#f8d7d5"}
EDGES = {"linear": "#2f8f5b", "native": "#2d6cc0", "keyed": "#b0820e", "full": "#b3392f"}
FONT = 'font-family="system-ui, sans-serif" font-size="11" role="img"'


def draw(explained: CircuitExplanation) -> str:
    """The picture, as the text of an SVG file."""
    columns = layers(explained)
    places = {
        one: (GAP + x * (WIDTH + STEP), GAP + y * (HEIGHT + GAP))
        for x, column in enumerate(columns)
        for y, one in enumerate(column)
    }
    tallest = max((len(column) for column in columns), default=1)
    wide = 2 * GAP + len(columns) * WIDTH + (len(columns) - 1) * STEP
    high = GAP + tallest * (HEIGHT + GAP) + 24
    views = {root: view for view, root in explained.outputs.items()}
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    said = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {FONT}>']
    said.append(f"<title>{escape(', '.join(explained.outputs))}</title>")
    said += [
        _arrow(places[child], places[one]) for one, line in explained.lines.items() for child in line.inputs
    ]
    for one, line in explained.lines.items():
        said.append(_box(line, places[one], views.get(one)))
    said.append(_legend(high))
    return "\n".join([*said, "</svg>"]) + "\n"


def layers(explained: CircuitExplanation) -> list[list[str]]:
    """Operators by their distance from the sources: each stands right of all it reads."""
    depth: dict[str, int] = {}
    for one, line in explained.lines.items():
        depth[one] = 1 + max((depth[child] for child in line.inputs), default=-1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for one, far in depth.items():
        columns[far].append(one)
    return columns


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + WIDTH, start[1] + HEIGHT // 2
    x2, y2 = end[0], end[1] + HEIGHT // 2
    bend = max(STEP // 2, (x2 - x1) // 2)
    path = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#8a8f98" stroke-width="1.2"/>'


def _box(line: OperatorLine, place: tuple[int, int], view: str | None) -> str:
    x, y = place
    rung = line.placed.rung.value
    title = view if view is not None else line.kind
    told = f"{line.kind} {line.id[:SHORT]}: {line.what}\n{rung}: {line.placed.reason}"
    dashed = ' stroke-dasharray="4 3"' if line.placed.scan else ""
    return (
        f"<g><title>{escape(told)}</title>"
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{COLOURS[rung]}"'
        f' stroke="{EDGES[rung]}" stroke-width="{2 if view else 1}"{dashed}/>'
        f'<text x="{x + 9}" y="{y + 18}" font-weight="600">{escape(_short(title, 26))}</text>'
        f'<text x="{x + 9}" y="{y + 35}" fill="#4a4f57">{escape(_short(line.what, 32))}</text></g>'
    )


def _legend(high: int) -> str:
    said = []
    for place, (rung, colour) in enumerate(COLOURS.items()):
        x = GAP + place * 80
        box = f'<rect x="{x}" y="{high - 22}" width="12" height="12" fill="{colour}" stroke="{EDGES[rung]}"/>'
        said.append(f'{box}<text x="{x + 17}" y="{high - 12}">{rung}</text>')
    return "".join(said) + f'<text x="{GAP + 320}" y="{high - 12}">dashed: may scan everything</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
