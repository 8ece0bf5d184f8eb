"""Events of a runner's upkeep."""

from tidemill.events import Event


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
