"""Spark settings for many queries over a few rows, as certification runs them."""

from collections.abc import Mapping
from typing import Final

FOR_SMALL_QUERIES: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
}
"""With its usual settings, Spark would spend most of the time generating Java code, describing and checking
plans, and starting a job for each join. These settings change neither results nor types."""
