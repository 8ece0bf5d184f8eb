"""The dashboard and the alert rules use only metrics and labels that the page has."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.page_stage import PageStage

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """The names of all samples, each with its labels."""
    text = PageStage().fill().client().get("/metrics").text
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def check(expression: str, metrics: dict[str, set[str]]) -> None:
    used = re.findall(r"\b(tidemill_\w+)(?:\{([^}]*)\})?", expression)
    assert used, expression
    for name, labels in used:
        assert name in metrics, f"{name} in {expression}"
        for label in re.findall(r"(\w+)\s*=", labels):
            assert label in metrics[name], f"{label} of {name} in {expression}"


def test_the_dashboard_reads_metrics_that_exist(metrics: dict[str, set[str]]) -> None:
    dashboard = json.loads((DEPLOY / "grafana/tidemill.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) >= 10
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            check(target["expr"], metrics)


def test_the_alert_rules_read_metrics_that_exist(metrics: dict[str, set[str]]) -> None:
    rules = (DEPLOY / "prometheus/tidemill-rules.yml").read_text()
    expressions = re.findall(r"^\s+expr: (.*)$", rules, re.MULTILINE)
    assert len(expressions) == rules.count("- alert:") >= 5
    for expression in expressions:
        check(expression, metrics)
