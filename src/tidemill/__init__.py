"""Tidemill: incremental data pipelines on Apache Spark."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.errors import TidemillError
    from tidemill.futures.client.client import Client, connect
    from tidemill.futures.client.future import Future
    from tidemill.futures.client.gather import as_completed, gather
    from tidemill.lots.checks import Check, expect, not_null, rows, unique
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.report import Report
    from tidemill.pipeline.tables import Dataset, Table, View
    from tidemill.sources.bucket import bucket
    from tidemill.sources.folder import folder
    from tidemill.sources.kafka import kafka
    from tidemill.sources.polling import http_poll
    from tidemill.sources.pushing import http_push
    from tidemill.spark.sessions import SparkSettings

__version__ = "0.1.0"

__all__ = [
    "Check",
    "Client",
    "Dataset",
    "Future",
    "Pipeline",
    "Report",
    "SparkSettings",
    "Table",
    "TidemillError",
    "View",
    "__version__",
    "as_completed",
    "bucket",
    "connect",
    "expect",
    "folder",
    "gather",
    "http_poll",
    "http_push",
    "kafka",
    "not_null",
    "rows",
    "unique",
]

_HOMES = {
    "Check": "tidemill.lots.checks",
    "Client": "tidemill.futures.client.client",
    "Dataset": "tidemill.pipeline.tables",
    "Future": "tidemill.futures.client.future",
    "Pipeline": "tidemill.pipeline.pipeline",
    "Report": "tidemill.pipeline.report",
    "SparkSettings": "tidemill.spark.sessions",
    "Table": "tidemill.pipeline.tables",
    "TidemillError": "tidemill.errors",
    "View": "tidemill.pipeline.tables",
    "as_completed": "tidemill.futures.client.gather",
    "bucket": "tidemill.sources.bucket",
    "connect": "tidemill.futures.client.client",
    "expect": "tidemill.lots.checks",
    "folder": "tidemill.sources.folder",
    "gather": "tidemill.futures.client.gather",
    "http_poll": "tidemill.sources.polling",
    "http_push": "tidemill.sources.pushing",
    "kafka": "tidemill.sources.kafka",
    "not_null": "tidemill.lots.checks",
    "rows": "tidemill.lots.checks",
    "unique": "tidemill.lots.checks",
}
"""Where each public name lives; its module is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
