"""Views that are set aside: the search for them, and the group's steps without them."""

import itertools
from typing import Any

import pytest

from tests.unit.steps_stage import P, StepStage, outputs
from tidemill import crash
from tidemill.errors import ViewCheckFailed, ViewFailed
from tidemill.lots import expiry
from tidemill.lots.expiry import Expired
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.views.steps import checked_views, failed_views
from tidemill.views.steps.checked_views import CheckedView
from tidemill.views.steps.commits import StepBatch, StepPart
from tidemill.views.steps.failed_views import FREE_TRIES, MOST_PASSED, FailedInput, FailedView, PassedLot
from tidemill.views.steps.failure_search import FailureSearch
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.keys import group_id
from tidemill.views.steps.stepper import Compute, Stepper

LONG_US = 10**15
ORDERS = DatasetId("orders", "1")
SPEC = GroupSpec(
    name="g",
    views=(
        ViewSpec(name="a", code="1", reads=(ORDERS,)),
        ViewSpec(name="b", code="1", uses=("a",)),
        ViewSpec(name="c", code="1", reads=(ORDERS,)),
        ViewSpec(name="d", code="1", uses=("b", "c")),
        ViewSpec(name="e", code="1", reads=(ORDERS,)),
    ),
)


def failure(view: str | None = "") -> ViewFailed:
    error = ViewFailed("it raises")
    error.view = view
    return error


# --- the search


def searched(bad: set[str], suspects: set[str]) -> tuple[set[str], frozenset[str], list[frozenset[str]]]:
    """Return the views that are blamed, those that are left out, and what was computed."""
    trials: list[frozenset[str]] = []
    blamed: set[str] = set()

    def compute(aside: frozenset[str]) -> frozenset[str]:
        trials.append(SPEC.names - aside)
        if bad & trials[-1]:
            raise failure()
        return trials[-1]

    search = FailureSearch(SPEC, (), suspects, compute, lambda view, _: blamed.add(view))
    assert search.run() == trials[-1] == SPEC.names - search.aside
    return blamed, search.aside, trials


@pytest.mark.rule("DBSP-40")
def test_the_search_sets_aside_exactly_the_views_that_fail_and_their_readers() -> None:
    names = sorted(SPEC.names)
    for size in range(len(names) + 1):
        for bad in itertools.combinations(names, size):
            for suspects in ((), ("c",), bad):
                blamed, aside, trials = searched(set(bad), set(suspects))
                assert blamed <= set(bad)
                assert aside == failed_views.readers(SPEC, bad)
                assert len(trials) <= 1 + 4 * len(blamed)


def test_a_view_that_failed_before_is_left_out_first() -> None:
    assert [sorted(trial) for trial in searched({"e"}, {"e"})[2]] == [
        ["a", "b", "c", "d", "e"],
        ["a", "b", "c", "d"],
    ]
    assert ["".join(sorted(trial)) for trial in searched({"a"}, {"a"})[2]] == ["abcde", "ce", "ace", "ce"]


def test_a_view_that_fails_later_than_its_first_computation_no_longer_counts_as_good() -> None:
    blamed: list[str] = []

    def compute(aside: frozenset[str]) -> frozenset[str]:
        names = SPEC.names - aside
        if "c" in names:
            raise failure("a" if names == {"a", "b", "c"} else "")
        return names

    search = FailureSearch(SPEC, (), (), compute, lambda view, _: blamed.append(view))
    assert search.run() == {"e"}
    assert blamed == ["a", "c"]


def test_an_error_that_belongs_to_no_view_ends_the_search() -> None:
    trials: list[frozenset[str]] = []
    blamed: list[str] = []

    def compute(aside: frozenset[str]) -> None:
        trials.append(aside)
        raise failure(None)

    with pytest.raises(ViewFailed):
        FailureSearch(SPEC, (), (), compute, lambda view, _: blamed.append(view)).run()
    assert (trials, blamed) == ([frozenset()], [])


def test_an_error_that_names_its_view_needs_no_search() -> None:
    trials: list[frozenset[str]] = []

    def compute(aside: frozenset[str]) -> frozenset[str]:
        trials.append(aside)
        if "c" not in aside:
            raise failure("c")
        return aside

    FailureSearch(SPEC, (), (), compute, lambda *_: None).run()
    assert trials == [frozenset(), frozenset({"c", "d"})]


# --- steps


class FailingStage(StepStage):
    """A group whose views fail while they are in `bad`; `searched` lists the searches for a row."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[str] = set()
        self.searched: list[str] = []
        self.runner = self.node("n", LONG_US)
        self.dataset("orders")
        self.declare(SPEC)

    def compute(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:  # type: ignore[override]
        batch = batch.computed
        self.computed.append((batch, attempt))
        if self.bad & batch.spec.names:
            raise failure()
        return outputs(batch, attempt)

    def stepper(self, *, compute: Compute | None = None, most: int = 1, **fields: Any) -> Stepper:
        return Stepper(self.scope(**fields), P, self.compute, most=most, find_input=self._find_input)

    def _find_input(self, batch: StepBatch, view: str) -> FailedInput:
        self.searched.append(view)
        lot = InputLot(dataset="orders", version="1", lot=str(batch.step), generation=0)
        return FailedInput(lots=(lot,), row=f"row {batch.step}")

    def publish_and_step(self, dataset: DatasetId = ORDERS) -> None:
        self.publish(dataset)
        self.settle(self.runner, "g")

    def fail_until_passes(self, view: str, passes: int) -> None:
        """Let a view fail until it passes over this many steps before its next try."""
        for _ in range(4 * (FREE_TRIES + passes)):
            self.publish_and_step()
            if self.failed[view].passes >= passes:
                return
        pytest.fail(f"{view} never passes over {passes} steps")

    @property
    def failed(self) -> dict[str, FailedView]:
        return self.store.run(lambda tx: failed_views.listed(tx, self.keys, P, "g"))


@pytest.mark.rule("DBSP-40")
def test_a_group_commits_its_steps_without_a_view_that_fails() -> None:
    stage = FailingStage()
    stage.publish_and_step()
    before = stage.group("g").tables
    stage.bad = {"a"}
    stage.publish_and_step()
    step = stage.group("g").step
    failed = stage.failed
    assert sorted(failed) == ["a", "b", "d"]
    assert (failed["a"].error, failed["b"].cause, failed["d"].cause) == ("it raises", "a", "a")
    assert {row.since for row in failed.values()} == {step}
    assert {row.current for row in failed.values()} == {step - 1}
    tables = stage.group("g").tables
    assert {name for name in tables if tables[name] != before[name]} == {"c", "e"}
    stage.bad = set()
    stage.publish_and_step()
    assert not stage.failed
    batch = stage.computed[-1][0]
    assert batch.stale == {"a", "b", "d"}, "the next step computes them as a whole"
    assert {output.view for output in stage.rows_of_group("g")[-1].outputs} == SPEC.names
    resumed = stage.rows_of_group("g")[-1]
    assert {resumed.after_of(view) for view in ("a", "b", "d")} == {step - 1}, "their changes begin here"
    assert resumed.after_of("c") == step


@pytest.mark.rule("DBSP-40")
def test_the_row_is_searched_once_for_an_error_and_again_after_a_retry() -> None:
    stage = FailingStage()
    stage.settle(stage.runner, "g")
    stage.bad = {"a"}
    for _ in range(3):
        stage.publish_and_step()
    first = stage.failed["a"]
    assert (stage.searched, first.input.row, first.since, first.tries) == (["a"], "row 2", 2, 3)
    stage.run(failed_views.request_try, stage.keys, P, "g", ["a"], "operator")
    stage.settle(stage.runner, "g")
    assert stage.searched == ["a", "a"]
    assert (stage.failed["a"].input.row, stage.failed["a"].since) == ("row 5", 2)


@pytest.mark.rule("DBSP-40")
def test_an_edited_view_that_fails_counts_its_failures_anew_and_keeps_its_table() -> None:
    stage = FailingStage()
    stage.publish_and_step()
    stage.bad, current = {"e"}, stage.group("g").step
    stage.publish_and_step()
    stage.publish_and_step()
    table = stage.group("g").tables["e"]
    edited = GroupSpec(name="g", views=(*SPEC.views[:4], ViewSpec(name="e", code="2", reads=(ORDERS,))))
    stage.declare(edited, circuit="2")
    stage.settle(stage.runner, "g")
    row = stage.failed["e"]
    assert (row.code, row.tries, row.current) == ("2", 1, current)
    assert row.since == stage.group("g").step
    assert stage.group("g").tables["e"] == table
    assert stage.group("g").stale == {"e"}, "the new code has not built it"


@pytest.mark.rule("DBSP-40", "LOT-39")
def test_a_view_that_could_not_be_computed_again_fails_the_whole_step() -> None:
    stage = FailingStage()
    stage.publish_and_step()
    stage.run(expiry.write, stage.lots, ORDERS, Expired(position=0, lots=1))
    stage.bad = {"a"}
    with pytest.raises(ViewFailed):
        stage.publish_and_step()
    assert not stage.failed


@pytest.mark.rule("DBSP-40")
def test_only_steps_with_input_for_a_view_bring_its_next_try_nearer() -> None:
    stage = FailingStage()
    other = stage.dataset("other")
    views = (*SPEC.views, ViewSpec(name="f", code="1", reads=(other,)))
    stage.declare(GroupSpec(name="g", views=views), circuit="2")
    stage.bad = {"e"}
    stage.fail_until_passes("e", 2)
    for _ in range(3):
        stage.publish_and_step(other)
    assert stage.failed["e"].passes == 2
    stage.publish_and_step()
    assert stage.failed["e"].passes == 1


def test_a_view_is_tried_again_however_often_it_failed() -> None:
    old = FailedView(view="e", code="1", error="it raises", since=1, tries=500)
    failed = FailedView(view="e", code="1", error="it raises", since=9, tries=1)
    rows = failed_views.after_step(SPEC, {"e": old}, {"e"}, {"e": failed}, {ORDERS}, {}, {})
    assert (rows["e"].tries, rows["e"].passes) == (501, MOST_PASSED)


@pytest.mark.rule("DBSP-40")
def test_a_view_that_fails_in_every_step_is_tried_less_often() -> None:
    stage = FailingStage()
    stage.settle(stage.runner, "g")
    stage.bad = {"e"}
    tried = []
    for _ in range(FREE_TRIES + 12):
        before = len(stage.computed)
        stage.publish_and_step()
        tried.append(any("e" in batch.spec.names for batch, _ in stage.computed[before:]))
    assert all(tried[: FREE_TRIES + 1])
    late = tried[FREE_TRIES + 1 :]
    assert [index for index, each in enumerate(late) if each] == [1, 4, 9]
    assert stage.failed["e"].current == 1
    edited = GroupSpec(name="g", views=(*SPEC.views[:4], ViewSpec(name="e", code="2", reads=(ORDERS,))))
    stage.bad = set()
    stage.declare(edited, circuit="2")
    stage.settle(stage.runner, "g")
    assert not stage.failed, "an edited view is tried at once"


@pytest.mark.rule("DBSP-40")
def test_a_view_is_tried_at_once_when_a_lot_is_corrected() -> None:
    stage = FailingStage()
    stage.bad = {"e"}
    stage.fail_until_passes("e", 4)
    stage.bad = set()
    stage.publish_and_step()
    assert stage.failed, "it passes over this step"
    stage.add(ORDERS, stage.events(ORDERS)[0].lot, 1)
    stage.publish_and_step()
    assert not stage.failed


@pytest.mark.rule("DBSP-40")
def test_an_operator_can_try_a_view_without_new_input() -> None:
    stage = FailingStage()
    stage.bad = {"a"}
    stage.publish_and_step()
    stage.bad = set()
    stage.settle(stage.runner, "g")
    assert stage.failed
    assert stage.run(failed_views.request_try, stage.keys, P, "g", ["d"], "operator") == ["a"]
    stage.settle(stage.runner, "g")
    assert not stage.failed
    assert stage.group("g").tables.keys() == SPEC.names


@pytest.mark.rule("DBSP-40")
def test_all_views_of_a_group_can_fail_and_resume() -> None:
    stage = FailingStage()
    stage.bad = {"a", "c", "e"}
    stage.publish_and_step()
    assert sorted(stage.failed) == ["a", "b", "c", "d", "e"]
    stage.bad = {"c"}
    stage.publish_and_step()
    assert sorted(stage.failed) == ["c", "d"]
    stage.bad = set()
    stage.publish_and_step()
    assert not stage.failed


@pytest.mark.rule("DBSP-38", "DBSP-40")
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("step", ["open", "abandon", "commit"])
def test_wherever_a_runner_dies_the_next_one_sets_the_same_views_aside(step: str, side: str) -> None:
    def run(visit: int) -> tuple[dict[str, FailedView], list[list[str]], bool]:
        stage = FailingStage()
        stage.settle(stage.runner, "g")
        stage.bad = {"b", "e"}
        stage.publish(ORDERS)
        died = False
        with crash.armed(f"views.{step}.{side}", visit=visit):
            try:
                stage.settle(stage.runner, "g")
            except crash.Crashed:
                died = True
        stage.check()
        if died:
            stage.kill(stage.runner)
            stage.look(group_id(P, "g"))
            stage.runner = stage.node("n2", LONG_US)
            stage.settle(stage.runner, "g")
        stage.bad = set()
        failed = stage.failed
        stage.publish_and_step()
        stage.check()
        assert not stage.failed
        views = [sorted(output.view for output in row.outputs) for row in stage.rows_of_group("g")]
        return failed, views, died

    expected = run(visit=10_000)[:2]
    assert sorted(expected[0]) == ["b", "d", "e"]
    for visit in itertools.count(1):
        *observed, died = run(visit)
        assert tuple(observed) == expected
        if not died:
            assert visit > 1
            return


@pytest.mark.rule("DBSP-40")
def test_a_view_passes_over_lots_until_they_have_a_newer_generation() -> None:
    stage = FailingStage()
    stage.settle(stage.runner, "g")
    stage.bad = {"a"}
    stage.publish_and_step()
    (event,) = stage.events(ORDERS)
    passed = PassedLot(ORDERS, event.lot, event.generation)
    stage.bad = set()
    stage.run(failed_views.pass_over, stage.keys, P, "g", "a", [passed], "operator")
    stage.settle(stage.runner, "g")
    assert stage.computed[-1][0].passed == {"a": (passed,)}
    assert {name: row.is_aside for name, row in stage.failed.items()} == {"a": False}
    stage.publish_and_step()
    assert stage.computed[-1][0].passed == {"a": (passed,)}
    assert stage.computed[-1][0].stale == set()
    stage.bad = {"a"}
    stage.publish_and_step()
    assert stage.failed["a"].is_aside
    assert stage.failed["a"].passed == (passed,), "it still passes over the first lot"
    stage.bad = set()
    stage.add(ORDERS, event.lot, event.generation + 1)
    stage.publish_and_step()
    assert stage.computed[-1][0].passed == {}
    assert not stage.failed


@pytest.mark.rule("DBSP-40")
def test_an_edited_view_reads_all_lots() -> None:
    stage = FailingStage()
    stage.settle(stage.runner, "g")
    stage.bad = {"e"}
    stage.publish_and_step()
    (event,) = stage.events(ORDERS)
    stage.bad = set()
    passed = PassedLot(ORDERS, event.lot, event.generation)
    stage.run(failed_views.pass_over, stage.keys, P, "g", "e", [passed], "operator")
    stage.settle(stage.runner, "g")
    assert stage.failed["e"].passed == (passed,)
    edited = GroupSpec(name="g", views=(*SPEC.views[:4], ViewSpec(name="e", code="2", reads=(ORDERS,))))
    stage.declare(edited, circuit="2")
    stage.settle(stage.runner, "g")
    assert stage.computed[-1][0].passed == {}
    assert not stage.failed


# --- checks


class CheckedStage(FailingStage):
    """A group whose view `a` has a check; `rows` of its rows fail."""

    rows = 0

    def compute(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:  # type: ignore[override]
        names = batch.computed.spec.names
        counts = {"check": self.rows} if self.rows else {}
        checked = CheckedView(view="a", failures="e", rows=counts, refused=tuple(counts))
        if counts and "a" in names:
            error = ViewCheckFailed("rows of a fail")
            error.view = "a"
            raise error
        return (*super().compute(batch, attempt), checked)

    @property
    def counts(self) -> dict[str, int]:
        return self.store.run(lambda tx: checked_views.listed(tx, self.keys, P, "g"))["a"].rows


@pytest.mark.rule("DBSP-40")
def test_a_view_whose_rows_fail_a_check_is_computed_in_the_step_in_which_they_pass() -> None:
    stage = CheckedStage()
    stage.publish_and_step()
    stage.rows = 3
    stage.publish_and_step()
    assert set(stage.failed) == {"a", "b", "d"}
    assert stage.counts == {"check": 3}
    for stage.rows in range(2, 2 + 2 * FREE_TRIES):
        tries = len(stage.computed)
        stage.publish_and_step()
        assert len(stage.computed) == tries + 1, "no step tries the view while its rows fail"
        assert stage.counts == {"check": stage.rows}
    stage.rows = 0
    stage.publish_and_step()
    assert not stage.failed
    assert not stage.counts
    assert set(stage.computed[-1][0].spec.names) == SPEC.names
    assert stage.computed[-1][0].stale == {"a", "b", "d"}, "they are computed as a whole"


@pytest.mark.rule("DBSP-40")
def test_a_view_that_passes_its_checks_but_fails_for_another_reason_is_tried_once() -> None:
    stage = CheckedStage()
    stage.publish_and_step()
    stage.rows = 1
    stage.publish_and_step()
    stage.rows, stage.bad = 0, {"a"}
    stage.publish_and_step()
    assert set(stage.failed) == {"a", "b", "d"}
    assert stage.failed["a"].error == "it raises"
    assert stage.failed["a"].checks is not True
    stage.bad = set()
    stage.publish_and_step()
    assert not stage.failed
