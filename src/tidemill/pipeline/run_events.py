"""Events of the start of a run, and their progress lines. Starting Spark and planning take some seconds."""

from tidemill.events import Event
from tidemill.obs.lines import Line, counted, line_of


class SparkStarting(Event, frozen=True):
    """A run starts Spark, or connects to it, which takes some seconds.

    - where: the master or the Spark Connect server, without secrets.
    """

    pipeline: str
    where: str


class RunPlanned(Event, frozen=True):
    """A run has checked its declarations, and now processes data.

    - sources: what each source reads, by its label: `orders`, or `orders#csv`.
    - selected: the selectors, if the run processes only a part of the pipeline.
    - together: views that are updated with a selected view, because they are in its group.
    """

    pipeline: str
    sources: dict[str, str]
    arcs: int
    views: int
    watch: bool
    selected: str = ""
    together: tuple[str, ...] = ()


@line_of.register
def _(event: SparkStarting) -> Line:
    return Line(event.pipeline, f"starting Spark ({event.where})")


@line_of.register
def _(event: RunPlanned) -> Line:
    numbers = {"source": len(event.sources), "arc": event.arcs, "view": event.views}
    parts = ", ".join(counted(number, noun) for noun, number in numbers.items() if number) or "no tables"
    watching = f"; watching {', '.join(event.sources.values())}" if event.watch and event.sources else ""
    selected = f" (selected: {event.selected})" if event.selected else ""
    others = f"; {', '.join(event.together)} follow, in the same group" if event.together else ""
    return Line(event.pipeline, f"runs {parts}{selected}{others}{watching}")
