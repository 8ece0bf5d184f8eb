"""The group's state in the commit: step and version file change in one transaction."""

import msgspec
import pytest

from tests.unit.steps_stage import P, StepStage, outputs, spec
from tidemill import crash
from tidemill.errors import LeaseLost, StepConflict
from tidemill.lots.keys import DatasetId
from tidemill.objects.memory import MemoryObjects
from tidemill.publish.cleaner import FIRST_AGAIN_S, KEEP_S, Cleaner
from tidemill.views.steps import commits
from tidemill.views.steps.collector import listed_run_files
from tidemill.views.steps.commits import StepBatch, StepOutput, StepResult, StepRow, StepState
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.keys import group_id, state_of, state_prefix
from tidemill.views.trace.run_table import AddedRun, RunEntry
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version, write_version


class StateStage(StepStage):
    """Groups whose steps have one trace: a step writes one bundle, and one that no version lists."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = MemoryObjects(self.clock)

    def stateful(self, batch: StepBatch, attempt: str) -> tuple[StepOutput | StepState, ...]:
        self.computed.append((batch, attempt))
        prefix = state_prefix(P, batch.spec.name, batch.lot, attempt)
        version = (
            read_version(self.objects, batch.version) if batch.version else TraceVersion.empty(["t"], step=0)
        )
        assert version.step == batch.after
        crash.point("test.bundle.before")
        for twin in ("bundle-1", "bundle-2"):
            self.objects.put(prefix + twin, b"runs")
        added = [AddedRun("t", RunEntry(prefix + "bundle-1", 0, 255, 0, 4, 1, 1))]
        key = prefix + "version.json"
        write_version(self.objects, key, version.apply(batch.step, added).version)
        return (*outputs(batch, attempt), StepState(version=key))

    def files(self) -> set[str]:
        return {info.key for info in self.objects.list("data/")}

    def cleaner(self) -> Cleaner:
        scope = self.scope(self.node("cleaner"))
        return Cleaner(scope, lists=lambda key: listed_run_files(self.objects, key), grace_s=1.0)


@pytest.fixture
def stage() -> StateStage:
    return StateStage()


def run_all(stage: StateStage, node: object, *names: str, compute: object = None) -> None:
    for _ in range(100):
        steps = [stage.step(node, name, compute=compute or stage.stateful) for name in names]
        if all(step is None for step in steps):
            return


@pytest.mark.rule("DBSP-39")
def test_the_version_file_changes_with_the_step_unless_the_step_writes_none(stage: StateStage) -> None:
    a, b, node = stage.dataset("a"), stage.dataset("b"), stage.node("n")
    stage.declare(spec("g", a), spec("h", b))
    run_all(stage, node, "g", "h")
    first = stage.group("g").version
    assert first.startswith(state_prefix(P, "g", "S00000000000000001", stage.computed[0][1]))
    assert stage.computed[0][0].version == ""
    stage.publish(b)
    run_all(stage, node, "h", "g")  # g has no work: only its step changes
    assert (stage.group("g").step, stage.group("g").version) == (2, first)
    assert stage.rows_of_group("g")[-1].version == ""
    stage.publish(a)
    stage.step(node, "g", compute=stage.compute)  # writes no state: the version file stays at step 1
    assert (stage.group("g").step, stage.group("g").version) == (3, first)
    assert read_version(stage.objects, stage.group("g").version).step == 1
    assert stage.computed[-1][0].version == first


@pytest.mark.rule("DBSP-8")
def test_a_batch_has_the_positions_of_its_input(stage: StateStage) -> None:
    a, b, node = stage.dataset("a"), stage.dataset("b"), stage.node("n")
    stage.declare(spec("g", a, b), spec("h", a))
    stage.settle(node, "g", "h")
    stage.publish(a)
    stage.publish(a)
    stage.publish(b)
    stage.settle(node, "g")
    stage.publish(b)
    stage.settle(node, "g")
    stage.settle(node, "h")
    assert [(batch.spec.name, batch.before, batch.positions) for batch, _ in stage.computed] == [
        ("g", {a: 0, b: 0}, {a: 0, b: 0}),
        ("h", {a: 0}, {a: 0}),
        ("g", {a: 0, b: 0}, {a: 2, b: 1}),
        ("g", {a: 2, b: 1}, {a: 2, b: 2}),
        ("h", {a: 0}, {a: 2}),
    ]


@pytest.mark.rule("DBSP-39")
@pytest.mark.rule("DBSP-35")
def test_a_version_file_of_another_attempt_or_a_stale_run_is_not_committed(stage: StateStage) -> None:
    a, node, other = stage.dataset("a"), stage.node("n"), stage.node("m")
    stage.publish(a)
    stage.declare(spec("g", a))
    ticket = stage.begin(node, "g")
    batch = stage.run(commits.next_batch, stage.keys, P, "g")
    hold = stage.run(commits.open_step, stage.keys, ticket, batch, "mine")
    state = StepState(version=state_prefix(P, "g", batch.lot, "mine") + "version.json")
    for version in ("elsewhere", state_prefix(P, "g", batch.lot, "other") + "version.json"):
        result = StepResult.of(hold, [*outputs(batch, "mine"), StepState(version=version)])
        with pytest.raises(StepConflict, match="does not belong to attempt mine"):
            stage.run(commits.commit, stage.keys, ticket, batch, result, ends=True)
    stage.kill(node)
    stage.look(group_id(P, "g"))
    run_all(stage, other, "g")
    committed = stage.group("g").version
    result = StepResult.of(hold, [*outputs(batch, "mine"), state])
    with pytest.raises(LeaseLost):
        stage.run(commits.commit, stage.keys, ticket, batch, result, ends=True)
    assert stage.group("g").version == committed != state.version


def test_rows_of_a_release_without_state_are_read(stage: StateStage) -> None:
    row = {
        "step": 3,
        "after": 2,
        "attempt": "t",
        "outputs": [],
        "epoch": 1,
        "fence": 1,
        "at": 1,
        "wall_at": 1,
    }
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=StepRow).version == ""
    group = {"spec": {"name": "g", "views": []}, "step": 3, "made": []}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(group), type=ViewGroup).version == ""


@pytest.mark.rule("DBSP-37")
def test_bundles_that_no_version_lists_are_removed_and_all_of_an_abandoned_attempt(
    stage: StateStage,
) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.publish(a)
    stage.declare(spec("g", a))
    with crash.armed("views.commit.before"), pytest.raises(crash.Crashed):
        stage.step(node, "g", compute=stage.stateful)
    dead = {key for key in stage.files() if f"attempt={stage.computed[0][1]}" in key}
    assert len(dead) == 3
    cleaner = stage.cleaner()
    cleaner.clean()
    assert dead <= stage.files()  # still open
    stage.kill(node)
    stage.look(group_id(P, "g"))
    other = stage.node("m")
    run_all(stage, other, "g")
    stage.publish(a)
    run_all(stage, other, "g")
    while cleaner.clean():
        pass
    left = stage.files()
    assert not dead & left
    assert {key.rpartition("/")[2] for key in left} == {"bundle-1", "version.json"}
    assert read_version(stage.objects, stage.group("g").version).files() < left
    version = stage.group("g").version
    body, _ = stage.objects.get(version)
    twin = version.replace("version.json", "bundle-7")
    stage.objects.put(twin, b"late")  # a zombie task of a published attempt
    stage.objects.put(version, b"{}\n")  # damaged: nothing may be deleted
    stage.clock.advance(FIRST_AGAIN_S)
    while cleaner.clean():
        pass
    assert stage.files() == left | {twin}
    stage.objects.put(version, body)
    stage.clock.advance(KEEP_S)
    while cleaner.clean():
        pass
    assert stage.files() == left
    assert listed_run_files(stage.objects, "datasets/name=x/version=state/lot=l/manifest.json") is None


def history(point: str | None, visit: int) -> tuple[StateStage, bool]:
    """Run a fixed history, and kill the process at one visit of a crash point."""
    stage = StateStage()
    a, b = stage.dataset("a"), stage.dataset("b")
    died = False

    def act(name: str) -> None:
        nonlocal died
        node = stage.node(name)
        try:
            run_all(stage, node, "g")
        except crash.Crashed:
            died = True
            stage.check()
            group = stage.group("g")  # its version file exists and lists only files that exist
            if group.version:
                assert read_version(stage.objects, group.version).files() <= stage.files()
                assert read_version(stage.objects, group.version).step == group.step
            stage.kill(node)
            stage.look(group_id(P, "g"))
            node = stage.node(name + "'")
            run_all(stage, node, "g")
        stage.kill(node)

    def all_of_it() -> None:
        stage.publish(a)
        stage.declare(spec("g", a, b))
        act("x")
        for number, dataset in enumerate((b, a)):
            stage.publish(dataset)
            act(f"y{number}")

    if point is None:
        all_of_it()
    else:
        with crash.armed(point, visit=visit):
            all_of_it()
    stage.clock.advance(2)
    cleaner = stage.cleaner()
    while cleaner.clean():
        pass
    return stage, died


@pytest.mark.rule("DBSP-2", "DBSP-38", "DBSP-39")
def test_a_crash_before_or_after_any_write_leaves_the_state_of_the_committed_step() -> None:
    with crash.recorded() as visited:
        calm, _ = history(None, 0)
    points = {point for point in visited if point.startswith(("views.", "test."))}
    assert {"views.trace.before_version", "views.commit.before", "views.commit.after"} <= points
    for point in sorted(points):
        for visit in (1, 2, 3):
            stage, died = history(point, visit)
            version = read_version(stage.objects, stage.group("g").version)
            assert version.step == stage.group("g").step == calm.group("g").step, (point, visit)
            assert len(version.files()) == 3
            versions = {row.version for row in stage.rows_of_group("g")}
            assert stage.files() == versions | version.files(), (point, visit)
            if not died:
                break
        assert visit > 1 or died


def test_each_group_has_its_own_state_folder() -> None:
    assert state_of(P, "g") == DatasetId("views:shop/g", "state")
    assert state_prefix(P, "g", "S1", "t").endswith("/version=state/lot=S1/attempt=t/")
