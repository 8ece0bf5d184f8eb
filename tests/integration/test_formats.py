"""Open a home that an earlier release stored: read all of it, and go on with it.

`tests/formats` says what is in it. A failure here means that this release cannot open the homes of users, or
rebuilds their state: fix the code, not the recorded values. A new format gets a second home; this one stays.
"""

from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.formats import history, home, pipeline, reading, store_rows
from tests.formats.futures import LARGE
from tidemill.errors import UpstreamDependencyFailed
from tidemill.events import Event
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    home.unpack(folder)
    return folder


@pytest.fixture(scope="module")
def frozen(root: Path, spark: "SparkSession") -> Iterator[tm.Pipeline]:
    with home.opened(root, spark, history.STEPS) as opened:
        yield opened


@pytest.fixture(scope="module")
def stored(root: Path) -> Iterator[tm.Pipeline]:
    """The home as it is in the archive, without Spark."""
    with home.opened(root, None, history.STEPS) as opened:
        yield opened


@pytest.fixture(scope="module")
def recorded() -> home.Recorded:
    return home.recorded()


def test_the_spaces_of_the_store_have_the_names_that_are_stored() -> None:
    stored = {name for name, _ in store_rows.SPACES} | store_rows.NO_ROWS
    assert store_rows.named_in_code() == stored - {"certificate"}, "certificates have no class of keys"


# These run in this order: each one reads what the one before left.


def test_every_row_of_the_store_is_read_and_would_be_written_as_it_is(
    stored: tm.Pipeline, recorded: home.Recorded
) -> None:
    assert reading.row_kinds(stored) == recorded["rows"]


def test_every_object_is_read_and_would_be_written_as_it_is(
    stored: tm.Pipeline, recorded: home.Recorded
) -> None:
    assert reading.objects_of(stored.context.objects) == recorded["objects"]


def test_traces_and_retired_views_are_unchanged_and_the_plan_rebuilds_nothing(
    frozen: tm.Pipeline, recorded: home.Recorded
) -> None:
    """The next test reads the tables: their old files, and those of its step."""
    current = home.observed(frozen, tables=False)
    stored = recorded["home"]["traces"]
    assert _missing(stored, current["traces"]) == pipeline.REPLACED_TRACES
    for what, expected in current.items():
        if what != "traces":
            assert _declared(what, expected) == _declared(what, recorded["home"][what]), what
    for group, traces in current["traces"].items():
        assert {name: stored[group][name] for name in traces} == traces
    assert "loads 2 traces of the view from all lots, once" in frozen["left_join"].explain().text()
    assert {*recorded["home"]} - {*current} == {"tables"}


def _missing(traces: home.Recorded, others: home.Recorded) -> dict[str, int]:
    """Count for each group the traces that the others do not have."""
    counts = {group: len(known.keys() - others[group].keys()) for group, known in traces.items()}
    return {group: count for group, count in counts.items() if count}


def _declared(what: str, observed: Any) -> Any:
    """Leave the certificates of views out of a plan: another release certifies views again."""
    if what != "plan":
        return observed
    return {
        stage: status for stage, status in observed.items() if not stage.startswith(("circuit ", "function "))
    }


def test_one_more_step_follows_the_change_alone(
    frozen: tm.Pipeline, root: Path, recorded: home.Recorded
) -> None:
    events: list[Event] = []
    after = home.stepped(frozen, root, events)
    assert after["loaded"] == pipeline.NEW_TRACES, "only operators without state read complete inputs"
    assert _missing(after["traces"], recorded["step"]["traces"]) == pipeline.NEW_TRACES
    assert _missing(recorded["step"]["traces"], after["traces"]) == pipeline.REPLACED_TRACES
    steady, expected_step = (_steady(step, frozen.views) for step in (after, recorded["step"]))
    for what, expected in expected_step.items():
        assert steady[what] == expected, what
    assert frozen["left_join"].explain().json()["loads"] == 0


LOADED = ("left_join", "full_join", "anti_join", "counted_distinct")


@pytest.mark.parametrize("view", LOADED)
def test_a_view_whose_state_was_loaded_again_published_its_change_alone(
    frozen: tm.Pipeline, recorded: home.Recorded, view: str
) -> None:
    columns = frozen[view].df().columns
    signs: dict[str, set[bool]] = {}
    for row in frozen[view].changes(recorded["home"]["positions"][view]).collect():
        signs.setdefault(repr([row[name] for name in columns]), set()).add(row["_weight"] > 0)
    assert {len(both) for both in signs.values()} <= {1}, "no row is retracted and inserted again"


def _steady(step: home.Recorded, views: Container[str]) -> home.Recorded:
    """Leave out what depends on how many steps a run takes: arcs and sources publish while it runs.

    The caller compares the traces.
    """
    return {
        **step,
        "loaded": [],
        "positions": {name: position for name, position in step["positions"].items() if name not in views},
        "changes": {name: change for name, change in step["changes"].items() if name not in views},
        "steps": sorted(step["steps"]),
        "traces": sorted(step["traces"]),
    }


def test_futures_resume(tmp_path: Path, recorded: home.Recorded) -> None:
    home.unpack(tmp_path)
    with tm.connect(home=tmp_path / "home", workers=2) as client:
        made = {name: client.future(future_id) for name, future_id in recorded["futures"].items()}

        def result(name: str) -> object:
            return made[name].result(timeout=STUCK_S)

        # stored
        assert [result(name) for name in ("inline", "keyed", "retried")] == [3, 6, "done"]
        assert result("dependent") == LARGE
        assert result("put") == {"small": [1, 2.5, None]}
        assert (result("large"), result("put large")) == ("y" * LARGE, "p" * LARGE)
        assert result("lost actor's call") == 42
        assert isinstance(made["refused"].exception(timeout=STUCK_S), LookupError)
        assert isinstance(made["upstream"].exception(timeout=STUCK_S), UpstreamDependencyFailed)
        assert client.described(made["killer"])[1] == "quarantined"
        assert client.described(made["cancelled"])[1] == "cancelled"
        assert client.described(made["unsatisfiable"])[1] == "unsatisfiable"
        (upstream,) = client.lineage(made["dependent"]).children
        assert upstream.name == "tests.formats.tasks.repeated"
        # submitted, and run now
        assert (result("pending"), result("blocked"), result("claimed")) == (30, 31, "went on")
        assert (result("actor's call"), result("actor's second call")) == (8, 38)
        assert result("local") == "z" * LARGE, "computed again: its worker is gone"
