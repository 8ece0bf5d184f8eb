"""The report of a soak: one HTML file without scripts, with a timeline of faults and recoveries."""

import html
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.soak.faults import KINDS, TITLES

WIDTH, LEFT, RIGHT = 1080, 210, 12
LANE, CURVE = 30, 130
STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5b6675; --line: #d5dbe3; --page: #ffffff;
  --panel: #f4f6f9; --fault: #b3261e; --recovery: #e9a23b; --lots: #1f6feb; --steps: #1a7f53;
  --memory: #7d4cc2; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ee; --soft: #9aa5b4; --line: #343c48;
  --page: #14181f; --panel: #1d232c; --fault: #ff7a70; --recovery: #b9822f; --lots: #6ea8fe;
  --steps: #58c08d; --memory: #b794f4; } }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .3rem; font-size: 1.7rem; } h2 { margin: 2.4rem 0 .6rem; font-size: 1.2rem; }
p { max-width: 46rem; } .soft { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem;
  margin: 1.2rem 0; }
.figures div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; }
.figures b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } svg { display: block; min-width: 50rem; width: 100%; height: auto; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ok { color: var(--steps); font-weight: 600; } .bad { color: var(--fault); font-weight: 600; }
"""


INTRODUCTION = (
    "A pipeline with folder, push and Kafka sources runs on PostgreSQL and a real S3 server, while faults hit"
    " its processes, servers, disk, clock and connections. Each fault waits until its target holds a claim or"
    " a lease. At the end, an oracle compares every row of every table and view."
)
LEGEND = (
    "A dark bar is the fault, from its beginning to its end. The light bar after it lasts until the target is"
    " in the node list again and the pipeline has published something. Hover over a bar for details."
)


class ReportedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in the report; times are seconds since the beginning."""

    kind: str
    target: str
    detail: str
    holds: list[str]
    at_s: float
    end_s: float
    recovered_s: float | None


class Verdict(msgspec.Struct, frozen=True):
    """A condition that the soak checked, and what it found."""

    name: str
    ok: bool
    detail: str


class Sample(msgspec.Struct, frozen=True):
    """The state of the pipeline at one moment: lots, view steps, and the bytes of the steady runner.

    - java: how many of these bytes Java uses.
    """

    at_s: float
    lots: int
    steps: int
    memory: int
    java: int = 0


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report shows."""

    minutes: float
    seed: int
    began: str
    machine: str
    nodes: list[str]
    faults: list[ReportedFault]
    skipped: dict[str, str]
    samples: list[Sample]
    rows: dict[str, int]
    retries: int
    restarts: int
    verdicts: list[Verdict]

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts)


def render(soak: Soak) -> str:
    """Return the report as HTML."""
    last = soak.samples[-1] if soak.samples else Sample(0, 0, 0, 0)
    kinds = len({fault.kind for fault in soak.faults})
    figures = [
        (f"{soak.minutes:g} min", "of faults"),
        (f"{len(soak.faults):,}", f"faults of {kinds} kinds"),
        (f"{last.lots:,}", "lots"),
        (f"{last.steps:,}", "view steps"),
        (f"{sum(soak.rows.values()):,}", "rows sent"),
        (f"{soak.restarts}", "restarted processes"),
        (f"{soak.retries:,}", "repeated requests"),
    ]
    verdict = '<span class="ok">passed</span>' if soak.ok else '<span class="bad">failed</span>'
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>Soak report</title><style>{STYLE}</style></head><body>",
        f"<h1>Soak: {verdict}</h1>",
        f'<p class="soft">{_text(soak.began)}, {_text(soak.machine)}, seed {soak.seed}.</p>',
        f"<p>{INTRODUCTION}</p>",
        f"<p>Nodes: {_text('; '.join(soak.nodes))}.</p>",
        '<div class="figures">' + "".join(f"<div><b>{a}</b>{b}</div>" for a, b in figures) + "</div>",
        "<h2>Verdicts</h2>",
        _table(
            ("", "condition", "measured"),
            [(_mark(v.ok), _text(v.name), _text(v.detail)) for v in soak.verdicts],
        ),
        "<h2>Faults and recoveries</h2>",
        f'<p class="soft">{LEGEND}</p>',
        f'<div class="wide">{timeline(soak)}</div>',
        _table(
            ("kind", "n:faults", "n:median recovery", "n:longest recovery", ""),
            [_kind_row(soak, kind) for kind in KINDS],
        ),
        "<h2>Every fault</h2>",
        _table(
            ("n:at", "kind", "target", "what happened", "held at that moment", "n:recovered after"),
            _fault_rows(soak),
        ),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def timeline(soak: Soak) -> str:
    """Return the timeline as SVG: a lane for each kind of fault, then the curves of progress and memory."""
    end_s = max([sample.at_s for sample in soak.samples] + [fault.end_s for fault in soak.faults] + [1.0])
    height = 24 + LANE * len(KINDS) + 3 * (CURVE + 34) + 10
    scale = (WIDTH - LEFT - RIGHT) / end_s

    def x(at_s: float) -> float:
        return round(LEFT + min(at_s, end_s) * scale, 1)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Faults and recoveries over time">']
    step_s = next(
        step for step in (10, 30, 60, 120, 300, 600, 1800, 3600) if end_s / step <= 14 or step == 3600
    )
    for tick in range(0, int(end_s) + 1, step_s):
        parts.append(f'<line x1="{x(tick)}" y1="20" x2="{x(tick)}" y2="{height}" stroke="var(--line)"/>')
        parts.append(
            f'<text class="soft" x="{x(tick)}" y="12" text-anchor="middle">{tick // 60}:{tick % 60:02}</text>'
        )
    for lane, kind in enumerate(KINDS):
        y = 24 + LANE * lane
        parts.append(f'<text x="0" y="{y + 17}">{_text(TITLES[kind])}</text>')
        parts.append(f'<line x1="0" y1="{y + LANE}" x2="{WIDTH}" y2="{y + LANE}" stroke="var(--line)"/>')
        if kind in soak.skipped:
            parts.append(
                f'<text class="soft" x="{LEFT}" y="{y + 17}">skipped: {_text(soak.skipped[kind])}</text>'
            )
        for fault in (fault for fault in soak.faults if fault.kind == kind):
            title = f"<title>{_text(f'{fault.target}: {fault.detail}')}</title>"
            parts.append(_bar(x(fault.at_s), x(fault.recovered_s or end_s), y + 11, 8, "recovery", title))
            parts.append(
                _bar(x(fault.at_s), max(x(fault.end_s), x(fault.at_s) + 3), y + 6, 18, "fault", title)
            )
    top = 24 + LANE * len(KINDS) + 34
    curves: Sequence[tuple[str, str, list[float], str]] = (
        ("lots", "lots published", [sample.lots for sample in soak.samples], ""),
        ("steps", "view steps committed", [sample.steps for sample in soak.samples], ""),
        ("memory", "memory of the steady runner", [sample.memory / 2**20 for sample in soak.samples], " MB"),
    )
    times = [sample.at_s for sample in soak.samples]
    for name, title, values, unit in curves:
        highest = max([*values, 1])
        points = " ".join(
            f"{x(at)},{round(top + CURVE - value / highest * CURVE, 1)}"
            for at, value in zip(times, values, strict=True)
        )
        parts.append(f'<text x="0" y="{top + 12}">{title}</text>')
        parts.append(f'<text class="soft" x="0" y="{top + 28}">up to {highest:,.0f}{unit}</text>')
        parts.append(f'<polyline points="{points}" fill="none" stroke="var(--{name})" stroke-width="2"/>')
        parts.append(
            f'<line x1="{LEFT}" y1="{top + CURVE}" x2="{WIDTH}" y2="{top + CURVE}" stroke="var(--line)"/>'
        )
        top += CURVE + 34
    return "".join([*parts, "</svg>"])


def _bar(left: float, right: float, y: float, height: float, colour: str, inside: str) -> str:
    return (
        f'<rect x="{left}" y="{y}" width="{round(max(right - left, 1), 1)}" height="{height}" rx="2"'
        f' fill="var(--{colour})">{inside}</rect>'
    )


def _kind_row(soak: Soak, kind: str) -> tuple[str, ...]:
    faults = [fault for fault in soak.faults if fault.kind == kind]
    times = [fault.recovered_s - fault.end_s for fault in faults if fault.recovered_s is not None]
    shown = [f"{statistics.median(times):.1f} s", f"{max(times):.1f} s"] if times else ["", ""]
    return (TITLES[kind], str(len(faults)), *shown, _text(soak.skipped.get(kind, "")))


def _fault_rows(soak: Soak) -> list[tuple[str, ...]]:
    rows = []
    for fault in soak.faults:
        more = f" and {len(fault.holds) - 3} more" if len(fault.holds) > 3 else ""
        after = "" if fault.recovered_s is None else f"{fault.recovered_s - fault.end_s:.1f} s"
        at = f"{int(fault.at_s) // 60}:{int(fault.at_s) % 60:02}"
        held = ", ".join(fault.holds[:3]) + more
        rows.append((at, TITLES[fault.kind], _text(fault.target), _text(fault.detail), _text(held), after))
    return rows


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; a head that begins with `n:` is a column of numbers."""
    classes = [' class="n"' if head.startswith("n:") else "" for head in heads]
    first = "".join(f"<th{c}>{head.removeprefix('n:')}</th>" for c, head in zip(classes, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{cell}</td>" for c, cell in zip(classes, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{first}</tr>{body}</table></div>'


def _mark(ok: bool) -> str:
    return '<span class="ok">yes</span>' if ok else '<span class="bad">no</span>'


def _text(value: Any) -> str:
    return html.escape(str(value))
