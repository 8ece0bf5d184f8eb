"""Events of a runner: its start, and its upkeep."""

from tidemill.events import Event


class SparkStarting(Event, frozen=True):
    """A run starts Spark, or connects to it, which takes some seconds.

    - where: the master or the Spark Connect server, without secrets.
    """

    pipeline: str
    where: str


class RunPlanned(Event, frozen=True):
    """A run has checked its declarations, and now processes data.

    - sources: what each source reads, by the name of its dataset.
    """

    pipeline: str
    sources: dict[str, str]
    arcs: int
    views: int
    watch: bool


class LotsExpired(Event, frozen=True):
    """Lots of a dataset, or steps of a view group, have expired. Their files are deleted later."""

    table: str
    lots: int
    position: int


class BaseMerged(Event, frozen=True):
    """Expired lots of a dataset were merged into its base lot, which has all rows up to this position."""

    table: str
    lots: int
    position: int
