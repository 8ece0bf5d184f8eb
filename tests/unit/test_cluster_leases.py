"""Leases and their keeper: acquiring, renewing, deadlines and fences."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cluster_stage import Stage, is_lost
from tidemill.cluster import leases
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.leases import Busy, Lease, LeaseTiming
from tidemill.cluster.member import random_id
from tidemill.errors import LeaseLost, StoreUnavailable
from tidemill.store import Tx
from tidemill.testing.fake_clock import FakeClock, ShiftedClock
from tidemill.testing.threads import STUCK_S, together

TTL_S = 15.0


@pytest.fixture
def stage() -> Stage:
    return Stage(ttl_s=TTL_S)


def keeper(stage: Stage, holder: str = "ann", clock: FakeClock | ShiftedClock | None = None) -> Keeper:
    return Keeper(
        stage.store, holder, clock=clock or stage.clock, chance=random.Random(7), timing=LeaseTiming(TTL_S)
    )


def held(answer: HeldLease | Busy) -> HeldLease:
    assert isinstance(answer, HeldLease)
    return answer


def key(stage: Stage, name: str = "x") -> bytes:
    return stage.keys.lease[name]


def stored(stage: Stage, name: str = "x") -> Lease:
    lease = stage.store.run(lambda tx: leases.read(tx, key(stage, name)))
    assert lease is not None
    return lease


# --- the row -----------------------------------------------------------------------------------------------


@pytest.mark.rule("CLU-3")
def test_a_lease_is_had_when_it_is_absent_or_over_and_not_before(stage: Stage) -> None:
    ann, bob = keeper(stage, "ann"), keeper(stage, "bob")
    first = held(ann.acquire(key(stage)))
    assert isinstance(bob.acquire(key(stage)), Busy)
    stage.clock.advance(TTL_S - 0.001)
    assert isinstance(bob.acquire(key(stage)), Busy)
    stage.clock.advance(0.001)
    second = held(bob.acquire(key(stage)))
    assert stored(stage) == second.lease
    assert second.lease.holder != first.lease.holder


@pytest.mark.rule("CLU-3")
def test_unlocking_ends_the_lease_now(stage: Stage) -> None:
    ann, bob = keeper(stage, "ann"), keeper(stage, "bob")
    lease = held(ann.acquire(key(stage)))
    assert ann.release(lease) is True
    held(bob.acquire(key(stage)))
    with pytest.raises(LeaseLost):
        lease.check()


@pytest.mark.rule("CLU-3")
def test_only_the_holder_can_unlock(stage: Stage) -> None:
    ann, bob = keeper(stage, "ann"), keeper(stage, "bob")
    old = held(ann.acquire(key(stage)))
    stage.clock.advance(TTL_S)
    held(bob.acquire(key(stage)))
    before = stage.rows()
    assert ann.release(old) is False, "its time was over"
    forged = Lease(old.lease.holder, stored(stage).epoch, old.lease.expires_at)
    assert stage.store.run(lambda tx: leases.release(tx, key(stage), forged)) is False
    earlier = Lease("bob", stored(stage).epoch - 1, 0)
    assert stage.store.run(lambda tx: leases.release(tx, key(stage), earlier)) is False
    assert stage.rows() == before


@pytest.mark.rule("CLU-3")
def test_holders_are_random_tokens() -> None:
    chance = random.Random(3)
    tokens = {random_id(chance) for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(len(token) == 24 for token in tokens)


@pytest.mark.rule("CLU-7")
@given(acts=st.lists(st.sampled_from(["acquire", "release", "renew", "expire"]), max_size=30))
def test_an_epoch_grows_with_every_holder_and_never_falls(acts: list[str]) -> None:
    stage = Stage(ttl_s=TTL_S)
    epochs: list[int] = []
    lease = Lease("nobody", 0, 0)
    for number, act in enumerate(acts):
        match act:
            case "acquire":
                answer = stage.store.run(
                    lambda tx, me=str(number): leases.acquire(tx, key(stage), me, stage.ttl_us)
                )
                if isinstance(answer, Lease):
                    assert answer.epoch > max(epochs, default=0)
                    epochs.append(answer.epoch)
                    lease = answer
            case "release":
                stage.store.run(lambda tx, released=lease: leases.release(tx, key(stage), released))
            case "renew":
                is_lost(
                    stage.store,
                    lambda tx, released=lease: leases.renew(tx, key(stage), released, stage.ttl_us),
                )
            case "expire":
                stage.clock.advance(TTL_S)
        if epochs:
            assert stored(stage).epoch == epochs[-1]


@pytest.mark.rule("CLU-7")
def test_a_write_under_an_old_epoch_is_refused_and_leaves_nothing(stage: Stage) -> None:
    ann, bob = keeper(stage, "ann"), keeper(stage, "bob")
    old = held(ann.acquire(key(stage)))
    note = stage.keys.config["note"]

    def write(tx: Tx) -> None:
        tx.set(note, b"by ann")  # before the fence: the whole transaction must go
        old.fence(tx)

    stage.store.run(write)
    stage.store.run(lambda tx: tx.clear(note))
    stage.clock.advance(TTL_S)
    assert is_lost(stage.store, write), "expired, though nobody took it"
    held(bob.acquire(key(stage)))
    assert is_lost(stage.store, write), "taken"
    assert stage.store.run(lambda tx: tx.get(note)) is None


@pytest.mark.rule("CLU-7")
def test_a_fenced_write_conflicts_with_a_change_of_hands_that_overtakes_it() -> None:
    """The lease is checked, then it expires and moves, then the write wants to commit: it must not."""
    stage = Stage(ttl_s=TTL_S, patience_s=60.0)
    ann, bob = keeper(stage, "ann"), keeper(stage, "bob")
    old = held(ann.acquire(key(stage)))
    note = stage.keys.config["note"]

    def overtake() -> None:
        stage.clock.advance(TTL_S)
        held(bob.acquire(key(stage)))

    def write(tx: Tx) -> None:
        old.fence(tx)
        tx.set(note, b"by ann")

    stage.trouble.interlude = overtake
    assert is_lost(stage.store, write)
    assert stage.store.run(lambda tx: tx.get(note)) is None


@pytest.mark.rule("CLU-2")
def test_two_that_acquire_at_once_do_not_both_get_it(stage: Stage) -> None:
    ann, bob = keeper(stage, "ann"), keeper(stage, "bob")
    answers: list[HeldLease | Busy] = []
    stage.trouble.interlude = lambda: answers.append(bob.acquire(key(stage)))
    answers.append(ann.acquire(key(stage)))
    assert [type(answer) for answer in answers] == [HeldLease, Busy]
    assert stored(stage).holder == "bob"


@pytest.mark.rule("CLU-6")
@pytest.mark.parametrize("off_s", [-36_000.0, 36_000.0])
def test_a_node_whose_clocks_are_off_by_hours_acquires_and_keeps_leases(stage: Stage, off_s: float) -> None:
    wrong = ShiftedClock(stage.clock, wall_s=off_s, monotonic_s=abs(off_s))
    ann, bob = keeper(stage, "ann"), keeper(stage, "bob", clock=wrong)
    first = held(ann.acquire(key(stage)))
    answer = bob.acquire(key(stage))
    assert isinstance(answer, Busy)
    assert answer.wait_s == pytest.approx(TTL_S)
    stage.clock.advance(10.0)
    ann.tick()
    stage.clock.advance(10.0)
    assert isinstance(bob.acquire(key(stage)), Busy), "renewed 10 s ago, whatever bob's clock says"
    first.check()
    stage.clock.advance(5.0)
    second = held(bob.acquire(key(stage)))
    assert second.lease.expires_at == int((stage.clock.monotonic() + TTL_S) * 1_000_000)
    stage.clock.advance(11.9)
    second.check()


# --- the keeper --------------------------------------------------------------------------------------------


@pytest.mark.rule("CLU-4")
def test_a_holder_stops_before_the_lease_is_over_for_others(stage: Stage) -> None:
    ann = keeper(stage)
    lease = held(ann.acquire(key(stage)))
    stage.clock.advance(TTL_S - ann.timing.margin_s - 0.001)
    lease.check()
    stage.clock.advance(0.001)
    with pytest.raises(LeaseLost, match="deadline"):
        lease.check()
    assert stored(stage).expires_at > stage.trouble.now_us(), "others must still wait"


@pytest.mark.rule("CLU-4")
def test_the_deadline_counts_from_before_the_renewal_was_sent(stage: Stage) -> None:
    ann = keeper(stage)
    slow_s = 1.5  # within the time a transaction may take

    def slow() -> None:
        stage.clock.advance(slow_s)

    stage.trouble.interlude = slow
    sent = stage.clock.monotonic()
    lease = held(ann.acquire(key(stage)))
    assert lease.deadline == sent + TTL_S - ann.timing.margin_s
    stage.clock.advance(3.0)
    stage.trouble.interlude = slow
    sent = stage.clock.monotonic()
    ann.tick()
    assert stage.clock.monotonic() == sent + slow_s
    assert lease.deadline == sent + TTL_S - ann.timing.margin_s


@pytest.mark.rule("CLU-4")
def test_a_holder_that_slept_past_its_deadline_does_not_come_back_to_it(stage: Stage) -> None:
    ann = keeper(stage)
    lease = held(ann.acquire(key(stage)))
    stage.clock.advance(TTL_S - 1.0)  # past the deadline, not past the expiry
    ann.tick()
    with pytest.raises(LeaseLost):
        lease.check()
    assert isinstance(ann.acquire(key(stage)), Busy), "even for itself the lease runs until its expiry"
    stage.clock.advance(1.0)
    assert held(ann.acquire(key(stage))).epoch == lease.epoch + 1


@pytest.mark.rule("CLU-4")
def test_a_renewal_never_shortens_a_lease(stage: Stage) -> None:
    """The holder acts until the deadline that the first renewal gave it."""
    lease = held(keeper(stage).acquire(key(stage))).lease
    stage.clock.advance(1.0)
    renewed = stage.store.run(lambda tx: leases.renew(tx, key(stage), lease, 1_000_000))
    assert renewed.expires_at == stored(stage).expires_at == lease.expires_at


@pytest.mark.rule("CLU-3")
def test_leases_are_renewed_together_before_they_expire(stage: Stage) -> None:
    ann = keeper(stage)
    all_held = [held(ann.acquire(key(stage, str(number)))) for number in range(5)]
    for _ in range(20):
        stage.clock.advance(ann.tick())
        for each in all_held:
            each.check()
    attempts = stage.trouble.attempts
    stage.clock.advance(3.0)
    ann.tick()
    assert stage.trouble.attempts == attempts + 1, "one transaction for all of them"
    assert {each.epoch for each in all_held} == {1}


@pytest.mark.rule("CLU-8")
def test_one_renewal_that_fails_loses_nothing(stage: Stage) -> None:
    ann = keeper(stage)
    lease = held(ann.acquire(key(stage)))
    stage.clock.advance(3.0)
    stage.trouble.down = True
    wait_s = ann.tick()
    lease.check()
    assert 0 < wait_s <= 1.0, "tried again sooner than usual"
    stage.trouble.down = False
    stage.clock.advance(wait_s)
    ann.tick()
    stage.clock.advance(11.0)
    lease.check()


@pytest.mark.rule("CLU-8", "CLU-4")
def test_a_store_that_stays_away_ends_the_lease_at_its_deadline_and_not_before(stage: Stage) -> None:
    ann = keeper(stage)
    lease = held(ann.acquire(key(stage)))
    stage.trouble.down = True
    while stage.clock.monotonic() < lease.deadline:
        assert lease.alive()
        stage.clock.advance(max(0.1, min(ann.tick(), lease.deadline - stage.clock.monotonic())))
    assert not lease.alive()
    with pytest.raises(StoreUnavailable):
        ann.release(lease)


@pytest.mark.rule("CLU-8")
def test_a_renewal_whose_outcome_is_unknown_is_looked_up_and_not_taken_for_a_loss(stage: Stage) -> None:
    ann = keeper(stage)
    lease = held(ann.acquire(key(stage)))
    stage.clock.advance(3.0)
    stage.trouble.hide_commits = 1
    ann.tick()
    lease.check()
    assert stored(stage).expires_at > lease.lease.expires_at - 1
    stage.clock.advance(11.0)
    lease.check()


@pytest.mark.rule("CLU-8")
def test_an_acquisition_of_unknown_outcome_is_ours_if_it_was_committed(stage: Stage) -> None:
    stage.trouble.hide_commits = 1
    lease = held(keeper(stage).acquire(key(stage)))
    assert stored(stage) == lease.lease
    assert lease.epoch == 1, "and it was not acquired twice"


def test_a_keeper_that_holds_one_key_again_does_not_drop_it_for_the_old_hold(stage: Stage) -> None:
    """Two threads: one is in the middle of a tick when the other releases and acquires the same lock."""
    ann = keeper(stage)
    first = held(ann.acquire(key(stage)))
    stage.clock.advance(3.0)
    second: list[HeldLease] = []

    def other_thread() -> None:
        assert ann.release(first)
        second.append(held(ann.acquire(key(stage))))

    stage.trouble.interlude = other_thread
    ann.tick()
    for _ in range(10):
        stage.clock.advance(3.0)
        ann.tick()
        second[0].check()
    assert ann.release(first) is False
    stage.clock.advance(3.0)
    ann.tick()
    second[0].check()


def test_a_keeper_with_nothing_left_does_not_spin(stage: Stage) -> None:
    ann = keeper(stage)
    lease = held(ann.acquire(key(stage)))
    lease.lost = True
    stage.clock.advance(100.0)
    assert ann.tick() == ann.timing.every_s
    again = held(ann.acquire(key(stage)))
    assert ann.tick() == ann.timing.every_s, "renewed a period from now, not at once"
    again.check()


def test_a_keeper_renews_from_a_thread_until_it_is_stopped(stage: Stage) -> None:
    """Each wait of that thread is a period of fake time; after some it really waits to be stopped."""
    enough = threading.Event()

    class Periods(FakeClock):
        left = 10

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            self.left -= 1
            if self.left == 0:
                enough.set()
                return event.wait(STUCK_S)
            stage.clock.advance(timeout_s)
            return event.is_set()

        def monotonic(self) -> float:
            return stage.clock.monotonic()

    ann = Keeper(stage.store, "ann", clock=Periods(), chance=random.Random(1), timing=LeaseTiming(TTL_S))
    lease = held(ann.acquire(key(stage)))
    ann.start()
    assert enough.wait(STUCK_S)
    ann.stop()
    lease.check()
    assert stage.clock.monotonic() - 1000.0 > TTL_S, "longer than it would last without renewals"


@pytest.mark.rule("CLU-2")
def test_of_many_threads_that_want_a_lease_one_gets_it() -> None:
    stage = Stage(ttl_s=TTL_S, patience_s=30.0)
    stage.store.faults = None
    keepers = [keeper(stage, f"n{number}") for number in range(8)]
    answers = together(*(lambda keeper=keeper: keeper.acquire(key(stage)) for keeper in keepers))
    assert sum(isinstance(answer, HeldLease) for answer in answers) == 1
