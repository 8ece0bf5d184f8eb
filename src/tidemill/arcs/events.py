"""What the arcs room tells."""

from tidemill.events import Event


class ArcLotBegan(Event, frozen=True):
    """An arc works on a lot; for the first time, or again."""

    arc: str
    lot: str
    generation: int
    attempt: str
    parts: int
    tries: int


class ArcLotComplete(Event, frozen=True):
    """An arc is done with a lot."""

    arc: str
    lot: str
    generation: int
    attempt: str
    rows: dict[str, int]  # by sink, as `dataset@version`


class ArcLotPartial(Event, frozen=True):
    """Parts of a lot failed; the others are kept for a retry."""

    arc: str
    lot: str
    generation: int
    failed: list[str]
    error: str


class ArcLotMissing(Event, frozen=True):
    """Nothing of a lot could be made, or it was cleaned up."""

    arc: str
    lot: str
    generation: int
    error: str
