"""Leadership: a lease, and duties that only its holder may carry out."""

import itertools
from collections.abc import Callable

import pytest

from tests.unit.cluster_stage import Stage
from tidemill.cluster import leases
from tidemill.cluster.events import DutyFailed, LeaderElected, LeaderLost
from tidemill.cluster.leader import Tenure
from tidemill.cluster.leases import Lease
from tidemill.errors import LeaseLost, NotLeader, UsageError
from tidemill.store import Tx
from tidemill.testing.fake_clock import ShiftedClock


@pytest.fixture
def stage() -> Stage:
    return Stage()


def leader_row(stage: Stage) -> Lease:
    raw = stage.store.run(lambda tx: tx.get(stage.keys.leader))
    assert raw is not None
    return leases.decode(raw)


def tenure_of(stage: Stage, name: str) -> Tenure:
    tenure = stage.members[name].tenure
    assert tenure is not None
    return tenure


def note(stage: Stage, text: bytes) -> Callable[[Tx], None]:
    return lambda tx: tx.set(stage.keys.config["note"], text)


def noted(stage: Stage) -> bytes | None:
    return stage.store.run(lambda tx: tx.get(stage.keys.config["note"]))


@pytest.mark.rule("CLU-9")
def test_of_several_nodes_one_leads_and_stays(stage: Stage) -> None:
    for name in ("n1", "n2", "n3"):
        stage.member(name)
    stage.pass_time(300.0)
    assert len(stage.leaders()) == 1
    assert len(stage.told(LeaderElected)) == 1
    assert leader_row(stage).holder == stage.leaders()[0]
    assert leader_row(stage).epoch == 1


@pytest.mark.rule("CLU-9")
def test_when_the_leader_dies_another_leads_soon_after_the_lease_is_over(stage: Stage) -> None:
    for name in ("n1", "n2", "n3"):
        stage.member(name)
    stage.play(lambda: bool(stage.leaders()))
    stage.pass_time(20.0)
    (first,) = stage.leaders()
    died_at = stage.clock.monotonic()
    stage.kill(first)
    stage.play(lambda: bool(stage.leaders()), within_s=stage.ttl_s + 2.0)
    assert stage.clock.monotonic() - died_at <= stage.ttl_s + 2.0
    assert leader_row(stage).epoch == 2
    assert [event.node for event in stage.told(LeaderElected)] == [first, *stage.leaders()]


@pytest.mark.rule("CLU-9", "CLU-25")
def test_when_the_leader_resigns_another_leads_before_the_lease_would_have_expired(stage: Stage) -> None:
    for name in ("n1", "n2"):
        stage.member(name)
    stage.play(lambda: bool(stage.leaders()))
    stage.pass_time(20.0)
    (first,) = stage.leaders()
    other = stage.members["n2" if first == "n1" else "n1"]
    other.election._try_at = stage.clock.monotonic() + stage.ttl_s  # it has just found the lease busy
    stage.members[first].election.resign()
    stage.kill(first)
    period_s = other.timing.every_s
    stage.play(lambda: stage.leaders() == [other.id], within_s=period_s + 1.0)


@pytest.mark.rule("CLU-5")
def test_no_node_tries_to_lead_before_the_lease_may_have_expired(stage: Stage) -> None:
    stage.member("n1")
    stage.play(lambda: stage.leaders() == ["n1"])
    attempts: list[tuple[float, int]] = []
    for name in ("n2", "n3"):
        keeper = stage.member(name).election.keeper
        acquire = keeper.acquire

        def watched(key: bytes, acquire: object = acquire) -> object:
            attempts.append((stage.clock.monotonic(), leader_row(stage).expires_at))
            return acquire(key)  # type: ignore[operator]

        keeper.acquire = watched  # type: ignore[method-assign,assignment]
    stage.pass_time(1.0)
    assert len(attempts) == 2, "each looked once, and was told until when it is held"
    expiries = {expires_at for _, expires_at in attempts}
    attempts.clear()
    stage.pass_time(10.0)
    assert attempts == [], "renewals are the leader's business"
    stage.pass_time(60.0)
    times = [at for at, _ in attempts]
    assert min(times) >= min(expiries) / 1_000_000
    assert len(times) <= 2 * (75 / 12), "about once per ttl and node"
    assert len(set(times)) == len(times), "not at the same moment"


@pytest.mark.rule("CLU-9", "CLU-7")
def test_a_deposed_leaders_transaction_aborts_whole(stage: Stage) -> None:
    stage.member("n1")
    stage.play(lambda: stage.leaders() == ["n1"])
    old = tenure_of(stage, "n1")
    old.run(note(stage, b"by n1"))
    asleep = stage.members["n1"]
    stage.kill("n1")
    stage.member("n2")
    stage.play(lambda: stage.leaders() == ["n2"])
    tenure_of(stage, "n2").run(note(stage, b"by n2"))
    with pytest.raises(LeaseLost):
        old.run(note(stage, b"by n1 again"))
    old.held.lost, old.held.deadline = False, stage.clock.monotonic() + 100.0  # never looks at its own clock
    with pytest.raises(NotLeader, match=r"no longer the leader \(epoch 1\)"):
        old.run(note(stage, b"by n1 again"))
    assert noted(stage) == b"by n2"
    assert asleep.tenure is old


@pytest.mark.rule("CLU-9")
def test_a_leader_deposed_between_its_reads_and_its_commit_writes_nothing() -> None:
    stage = Stage(patience_s=60.0)
    stage.member("n1")
    stage.play(lambda: stage.leaders() == ["n1"])
    tenure = tenure_of(stage, "n1")
    usurper = stage.member("n2")
    stage.kill("n2")

    def depose() -> None:
        stage.clock.advance(stage.ttl_s)
        usurper.tick()
        assert usurper.tenure is not None

    stage.trouble.interlude = depose
    with pytest.raises((NotLeader, LeaseLost)):
        tenure.run(note(stage, b"by n1"))
    assert noted(stage) is None


@pytest.mark.rule("CLU-9")
def test_a_duty_that_still_runs_when_leadership_moves_is_cancelled_at_its_next_step(stage: Stage) -> None:
    steps: list[str] = []

    def long_duty(tenure: Tenure) -> float:
        tenure.run(note(stage, b"first"))
        steps.append("first")
        stage.clock.advance(100.0)  # something slow, outside the store
        tenure.check()
        steps.append("second")
        return 1.0

    member = stage.member("n1", duties={"long": long_duty})
    stage.play(lambda: bool(stage.told(LeaderLost)))
    assert set(steps) == {"first"}
    assert len(stage.told(LeaderElected)) == len(stage.told(LeaderLost))
    assert member.tenure is None


@pytest.mark.rule("CLU-9")
def test_a_duty_whose_step_is_refused_ends_the_tenure(stage: Stage) -> None:
    """Its own clock has not run out, but the store says that another leads: that is the end of it."""
    tries: list[int] = []

    def duty(tenure: Tenure) -> float:
        stolen = Lease("somebody", tenure.epoch + 1, stage.trouble.now_us() + 60_000_000)
        if not tries:
            tries.append(tenure.epoch)
            stage.store.run(lambda tx: tx.set(stage.keys.leader, leases.encode(stolen)))
        tenure.run(note(stage, b"by n1"))
        return 1.0

    member = stage.member("n1", duties={"duty": duty})
    stage.play(lambda: bool(stage.told(LeaderLost)), within_s=1.0)
    assert member.tenure is None
    assert noted(stage) is None
    stage.pass_time(50.0)
    assert len(stage.told(LeaderElected)) == 1, "the office is taken: it waits"
    stage.play(lambda: stage.leaders() == ["n1"], within_s=20.0)
    assert leader_row(stage).epoch == 3


def test_a_duty_runs_at_once_and_then_after_its_own_interval(stage: Stage) -> None:
    times: list[float] = []

    def duty(tenure: Tenure) -> float:
        times.append(stage.clock.monotonic())
        return 7.0

    stage.member("n1", duties={"duty": duty})
    stage.pass_time(60.0)
    assert [round(b - a, 2) for a, b in itertools.pairwise(times)] == [7.0] * (len(times) - 1)
    assert len(times) == 9


def test_a_failed_duty_is_reported_and_retried_and_the_others_continue(stage: Stage) -> None:
    good: list[float] = []

    def bad_duty(tenure: Tenure) -> float:
        raise UsageError("cannot be done")

    def good_duty(tenure: Tenure) -> float:
        good.append(stage.clock.monotonic())
        return 1.0

    stage.member("n1", duties={"bad": bad_duty, "good": good_duty})
    stage.pass_time(30.0)
    assert len(good) >= 25
    failures = stage.told(DutyFailed)
    assert {(event.duty, event.error) for event in failures} == {("bad", "cannot be done")}
    assert 8 <= len(failures) <= 12
    assert stage.leaders() == ["n1"]


@pytest.mark.rule("CLU-8")
def test_a_leader_that_cannot_renew_for_a_while_still_leads(stage: Stage) -> None:
    stage.member("n1")
    stage.play(lambda: stage.leaders() == ["n1"])
    stage.trouble.down = True
    stage.pass_time(9.0)
    assert stage.leaders() == ["n1"]
    stage.trouble.down = False
    stage.pass_time(30.0)
    assert len(stage.told(LeaderElected)) == 1


@pytest.mark.rule("CLU-9", "CLU-6")
def test_leaders_follow_each_other_with_any_clocks(stage: Stage) -> None:
    for hours, name in enumerate(("n1", "n2", "n3")):
        off = ShiftedClock(stage.clock, wall_s=(hours - 1) * 36_000.0, monotonic_s=hours * 1e6)
        stage.member(name, clock=off)
    for epoch in (1, 2, 3):
        stage.play(lambda: bool(stage.leaders()), within_s=stage.ttl_s + 2.0)
        (leader,) = stage.leaders()
        assert leader_row(stage).epoch == epoch
        stage.pass_time(20.0)
        assert stage.leaders() == [leader]
        stage.kill(leader)
