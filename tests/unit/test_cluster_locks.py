"""Locks and semaphores of processes that share a store."""

import random

import pytest

from tests.unit.cluster_stage import Stage, is_lost
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.leases import Busy, LeaseTiming
from tidemill.cluster.locks import Lock, Semaphore
from tidemill.errors import LeaseLost, LockTimeout, UsageError
from tidemill.store import Watch
from tidemill.testing.fake_clock import FakeClock


@pytest.fixture
def stage() -> Stage:
    return Stage()


def keeper(stage: Stage, holder: str) -> Keeper:
    return Keeper(
        stage.store, holder, clock=stage.clock, chance=random.Random(holder), timing=LeaseTiming(15.0)
    )


def lock(stage: Stage, holder: str, name: str = "l") -> Lock:
    return Lock(keeper(stage, holder), stage.keys, name)


def held(answer: HeldLease | Busy | None) -> HeldLease:
    assert isinstance(answer, HeldLease)
    return answer


@pytest.mark.rule("CLU-3")
def test_a_lock_has_one_holder(stage: Stage) -> None:
    ann, bob = lock(stage, "ann"), lock(stage, "bob")
    first = held(ann.acquire_nowait())
    assert isinstance(bob.acquire_nowait(), Busy)
    assert isinstance(ann.acquire_nowait(), Busy), "not even twice by one holder"
    assert ann.release(first) is True
    held(bob.acquire_nowait())


def test_locks_of_different_names_have_nothing_to_do_with_each_other(stage: Stage) -> None:
    held(lock(stage, "ann", "one").acquire_nowait())
    held(lock(stage, "bob", "two").acquire_nowait())


@pytest.mark.rule("CLU-7")
def test_writes_under_a_lock_are_fenced(stage: Stage) -> None:
    ann, bob = lock(stage, "ann"), lock(stage, "bob")
    first = held(ann.acquire_nowait())
    assert not is_lost(stage.store, first.fence)
    stage.clock.advance(15.0)
    second = held(bob.acquire_nowait())
    assert is_lost(stage.store, first.fence)
    assert not is_lost(stage.store, second.fence)
    assert ann.release(first) is False
    assert not is_lost(stage.store, second.fence), "a late release took nothing from bob"


@pytest.mark.rule("CLU-3")
def test_a_semaphore_has_as_many_holders_as_permits(stage: Stage) -> None:
    permits = [Semaphore(keeper(stage, f"h{n}"), stage.keys, "s", 3) for n in range(5)]
    answers = [each.acquire_nowait() for each in permits]
    assert [isinstance(answer, HeldLease) for answer in answers] == [True, True, True, False, False]
    assert permits[1].release(held(answers[1])) is True
    held(permits[4].acquire_nowait())
    assert isinstance(permits[3].acquire_nowait(), Busy)


def test_a_permit_of_a_dead_holder_becomes_free(stage: Stage) -> None:
    held(Semaphore(keeper(stage, "dead"), stage.keys, "s", 1).acquire_nowait())
    stage.clock.advance(15.0)
    held(Semaphore(keeper(stage, "ann"), stage.keys, "s", 1).acquire_nowait())


def test_a_semaphore_needs_a_permit(stage: Stage) -> None:
    with pytest.raises(UsageError, match="permits for semaphore 's': 0"):
        Semaphore(keeper(stage, "ann"), stage.keys, "s", 0)


@pytest.mark.rule("CLU-5")
def test_a_waiter_retries_only_when_the_lease_may_have_expired_and_with_jitter(stage: Stage) -> None:
    held(lock(stage, "dead").acquire_nowait())
    attempts: dict[str, list[float]] = {}
    for name in ("ann", "bob", "cid"):
        waiting = lock(stage, name)
        acquire = waiting.keeper.acquire
        times = attempts.setdefault(name, [])

        def watched(key: bytes, acquire: object = acquire, times: list[float] = times) -> object:
            times.append(stage.clock.monotonic())
            return acquire(key)  # type: ignore[operator]

        waiting.keeper.acquire = watched  # type: ignore[method-assign,assignment]
        begun = stage.clock.monotonic()
        permit = held(waiting.acquire(timeout_s=60.0))
        assert len(times) == 2, "once to be told, once when it can be had"
        assert 15.0 <= times[1] - begun <= 16.0
        permit.lost = True  # and it dies, too
    assert len({times[1] - times[0] for times in attempts.values()}) == 3


@pytest.mark.rule("CLU-5")
def test_a_waiter_is_woken_by_a_release(stage: Stage) -> None:
    ann, bob = lock(stage, "ann"), lock(stage, "bob")
    first = held(ann.acquire_nowait())
    waits: list[float] = []
    watch = stage.store.watch

    def watched(keys: list[bytes]) -> Watch:
        new_watch = watch(keys)
        wait = new_watch.wait

        def release_while_waiting(timeout_s: float) -> bool:
            waits.append(timeout_s)
            assert ann.release(first)
            return wait(timeout_s)

        new_watch.wait = release_while_waiting  # type: ignore[method-assign]
        return new_watch

    stage.store.watch = watched  # type: ignore[method-assign,assignment]
    begun = stage.clock.monotonic()
    held(bob.acquire(timeout_s=60.0))
    assert waits[0] >= 15.0, "it would have waited for the expiry"
    assert stage.clock.monotonic() == begun


def test_waiting_ends_with_its_time(stage: Stage) -> None:
    ann, bob = lock(stage, "ann"), lock(stage, "bob")
    first = held(ann.acquire_nowait())
    begun = stage.clock.monotonic()
    assert bob.acquire(timeout_s=5.0) is None
    assert stage.clock.monotonic() - begun == pytest.approx(5.0)
    with pytest.raises(LockTimeout, match="'l' did not become free within 2 s"), bob.holding(timeout_s=2.0):
        raise AssertionError("unreachable")
    first.check()


def test_holding_releases_at_the_end_and_after_an_error(stage: Stage) -> None:
    ann, bob = lock(stage, "ann"), lock(stage, "bob")
    with ann.holding() as first:
        first.check()
        assert isinstance(bob.acquire_nowait(), Busy)
    second = held(bob.acquire_nowait())
    bob.release(second)
    with pytest.raises(ZeroDivisionError), ann.holding():
        raise ZeroDivisionError
    held(bob.acquire_nowait())


@pytest.mark.rule("CLU-4")
def test_a_holder_that_is_not_renewed_must_stop(stage: Stage) -> None:
    with lock(stage, "ann").holding() as permit:
        permit.check()
        stage.clock.advance(12.0)
        with pytest.raises(LeaseLost):
            permit.check()


def test_a_lock_lasts_as_long_as_its_keeper_renews_it(stage: Stage) -> None:
    ann = lock(stage, "ann")
    with ann.holding() as permit:
        for _ in range(100):
            stage.clock.advance(ann.keeper.tick())
            permit.check()
    assert isinstance(stage.clock, FakeClock)
    assert ann.keeper.tick() == ann.keeper.timing.every_s
