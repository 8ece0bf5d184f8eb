"""Progress adds up: no bar says that more is finished than is known, and an ended run shows what it did."""

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete
from tidemill.obs.progress import Progress
from tidemill.sources.events import FilesDiscovered, WindowPublished
from tidemill.triggers.events import RunEnded, RunStarted
from tidemill.views.steps.events import StepCommitted

ARC, VIEWS, SOURCE = "arc:shop/clean", "views:shop/main", "source:shop/orders"


def complete(lot: str) -> ArcLotComplete:
    return ArcLotComplete(arc=ARC, lot=lot, generation=1, attempt="a", rows={"clean@1": 5})


def test_an_arc_counts_the_lots_that_wait_and_then_those_that_it_made() -> None:
    progress = Progress()
    progress(RunStarted(name=ARC, epoch=1, behind=4, most=2))
    bar = progress.bars[ARC]
    assert bar.count == "0/2"
    progress(ArcLotBegan(arc=ARC, lot="L1", generation=1, attempt="a", parts=1, tries=1))
    progress(complete("L1"))
    assert bar.count == "1/2"
    progress(RunEnded(name=ARC, epoch=1))
    assert bar.count == "1", "the second lot was empty, or removed"
    for lot in ("L2", "L3", "L4"):  # such as requested lots, which belong to no run
        progress(complete(lot))
        assert bar.count == str(bar.done)
    progress(RunStarted(name=ARC, epoch=2, behind=1, most=1))
    assert bar.count == "4/5"


def test_a_source_publishes_files_that_an_earlier_run_took() -> None:
    progress = Progress()
    for window in (1, 2):
        progress(WindowPublished(source=SOURCE, window=window, lot="L", position=1, files=1, rows=3))
    assert progress.bars[SOURCE].count == "2"
    progress(FilesDiscovered(source=SOURCE, files=3, size=30, windows=1))
    assert progress.bars[SOURCE].count == "2/3"


def test_views_show_how_many_lots_wait_and_not_how_many_steps() -> None:
    progress = Progress()
    progress(RunStarted(name=VIEWS, epoch=1, behind=5, most=3))
    bar = progress.bars[VIEWS]
    assert (bar.count, bar.note) == ("0", "5 lots to read")
    progress(
        StepCommitted(pipeline="shop", group="main", step=1, after=1, attempt="a", views=("revenue",), rows=2)
    )
    progress(RunEnded(name=VIEWS, epoch=1))
    assert (bar.count, bar.note, bar.share) == ("1", "", 1.0)
