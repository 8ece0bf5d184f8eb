"""Views that are not declared any more, as users hold them: computed no more, and still there to be read."""

from typing import TYPE_CHECKING

from tidemill.views.spark.tables import Tables
from tidemill.views.steps import retired
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.steps.retired import Retired

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.pipeline.pipeline import Pipeline


class RetiredView:
    """A view that is no longer declared: its rows as of its last step.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> shop.retired()
    {}
    """

    def __init__(self, pipeline: "Pipeline", kept: Retired) -> None:
        self.pipeline = pipeline
        self.name = kept.view
        self.position = kept.step
        """The step it was at, and stays at."""
        self._table = kept.table

    def df(self) -> "DataFrame":
        """Its rows, as a Spark DataFrame."""
        site = self.pipeline.site
        with site.spark() as spark:
            tables = Tables(site.storage, ManifestReader(site.objects), site.clock)
            return tables.content(spark, self._table)

    def drop(self) -> bool:
        """Give it up: it can be read no more, and a runner's clean-up removes its files, when nobody who has
        begun before reads them. False when it was dropped already, or is declared again.
        """
        site = self.pipeline.site
        return site.store.run(lambda tx: retired.drop(tx, site.keys, self.pipeline.name, self.name))

    def __repr__(self) -> str:
        return f"<RetiredView {self.name} of {self.pipeline.name}, at step {self.position}>"


def listed(pipeline: "Pipeline") -> dict[str, RetiredView]:
    """The views that were taken out of a pipeline, by name."""
    site = pipeline.site
    found = site.store.run(lambda tx: retired.listed(tx, site.keys, pipeline.name))
    return {one.view: RetiredView(pipeline, one) for one in found if one.view not in pipeline.views}
