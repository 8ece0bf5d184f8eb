"""Rows that come from outside while a runner runs, made to fit their table."""

import hmac
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tidemill.lots.checks import Check
from tidemill.lots.datasets import Dataset, Kind
from tidemill.pipeline import rows as given
from tidemill.sources.declarations import source_id
from tidemill.sources.pushing import PushSpec
from tidemill.spark import operations, schema
from tidemill.spark.checking import refuse
from tidemill.spark.checking_arrow import check_table

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


def converter(dataset: Dataset, checks: Sequence[Check] = ()) -> Callable[[Any], pa.Table]:
    """What makes a table of the declared columns, of dictionaries or a table; raises what is wrong.

    - checks: what the rows must pass, each of them: whoever sends them is there to hear it.
    """
    wanted = schema.to_arrow(schema.parse(dataset.schema))
    operation = operations.Operation.UPSERT if dataset.kind is Kind.KEYED else operations.Operation.APPEND

    def convert(rows: Any) -> pa.Table:
        table = given.to_table(rows, wanted, dataset.name)
        if checks:
            checked = check_table(operations.stored_table(table, dataset, operation), checks, dataset.kind)
            refuse(dataset.name, checks, checked.counts, table.num_rows)
        return table

    return convert


def settled_push(pipeline: "Pipeline", dataset: str, spec: PushSpec) -> PushSpec:
    """With everything that a declaration may leave out. The token is the same in all processes that have the
    cluster's key, and tells nothing of it.
    """
    token = spec.token
    if not token:
        name = f"push {source_id(pipeline.name, dataset)}".encode()
        token = hmac.digest(pipeline.site.place.key.secret, name, "sha256").hex()[:40]
    return msgspec.structs.replace(spec, token=token, path=spec.path or dataset)
