"""Tidemill: incremental data pipelines on Apache Spark.

`__all__` lists the public API. The package imports a module only when one of its names is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tidemill.sources.registry import SOURCES

if TYPE_CHECKING:
    from tidemill import errors
    from tidemill.arcs.gaps import Coverage, Gap
    from tidemill.errors import (
        AppendRefused,
        ArcError,
        CheckFailed,
        ClusterError,
        DeclarationError,
        FutureCancelled,
        FutureError,
        FutureFailed,
        FutureTimeout,
        LeaseLost,
        LotError,
        NotIncremental,
        ObjectError,
        PipelineError,
        PublishError,
        QueryError,
        SourceError,
        SparkError,
        StoreError,
        SubscriptionError,
        TidemillError,
        TraceError,
        UsageError,
        ViewError,
    )
    from tidemill.events import Event
    from tidemill.futures.client.client import Client, connect
    from tidemill.futures.client.future import Future
    from tidemill.futures.client.gather import as_completed, gather
    from tidemill.futures.worker.task_context import current_task
    from tidemill.lots.checks import Check, expect, foreign_key, not_null, rows, unique
    from tidemill.lots.producers import Receipt
    from tidemill.obs.hooks import command, webhook
    from tidemill.pipeline.explanation import Explanation
    from tidemill.pipeline.gaps import GapReport
    from tidemill.pipeline.lot_info import LotInfo
    from tidemill.pipeline.lot_requests import LotRequestPlan
    from tidemill.pipeline.pace import Pace
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.plan.plan import Plan
    from tidemill.pipeline.run_report import ArcReport, Report
    from tidemill.pipeline.tables import Dataset, RetiredDataset, RetiredView, Table, View
    from tidemill.runner.compaction import Compacted
    from tidemill.sources.bucket import bucket
    from tidemill.sources.folder import folder
    from tidemill.sources.http_poll import http_poll
    from tidemill.sources.http_push import http_push
    from tidemill.sources.kafka import kafka
    from tidemill.sources.source import PushAddress
    from tidemill.spark.sessions import SparkSettings

__version__ = "0.1.0"

__all__ = [
    "AppendRefused",
    "ArcError",
    "ArcReport",
    "Check",
    "CheckFailed",
    "Client",
    "ClusterError",
    "Compacted",
    "Coverage",
    "Dataset",
    "DeclarationError",
    "Event",
    "Explanation",
    "Future",
    "FutureCancelled",
    "FutureError",
    "FutureFailed",
    "FutureTimeout",
    "Gap",
    "GapReport",
    "LeaseLost",
    "LotError",
    "LotInfo",
    "LotRequestPlan",
    "NotIncremental",
    "ObjectError",
    "Pace",
    "Pipeline",
    "PipelineError",
    "Plan",
    "PublishError",
    "PushAddress",
    "QueryError",
    "Receipt",
    "Report",
    "RetiredDataset",
    "RetiredView",
    "SourceError",
    "SparkError",
    "SparkSettings",
    "StoreError",
    "SubscriptionError",
    "Table",
    "TidemillError",
    "TraceError",
    "UsageError",
    "View",
    "ViewError",
    "__version__",
    "as_completed",
    "bucket",
    "command",
    "connect",
    "current_task",
    "errors",
    "expect",
    "folder",
    "foreign_key",
    "gather",
    "http_poll",
    "http_push",
    "kafka",
    "not_null",
    "rows",
    "unique",
    "webhook",
]

_MODULES = {
    "arcs.gaps": "Coverage Gap",
    "errors": """
        AppendRefused ArcError CheckFailed ClusterError DeclarationError FutureCancelled FutureError
        FutureFailed FutureTimeout LeaseLost LotError NotIncremental ObjectError PipelineError PublishError
        QueryError SourceError SparkError StoreError SubscriptionError TidemillError TraceError UsageError
        ViewError
        """,
    "events": "Event",
    "futures.client.client": "Client connect",
    "futures.client.future": "Future",
    "futures.client.gather": "as_completed gather",
    "futures.worker.task_context": "current_task",
    "lots.checks": "Check expect foreign_key not_null rows unique",
    "lots.producers": "Receipt",
    "obs.hooks": "command webhook",
    "pipeline.explanation": "Explanation",
    "pipeline.gaps": "GapReport",
    "pipeline.lot_requests": "LotRequestPlan",
    "pipeline.lot_info": "LotInfo",
    "pipeline.pace": "Pace",
    "pipeline.pipeline": "Pipeline",
    "pipeline.plan.plan": "Plan",
    "pipeline.run_report": "ArcReport Report",
    "pipeline.tables": "Dataset RetiredDataset RetiredView Table View",
    "runner.compaction": "Compacted",
    "sources.source": "PushAddress",
    "spark.sessions": "SparkSettings",
}
"""The module of each public name, below `tidemill`."""

_MODULE_OF = {name: f"tidemill.{module}" for module, names in _MODULES.items() for name in names.split()}
_MODULE_OF |= SOURCES


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("tidemill.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
