"""Decide how each view of a group is computed. Steps, `explain` and the page follow the same decision.

A step takes the circuits of the views that are certified, and builds the chain of the group from them
(`views.spark.group_chain`). The chain computes its views from the changes; each step recomputes all other
views. `decide` does the same, and says why a view is recomputed.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.plan.circuits import chain_of
from tidemill.runner.program import GroupProgram, ViewProgram
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.spark.group_chain import GroupChain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def decide(
    spark: "SparkSession",
    group: GroupProgram,
    datasets: Mapping[DatasetId, DatasetRow],
    certificates: Mapping[str, ViewCertificate | None],
    passed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the views that each step recomputes, and why.

    Args:
        spark: the session.
        group: the views of the group.
        datasets: the datasets that they read.
        certificates: the result of the comparison of each view; a view without a result is not refused.
        passed: the lots that views pass over, as text.
    """
    reasons = certified_chain(spark, group, datasets, certificates, passed).reasons
    return {
        view.name: _why(view, view.certified_by(certificates), reasons[view.name], passed.get(view.name, ""))
        for view in group.views
        if view.name in reasons
    }


def certified_chain(
    spark: "SparkSession",
    group: GroupProgram,
    datasets: Mapping[DatasetId, DatasetRow],
    certificates: Mapping[str, ViewCertificate | None],
    passed: Mapping[str, str] = MappingProxyType({}),
) -> GroupChain:
    """Return the chain of a group's certified views; the arguments are those of `decide`.

    A view that passes over lots is not in the chain: the chain computes all its views from the same input.
    """
    certified = [view.certified_by(certificates) for view in group.views]
    views = [replace(view, circuit=None) if view.name in passed else view for view in certified]
    return chain_of(spark, views, datasets)


def _why(view: ViewProgram, certified: ViewProgram, reason: str, passed: str) -> str:
    if view.refresh == "full":
        return "refresh='full'"
    if passed:
        return f"it passes over {passed}"
    if certified.circuit is not view.circuit:
        return "it is not certified"
    return reason
