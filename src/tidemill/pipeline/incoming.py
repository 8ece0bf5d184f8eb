"""Rows that come from outside while a runner runs, made to fit their table."""

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tidemill.lots.datasets import Dataset, Drift
from tidemill.pipeline import incoming_rows as fitting
from tidemill.pipeline import rows as given
from tidemill.sources.declarations import source_id
from tidemill.sources.pushing import PushSpec
from tidemill.sources.records import Growing
from tidemill.spark import schema

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


def converter(dataset: Dataset) -> Callable[[Any], pa.Table]:
    """What makes a table of the declared columns, of dictionaries or a table; raises what is wrong.

    Of a dataset that lets rows drift it keeps what does not fit, or gives what they bring (LOT-34).
    """
    if dataset.drift is Drift.RESCUE:
        return fitting.rescuing(dataset)
    grown = growing(dataset)
    if grown is not None:
        return lambda rows: grown.convert(rows, grown.columns(rows, dataset.schema))
    wanted = schema.to_arrow(schema.parse(dataset.schema))
    return lambda rows: given.to_table(rows, wanted, dataset.name)


def growing(dataset: Dataset) -> Growing | None:
    """What makes rows for a dataset that gains columns; None for any other."""
    return fitting.Grown(dataset) if dataset.drift is Drift.EVOLVE else None


def settled_push(pipeline: "Pipeline", dataset: str, spec: PushSpec) -> PushSpec:
    """With everything that a declaration may leave out. The token is the same in all processes that have the
    cluster's key, and tells nothing of it.
    """
    token = spec.token
    if not token:
        name = f"push {source_id(pipeline.name, dataset)}".encode()
        token = hmac.digest(pipeline.site.place.key.secret, name, "sha256").hex()[:40]
    return msgspec.structs.replace(spec, token=token, path=spec.path or dataset)
