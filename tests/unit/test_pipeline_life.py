"""Gaps, backfills, replays, retries, pauses and corrections through the public API, without Spark."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tests.leases import end_lease
from tests.unit.life_stage import LifeStage
from tidemill import crash
from tidemill.arcs import lot_requests as arc_requests
from tidemill.arcs.lot_requests import RequestKind
from tidemill.arcs.work import LotEnd
from tidemill.cli import main
from tidemill.clock import SYSTEM
from tidemill.errors import (
    AppendRefused,
    BadLotId,
    CorrectionRefused,
    DeclarationError,
    LotUnknown,
    NoLots,
    SubscriptionUnknown,
    UsageError,
)
from tidemill.lots import lots as lot_rows
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId
from tidemill.objects import open_objects
from tidemill.pipeline import graph, lot_requests, pipeline_file
from tidemill.pipeline.lot_requests import LotAction, LotProgress
from tidemill.pipeline.plan.arc_stages import DeclareArc
from tidemill.pipeline.status import status_of
from tidemill.publish.parts import PartTask
from tidemill.store import open_store
from tidemill.triggers import runs
from tidemill.triggers.subscriptions import Scheduled

FILE = """
import tidemill as tm

shop = tm.Pipeline("shop", home="home", cluster="c")
orders = shop.dataset("orders", "id BIGINT")
clicks = shop.dataset("clicks", "id BIGINT", lots="PT5M")
rates = shop.dataset("rates", "id BIGINT", lots="PT5M")
plain = shop.dataset("plain", "id BIGINT")
keyed = shop.dataset("keyed", "id BIGINT, n BIGINT", key="id")

@shop.arc(reads=orders, writes=("cleaned", "odd"), max_concurrent=3)
def clean(df):
    return df, df

@shop.arc(reads="cleaned", writes="summed")
def sum(df):
    return df

@shop.arc(reads=(clicks, rates), writes="joined")
def join(clicks, rates):
    return clicks

shop.view("totals", "SELECT id FROM summed")
shop.view("more", "SELECT id FROM totals JOIN odd USING (id)", group="main")
"""


class Scene:
    """A pipeline in a file, and a stage on its store that acts as a runner."""

    def __init__(self, folder: Path) -> None:
        (folder / "shop.py").write_text(FILE)
        self.target = f"{folder / 'shop.py'}:shop"
        self.shop = pipeline_file.find(self.target)
        place = self.shop.context.place
        Path(place.home).mkdir()
        self.store = open_store(place.store)  # its own: the command line closes the pipeline's
        self.stage = LifeStage(self.store, open_objects(place.objects, clock=SYSTEM), scan=False)
        self.node = self.stage.living("runner")
        self.worker = self.stage.worker(self.node)
        self.specs = {"clean": self.stage.clean(max_concurrent=3), "sum": self.stage.sum()}
        for spec in self.specs.values():
            self.stage.subscribe(spec.id, *spec.reads, most_failures=10)

    def catch_up(self) -> list[tuple[str, str, str]]:
        """Run everything that is due, then all requests; return (arc, lot, end) for each lot."""
        ends = []
        while True:
            outcomes = [
                outcome
                for spec in self.specs.values()
                for outcome in self.stage.drain(spec, self.worker, self.node)
            ]
            for request in self.stage.run(arc_requests.startable, self.stage.keys, list(self.specs.values())):
                spec = next(spec for spec in self.specs.values() if spec.id == request.arc)
                outcomes.append(self.worker.make_requested(spec, request))
            if not outcomes:
                return ends
            ends += [
                (outcome.arc.partition("/")[2], outcome.lot, outcome.ended.value) for outcome in outcomes
            ]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with scene.store, scene.shop:
        yield scene


# --- planning


@pytest.mark.rule("LOT-31")
def test_a_replay_is_planned_first_and_a_dry_run_changes_nothing(scene: Scene) -> None:
    appended = [scene.stage.append([n]) for n in range(4)]
    scene.catch_up()
    plan = scene.shop.replay("cleaned", first=appended[1], last=appended[2], dry_run=True)
    assert [(lot.arc, lot.lot, lot.action) for lot in plan.lots] == [
        ("clean", appended[1], LotAction.REMAKE),
        ("clean", appended[2], LotAction.REMAKE),
    ]
    assert (plan.arc, plan.parallel, plan.batch) == ("clean", 3, "")
    assert plan.downstream == ("summed", "totals", "more")
    assert scene.catch_up() == []
    requested = scene.shop.replay("clean", [appended[1]], parallel=1)
    assert requested.batch
    progress = LotProgress(scene.shop, requested)
    progress.update()
    assert len(progress.remaining) == 1
    assert scene.catch_up() == [("clean", appended[1], "complete"), ("sum", appended[1], "complete")]
    progress.update()
    assert (progress.remaining, progress.failed) == ([], [])
    assert [row.generation for row in scene.stage.rows_of(scene.stage.summed)] == [0, 1, 0, 0]
    assert "1 remake" in str(requested)


def skip_lot(scene: Scene) -> str:
    """Append a lot that `clean` skips, so that a backfill can request it."""
    scene.shop.pause("clean")
    lot = scene.stage.append([7])
    scene.shop.resume("clean", catch_up="none")
    return lot


def test_a_backfill_waits_for_a_lot_that_was_requested_before(scene: Scene) -> None:
    lot = skip_lot(scene)
    scene.shop.backfill("cleaned", [lot])
    progress = LotProgress(scene.shop, scene.shop.backfill("cleaned", [lot]))
    progress.update()
    assert [planned.lot for planned in progress.remaining] == [lot]

    def look(_: PartTask) -> None:
        running = LotProgress(scene.shop, scene.shop.backfill("cleaned", [lot]))
        running.update()
        assert [planned.why for planned in running.remaining] == ["it is running"]

    scene.stage.parts.between = look
    scene.catch_up()
    progress.update()
    assert (progress.remaining, progress.failed) == ([], [])


def test_a_backfill_waits_for_the_lots_that_follow_it_and_names_the_lots_that_failed(scene: Scene) -> None:
    good = skip_lot(scene)
    progress = LotProgress(scene.shop, scene.shop.backfill("summed", [good]))
    progress.update()
    assert {(planned.arc, planned.lot) for planned in progress.remaining} == {("clean", good), ("sum", good)}
    for request in scene.stage.run(arc_requests.startable, scene.stage.keys, [scene.specs["clean"]]):
        scene.worker.make_requested(scene.specs["clean"], request)
    progress.update()
    assert [(planned.arc, planned.lot) for planned in progress.remaining] == [("sum", good)]
    scene.catch_up()
    progress.update()
    assert (progress.remaining, progress.failed) == ([], [])
    bad = skip_lot(scene)
    scene.stage.parts.failing[7] = 10
    progress = LotProgress(scene.shop, scene.shop.backfill("summed", [bad]))
    scene.catch_up()
    progress.update()
    assert progress.remaining == []
    assert [(planned.arc, planned.lot) for planned in progress.failed] == [("clean", bad), ("sum", bad)]


def test_backfill_with_wait_exits_with_1_if_a_lot_was_not_produced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lot = skip_lot(scene)
    scene.shop.backfill("cleaned", [lot])
    scene.stage.parts.failing[7] = 10
    monkeypatch.setattr(type(SYSTEM), "sleep", lambda *_: scene.catch_up())
    assert main(["backfill", "-f", scene.target, "cleaned", lot, "--wait", "--json"]) == 1
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [failed["lot"] for failed in result["failed"]] == [lot]
    scene.stage.parts.failing.clear()
    assert main(["backfill", "-f", scene.target, "cleaned", lot, "--wait"]) == 0


@pytest.mark.rule("LOT-31")
def test_a_backfill_makes_missing_lots_and_their_missing_inputs(scene: Scene) -> None:
    stage = scene.stage
    existing, failed, skipped = stage.append([1]), stage.append([7]), stage.append([3])
    stage.parts.failing[7] = 10
    for name in ("clean", "sum"):
        scene.shop.pause(name)
    scene.shop.resume("clean", catch_up="none")
    scene.shop.resume("sum")
    scene.worker.work(scene.specs["clean"], existing)
    scene.worker.work(scene.specs["clean"], failed)
    scene.catch_up()
    stage.parts.failing.clear()
    plan = scene.shop.backfill("summed", dry_run=True)
    assert [(lot.arc, lot.lot, lot.action.value, lot.why) for lot in plan.lots] == [
        ("sum", existing, "skip", "it exists"),
        ("clean", failed, "make", "it is partial"),
        ("sum", failed, "follow", "after clean"),
        ("clean", skipped, "make", "it is absent"),
        ("sum", skipped, "follow", "after clean"),
    ]
    scene.shop.backfill("summed")
    scene.catch_up()
    assert stage.table(stage.summed) == {existing: [1], failed: [7], skipped: [3]}
    assert scene.shop.gaps()
    assert scene.shop.backfill("summed").requested == []  # nothing is left to make


@pytest.mark.rule("LOT-31")
def test_an_empty_range_and_lots_that_no_arc_makes_are_errors(scene: Scene) -> None:
    with pytest.raises(NoLots) as empty:
        scene.shop.backfill("cleaned")
    assert empty.value.hint == "append rows, or run the pipeline"
    appended = [scene.stage.append([n]) for n in range(2)]
    with pytest.raises(NoLots) as outside:
        scene.shop.backfill("cleaned", first="A00000000000000009")
    assert "cleaned has no lots from A00000000000000009" in outside.value.message
    assert outside.value.hint == f"it has lots from {appended[0]} to {appended[1]}"
    with pytest.raises(LotUnknown, match="A00000000000000009"):
        scene.shop.replay("cleaned", ["A00000000000000009"])
    with pytest.raises(BadLotId, match="is reversed"):
        scene.shop.backfill("cleaned", first=appended[1], last=appended[0])
    with pytest.raises(BadLotId):
        scene.shop.backfill("cleaned", first="yesterday")
    with pytest.raises(UsageError, match="no arc writes the dataset"):
        scene.shop.replay("orders", ["A00000000000000001"])
    with pytest.raises(UsageError, match="is a view; arcs do not write views"):
        scene.shop.backfill("totals")
    with pytest.raises(UsageError, match="no arc or table"):
        scene.shop.backfill("nothing")
    with pytest.raises(UsageError, match="parallel=0"):
        scene.shop.backfill("cleaned", parallel=0)
    with pytest.raises(UsageError, match="range"):
        scene.shop.replay("cleaned", appended, first=appended[0])
    assert scene.stage.run(arc_requests.pending, scene.stage.keys) == []


def test_a_replay_reports_lots_never_made_and_a_blocked_lot_names_the_missing_input(
    scene: Scene,
) -> None:
    lot = scene.stage.append([1])
    (planned,) = scene.shop.replay("cleaned", [lot], dry_run=True).lots
    assert (planned.action, planned.why) == (LotAction.SKIP, "it was never made; use backfill")
    scene.stage.lot_of(scene.stage.clicks, "20230101PT5M000", 1)
    (planned,) = scene.shop.backfill("joined", ["20230101PT5M000"]).lots
    assert planned.action is LotAction.BLOCKED
    assert planned.why == "rates has no lot 20230101PT5M000, and no arc writes it"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("20230101PT5M003", "20230101PT5M004", ("20230101PT5M003", "20230101PT5M004")),
        ("2023-01-01", "2023-01-02", ("20230101PT5M000", "20230102PT5M287")),
        ("20230101", "20230101", ("20230101PT5M000", "20230101PT5M287")),
        ("2023-01-01T04:12:00Z", "2023-01-01T05:00:00+01:00", ("20230101PT5M050", "20230101PT5M048")),
        (date(2023, 1, 1), datetime(2023, 1, 1, 4, 12, tzinfo=UTC), ("20230101PT5M000", "20230101PT5M050")),
        (None, "2023-01-01T00:07", ("", "20230101PT5M001")),
        ("20230101PT1H001", None, ("20230101PT5M012", "")),
    ],
)
def test_a_range_can_consist_of_lots_days_or_times(first: Any, last: Any, expected: tuple[str, str]) -> None:
    unit = Unit.parse("PT5M")
    if expected[1] and expected[1] < expected[0]:
        with pytest.raises(BadLotId):
            graph.interval_span(unit, first, last)
        return
    span = graph.interval_span(unit, first, last)
    assert (span.first, span.last) == expected
    with pytest.raises(BadLotId):
        graph.interval_span(unit, "yesterday", None)


@pytest.mark.rule("LOT-31")
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_request_that_dies_can_be_repeated_and_nothing_is_made_twice(
    scene: Scene, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lot_requests, "PAGE", 2)
    appended = [scene.stage.append([n]) for n in range(5)]
    scene.catch_up()
    with crash.armed(f"lot_requests.submit.{side}", visit=2), pytest.raises(crash.Crashed):
        scene.shop.replay("sum", first=appended[0])
    progress: list[tuple[int, int]] = []
    plan = lot_requests.plan(scene.shop, RequestKind.REPLAY, "sum", first=appended[0])
    lot_requests.submit(scene.shop, plan, lambda stored, total: progress.append((stored, total)))
    assert progress == [(2, 5), (4, 5), (5, 5)]
    scene.catch_up()
    assert [row.generation for row in scene.stage.rows_of(scene.stage.summed)] == [1] * 5


# --- status


def test_the_status_shows_no_runner_that_is_gone(scene: Scene) -> None:
    scene.stage.append([1])
    scene.stage.page_all()
    assert scene.stage.start(scene.node, scene.specs["clean"].id) is not None
    run = next(run for run in status_of(scene.shop).runs if run.name == "clean")
    assert (run.state, run.node, run.waiting) == ("running", scene.node.id, ())
    end_lease(scene.store, scene.stage.cluster, scene.node.id)
    run = next(run for run in status_of(scene.shop).runs if run.name == "clean")
    assert (run.state, run.node) == ("scheduled", "")
    assert run.waiting == (f"its runner {scene.node.id} is gone; the next runner continues",)


def test_requested_lots_are_work_for_status_gaps_and_triggers(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    file = scene.target
    appended = [scene.stage.append([n]) for n in range(3)]
    scene.catch_up()

    def shown() -> tuple[tuple[bool, str, int], tuple[int, int, int], tuple[str, int, str]]:
        _, status = run(capsys, "status", "-f", file)
        clean = next(row for row in status["runs"] if row["name"] == "clean")
        code, gaps = run(capsys, "gaps", "cleaned", "-f", file)
        (table,) = gaps["tables"]
        _, triggers = run(capsys, "triggers", "--name", "clean", "-f", file)
        (trigger,) = triggers["triggers"]
        return (
            (status["ok"], clean["state"], clean["requested"]),
            (code, table["gaps"], table["requested"]),
            (trigger["state"], trigger["requested"], trigger["why"]),
        )

    caught_up = ((False, "waiting", 0), (0, 0, 0), ("waiting", 0, "up to date"))  # `join` has never run
    assert shown() == caught_up
    scene.shop.replay("cleaned", appended[:2])
    assert shown() == ((False, "scheduled", 2), (0, 0, 2), ("due", 2, "2 requested lots to make"))
    notes = [lot["note"] for lot in run(capsys, "lots", "cleaned", "-f", file)[1]["lots"]]
    assert notes == ["requested", "requested", ""]
    assert main(["status", "-f", file]) == 0
    assert "2 requested" in capsys.readouterr().out
    assert main(["gaps", "cleaned", "-f", file]) == 0
    assert "to make the requested lots, run `tidemill run`" in capsys.readouterr().out
    assert main(["triggers", "--state", "due", "-f", file]) == 0
    assert "clean" in capsys.readouterr().out
    scene.catch_up()
    assert shown() == caught_up


def test_a_gap_that_a_backfill_requests_is_not_called_skipped(scene: Scene) -> None:
    lot = skip_lot(scene)
    (gap,) = scene.shop.gaps("cleaned").gaps
    assert gap.cause.why.endswith("skipped this lot")
    scene.shop.backfill("cleaned", [lot])
    (gap,) = scene.shop.gaps("cleaned").gaps
    assert gap.cause.why == "requested, but not started yet"
    scene.shop.pause("clean")
    (gap,) = scene.shop.gaps("cleaned").gaps
    assert gap.cause.why == "arc clean is paused"


# --- retry, pause, gaps


def test_a_retry_requests_failed_lots_and_revives_a_dead_arc(scene: Scene) -> None:
    stage = scene.stage
    lot = stage.append([7])
    stage.parts.failing[7] = 1
    scene.catch_up()
    assert scene.shop.retry() == [("clean", lot)]
    assert scene.shop.retry("cleaned") == [("clean", lot)]
    scene.catch_up()
    assert scene.shop.retry() == []
    assert scene.shop.gaps("summed")
    spec = scene.specs["clean"]
    stage.append([8])
    for _ in range(10):
        stage.page_all()
        ticket = stage.start(scene.node, spec.id)
        stage.run(runs.fail, stage.triggers, stage.cluster, ticket, backoff_us=0)
    assert stage.row(spec.id).tally.dead
    assert [gap.state.value for gap in scene.shop["cleaned"].gaps().gaps] == ["dead"]
    assert {run.name for run in status_of(scene.shop).runs if run.dead and run.needs_attention} == {"clean"}
    scene.shop.retry("clean")
    assert not stage.row(spec.id).tally.dead
    assert [end[2] for end in scene.catch_up()] == ["complete", "complete"]


@pytest.mark.rule("LOT-38")
def test_an_arc_paused_by_its_name_or_table_stops_and_loses_nothing(scene: Scene) -> None:
    first = scene.stage.append([1])
    scene.catch_up()
    assert scene.shop.pause("cleaned", "sum") == ["cleaned", "sum"]
    assert {run.name for run in status_of(scene.shop).runs if run.paused} == {"clean", "sum"}
    second = scene.stage.append([2])
    assert scene.catch_up() == []
    assert scene.shop.resume("clean") == ["clean"]
    assert [end[:2] for end in scene.catch_up()] == [("clean", second)]
    scene.shop.resume("summed")
    assert [end[:2] for end in scene.catch_up()] == [("sum", second)]
    assert list(scene.stage.table(scene.stage.summed)) == [first, second]
    with pytest.raises(UsageError, match="cannot be paused or resumed"):
        scene.shop.pause("orders")
    with pytest.raises(SubscriptionUnknown, match="has not run yet"):
        scene.shop.pause("totals")


@pytest.mark.rule("LOT-38")
def test_a_disabled_declaration_pauses_once_and_a_manual_pause_stays(
    scene: Scene,
) -> None:
    context, stage = scene.shop.context, scene.stage
    on, off = stage.clean(), stage.clean(enabled=False)
    lot = stage.append([1])

    def paused() -> bool:
        return stage.row(on.id).tally.paused

    DeclareArc(spec=off, where="x").apply(context, "n")
    assert paused()
    assert stage.drain(on, scene.worker, scene.node) == []
    scene.shop.resume("clean")
    DeclareArc(spec=off, where="x").apply(context, "n")
    assert not paused()  # the declaration has not changed, and a user resumed it since
    scene.shop.pause("clean")
    DeclareArc(spec=on, where="x").apply(context, "n")
    assert not paused()
    scene.shop.pause("clean")
    DeclareArc(spec=on, where="x").apply(context, "n")
    assert paused()
    assert isinstance(stage.row(on.id), Scheduled)
    scene.shop.resume("clean")
    assert [outcome.lot for outcome in stage.drain(on, scene.worker, scene.node)] == [lot]


@pytest.mark.rule("LOT-32")
def test_gaps_of_a_view_are_those_of_the_tables_it_reads(scene: Scene) -> None:
    scene.stage.append([1])
    report = scene.shop.gaps("more")
    assert [table.table for table in report.tables] == ["odd", "summed"]
    assert not report
    assert {gap.cause.table for gap in report.gaps} == {"odd", "cleaned"}
    assert "summed: 1 gap in 1 lot" in str(report)
    assert [table.table for table in scene.shop.gaps().tables] == [
        "orders",
        "clicks",
        "rates",
        "plain",
        "keyed",
        "cleaned",
        "odd",
        "summed",
        "joined",
    ]
    with pytest.raises(DeclarationError):
        scene.shop.gaps("nothing")
    scene.catch_up()
    assert scene.shop.gaps("more")


# --- corrections


@pytest.mark.rule("LOT-30")
def test_a_lot_of_a_dataset_can_be_replaced_and_removed(scene: Scene) -> None:
    plain = scene.shop["plain"]
    assert isinstance(plain, tm.Dataset)
    lot = plain.append([{"id": 1}, {"id": 2}]).lot
    receipt = plain.replace(lot, [(5,)])
    assert (receipt.lot, receipt.position) == (lot, 2)
    (shown,) = plain.lots()
    assert (shown.generation, shown.rows, shown.state) == (1, 1, "complete")
    plain.remove(lot, why="sent twice")
    (shown,) = plain.lots()
    assert (shown.generation, shown.rows, shown.state) == (2, 0, "removed")
    row = scene.stage.run(lot_rows.current, scene.stage.lots, DatasetId("plain"), lot)
    assert scene.shop.context.manifests.load(row.manifest).comment == "sent twice"
    assert plain.replace(lot, []).position == 4
    assert [lot.state for lot in plain.lots()] == ["empty"]
    assert [event.generation for event in scene.stage.events(DatasetId("plain"))] == [0, 1, 2, 3]
    with pytest.raises(LotUnknown):
        plain.replace("A00000000000000077", [(1,)])
    with pytest.raises(AppendRefused):
        plain.replace(lot, [{"strange": 1}])
    keyed = scene.shop["keyed"]
    assert isinstance(keyed, tm.Dataset)
    lot = keyed.upsert([{"id": 1, "n": 1}]).lot
    for refused in (lambda: keyed.replace(lot, [(1, 2)]), lambda: keyed.remove(lot)):
        with pytest.raises(CorrectionRefused) as raised:
            refused()
        assert raised.value.hint == "upsert the corrected rows"


# --- the command line


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.rule("LOT-32")
def test_the_command_line_prints_gaps_as_a_table_or_json_and_exits_with_1(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, file = scene.stage, scene.target
    appended = [stage.append([n]) for n in (1, 7, 3, 4)]
    stage.parts.failing[7] = 10
    scene.catch_up()
    assert main(["gaps", "summed", "-f", file]) == 1
    text = capsys.readouterr().out
    assert appended[1] in text
    assert "cleaned (partial)" in text
    assert "7 is bad" in " ".join(text.split())
    assert "tidemill retry" in text
    code, result = run(capsys, "gaps", "-f", file)
    assert code == 1
    by_name = {table["table"]: table for table in result["tables"]}
    assert by_name["orders"]["gaps"] == 0
    assert by_name["cleaned"]["counts"]["partial"] == 1
    (gap,) = by_name["summed"]["lots"]
    assert gap["lot"] == appended[1] == by_name["summed"]["earliest_gap"]
    assert (gap["state"], gap["cause"]["table"], gap["cause"]["state"]) == ("absent", "cleaned", "partial")
    stage.parts.failing.clear()
    assert run(capsys, "retry", "-f", file)[1]["requested"] == [{"arc": "clean", "lot": appended[1]}]
    scene.catch_up()
    assert main(["gaps", "-f", file]) == 0
    assert run(capsys, "gaps", "-f", file)[1]["ok"] is True
    assert run(capsys, "gaps", "nothing", "-f", file)[1]["error"]["code"]


@pytest.mark.rule("LOT-31")
def test_the_command_line_plans_requests_and_pauses(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    stage, file = scene.stage, scene.target
    appended = [stage.append([n]) for n in range(3)]
    scene.catch_up()
    code, result = run(capsys, "replay", "summed", "--from", appended[1], "--dry-run", "-f", file)
    assert (code, result["dry_run"], result["counts"]["remake"], result["batch"]) == (0, True, 2, "")
    assert stage.run(arc_requests.pending, stage.keys) == []
    assert main(["replay", "summed", appended[0], "--parallel", "1", "-f", file]) == 0
    assert "runners will produce 1 lot, 1 in parallel" in capsys.readouterr().out
    assert scene.catch_up() == [("sum", appended[0], LotEnd.COMPLETE.value)]
    assert main(["replay", "summed", "-f", file]) == 2
    capsys.readouterr()
    code, result = run(capsys, "backfill", "summed", "--from", "A00000000000000009", "-f", file)
    assert (code, result["error"]["code"]) == (1, "no-lots")
    assert main(["backfill", "summed", "-f", file]) == 0
    assert "nothing to produce" in capsys.readouterr().out
    assert run(capsys, "pause", "clean", "-f", file) == (0, {"paused": ["clean"]})
    stage.append([9])
    assert scene.catch_up() == []
    code, result = run(capsys, "resume", "clean", "--catch-up", "none", "-f", file)
    assert (code, result) == (0, {"resumed": ["clean"]})
    assert scene.catch_up() == []
    code, result = run(capsys, "backfill", "cleaned", "-f", file)
    assert (code, result["counts"]["make"]) == (0, 1)
    assert len(scene.catch_up()) == 2
    code, result = run(capsys, "backfill", "cleaned", "--wait", "-f", file)
    assert (code, result["remaining"]) == (0, 0)


def test_a_view_that_is_a_function_reads_the_tables_it_names(tmp_path: Path) -> None:
    """Gaps, backfills and replays follow views to their tables; a function has no query that names them."""
    pipeline = tm.Pipeline("p", home=tmp_path / "home")
    pipeline.dataset("orders", "id BIGINT, day DATE")
    pipeline.view("days", lambda orders: orders.select("day"), reads="orders", linear=True)
    pipeline.view("count", "SELECT count(*) AS n FROM days")
    pipeline.arc(reads="orders", writes="kept", name="keep")(lambda orders: orders)
    pipeline.view("both", lambda days, kept: days.crossJoin(kept), reads=["days", "kept"], full=True)
    assert graph.read_by(pipeline, "days") == ["orders"]
    assert graph.read_by(pipeline, "count") == ["orders"]
    assert sorted(graph.read_by(pipeline, "both")) == ["kept", "orders"]
    assert list(graph.downstream(pipeline, "keep")) == ["both"]
