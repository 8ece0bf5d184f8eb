"""The reference of metrics, from the code that makes them."""

import ast
from pathlib import Path

from tests.site.markdown import table
from tidemill.ui import metrics

OPENING = """# Metrics

`tidemill ui` and `tidemill run --ui` serve metrics for Prometheus at `/metrics`. They are read from the store
when they are requested, so they describe the whole cluster, and counters survive the restart of a runner. A
dashboard and alert rules are in [deploy](../../deploy/README.md).
"""


def families() -> list[tuple[str, str, str, str]]:
    """Return each metric: its name, kind, labels and meaning."""
    metrics_of_page = []
    for node in ast.walk(ast.parse(Path(metrics.__file__).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        kind = node.func.id.removesuffix("MetricFamily")
        if kind == node.func.id:
            continue
        name, text = (ast.literal_eval(argument) for argument in node.args[:2])
        labels = next((ast.literal_eval(each.value) for each in node.keywords if each.arg == "labels"), [])
        name += "_total" if kind == "Counter" else ""
        metrics_of_page.append((f"`{name}`", kind.lower(), ", ".join(labels), text))
    return sorted(metrics_of_page)


def page() -> str:
    """Return the page."""
    return f"{OPENING}\n{table(('metric', 'kind', 'labels', 'meaning'), list(families()))}\n"
