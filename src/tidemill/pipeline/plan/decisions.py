"""Decide how each view of a group is computed. Steps, `explain` and the page follow the same decision.

A step takes the circuits of the views that are certified, and builds the chain of the group from them
(`views.spark.group_chain`). The chain computes its views from the changes; each step recomputes all other
views. `decide` does the same, and says why a view is recomputed.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.plan.circuits import chain_of
from tidemill.runner.program import GroupProgram, ViewProgram
from tidemill.views.certify.certificates import ViewCertificate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def decide(
    spark: "SparkSession",
    group: GroupProgram,
    datasets: Mapping[DatasetId, DatasetRow],
    certificates: Mapping[str, ViewCertificate | None],
) -> dict[str, str]:
    """Return the views that each step recomputes, and why.

    Args:
        spark: the session.
        group: the views of the group.
        datasets: the datasets that they read.
        certificates: the result of the comparison of each view; a view without a result is not refused.
    """
    views = [view.certified_by(certificates) for view in group.views]
    reasons = chain_of(spark, views, datasets).reasons
    return {
        before.name: _why(before, view, reasons[view.name])
        for before, view in zip(group.views, views, strict=True)
        if view.name in reasons
    }


def _why(view: ViewProgram, certified: ViewProgram, reason: str) -> str:
    if view.refresh == "full":
        return "refresh='full'"
    if certified.circuit is not view.circuit:
        return "it is not certified"
    return reason
