"""Whether the views of a group follow the change, or are recomputed, and why: known at plan (DBSP-17)."""

from collections.abc import Sequence

from tidemill.pipeline.catalog import Catalog
from tidemill.runner.program import ViewProgram
from tidemill.views.spark.chains import Chained, chained, kind_of


def chain_of(catalog: Catalog, views: Sequence[ViewProgram]) -> Chained:
    """The chain of a group's views, as a runner will make it."""
    declared = {name: catalog.known[name].dataset for view in views for name in view.datasets}
    datasets = {name: one for name, one in declared.items() if one is not None}
    return chained(
        catalog.spark,
        {view.name: None if view.refresh == "full" else view.circuit for view in views},
        {name: catalog.frame(name) for name in datasets},
        {name: kind_of(one) for name, one in datasets.items()},
        "chain",
    )
