"""Partitions: created by the leader, taken by nodes, with every write fenced by the epoch."""

import itertools
import threading

import pytest

from tests.unit.cluster_stage import GROUP, RecordingHost, Stage, is_lost
from tidemill.cluster import partitions
from tidemill.cluster.events import PartitionDone, PartitionHandedBack, PartitionLost, PartitionTaken
from tidemill.cluster.partitions import Partition, PartitionMap, PartitionSummary
from tidemill.cluster.states import PartitionState
from tidemill.errors import LeaseLost, StoreUnavailable
from tidemill.store import Row, Tx
from tidemill.testing.holdings import HeldPartition
from tidemill.testing.threads import STUCK_S, Racer


@pytest.fixture
def stage() -> Stage:
    return Stage()


def take(stage: Stage, name: str, holder: str) -> Partition:
    part = stage.store.run(lambda tx: partitions.take(tx, stage.keys, GROUP, name, holder, stage.ttl_us))
    assert part is not None
    return part


def summaries(stage: Stage) -> list[PartitionSummary]:
    return stage.store.run(lambda tx: partitions.summaries(tx, stage.keys, GROUP))


def only(stage: Stage, name: str) -> HeldPartition:
    (held,) = stage.holdings_of(name).held.values()
    return held


# --- rows --------------------------------------------------------------------------------------------------


@pytest.mark.rule("CLU-14")
def test_one_read_gives_every_partitions_expiry_in_order_and_no_payload(stage: Stage) -> None:
    stage.make_partitions(6, payload=b"x" * 1000)
    for number, name in enumerate(["p003", "p001", "p004"]):
        take(stage, name, f"n{number}")
        stage.clock.advance(1.0)
    reads: list[list[Row]] = []

    def look(tx: Tx) -> list[PartitionSummary]:
        ranged = tx.range

        def counted(*bounds: bytes, **options: bool) -> list[Row]:
            rows = ranged(*bounds, **options)  # type: ignore[arg-type]
            reads.append(rows)
            return rows

        tx.range = counted  # type: ignore[method-assign,assignment]
        tx.get_many = None  # type: ignore[method-assign,assignment]
        return partitions.summaries(tx, stage.keys, GROUP)

    listed = stage.store.run(look)
    assert len(reads) == 1
    assert all(len(row.value) < 100 for row in reads[0]), "an index, not the partitions"
    assert [part.id for part in listed] == ["p000", "p002", "p005", "p003", "p001", "p004"]
    now_us = stage.trouble.now_us()
    assert [part.expires_at - now_us for part in listed[3:]] == [12_000_000, 13_000_000, 14_000_000]
    assert [part.holder for part in listed] == ["", "", "", "n0", "n1", "n2"]


@pytest.mark.rule("CLU-14")
def test_the_index_matches_the_rows_after_every_transition(stage: Stage) -> None:
    stage.make_partitions(5)

    def agree() -> None:
        rows = [part for part in stage.parts() if part.state is not PartitionState.DONE]
        from_rows = {
            (part.id, part.holder, part.expires_at, part.free_since, part.wanted_by, part.wanted_at)
            for part in rows
        }
        from_index = {
            (part.id, part.holder, part.expires_at, part.free_since, part.wanted_by, part.wanted_at)
            for part in summaries(stage)
        }
        assert from_index == from_rows
        assert len(summaries(stage)) == len(rows)

    agree()
    held = [take(stage, f"p00{n}", "n1") for n in range(4)]
    agree()
    stage.clock.advance(3.0)
    stage.store.run(lambda tx: partitions.renew(tx, stage.keys, held[0], stage.ttl_us))
    stage.store.run(lambda tx: partitions.request(tx, stage.keys, GROUP, "p001", "n2"))
    agree()
    stage.store.run(lambda tx: partitions.hand_back(tx, stage.keys, held[1]))
    stage.store.run(lambda tx: partitions.complete(tx, stage.keys, held[2]))
    agree()
    stage.clock.advance(13.0)
    take(stage, "p003", "n2")
    agree()
    assert stage.store.run(lambda tx: partitions.remove_done(tx, stage.keys, GROUP, 10)) == ["p002"]
    agree()


def test_a_partition_is_outstanding_in_progress_or_done_and_counts_its_attempts(stage: Stage) -> None:
    """As far as the room goes: failed and quarantined belong to the future that is its task."""
    stage.make_partitions(1)

    def now() -> Partition:
        return stage.parts()[0]

    assert (now().state, now().handed_on) == (PartitionState.OUTSTANDING, 0)
    first = take(stage, "p000", "n1")
    assert (now().state, now().handed_on) == (PartitionState.IN_PROGRESS, 0)
    stage.store.run(lambda tx: partitions.hand_back(tx, stage.keys, first))
    assert (now().state, now().handed_on) == (PartitionState.OUTSTANDING, 1)
    take(stage, "p000", "n1")
    stage.clock.advance(15.0)
    third = take(stage, "p000", "n2")
    assert (now().state, now().handed_on) == (PartitionState.IN_PROGRESS, 2)
    stage.store.run(lambda tx: partitions.complete(tx, stage.keys, third))
    assert (now().state, now().handed_on) == (PartitionState.DONE, 2)


@pytest.mark.rule("CLU-7")
def test_epochs_grow_with_every_change_of_hands(stage: Stage) -> None:
    stage.make_partitions(1)
    epochs = [stage.parts()[0].epoch]
    for number in range(5):
        part = take(stage, "p000", f"n{number}")
        epochs.append(part.epoch)
        if number % 2:
            stage.clock.advance(15.0)
        else:
            stage.store.run(lambda tx, part=part: partitions.hand_back(tx, stage.keys, part))
        epochs.append(stage.parts()[0].epoch)
    assert epochs == sorted(epochs)
    assert len({take(stage, "p000", "n9").epoch, *epochs[1::2]}) == 6


@pytest.mark.rule("CLU-7")
def test_a_write_of_a_former_holder_is_refused(stage: Stage) -> None:
    stage.make_partitions(1)
    old = take(stage, "p000", "n1")
    stage.clock.advance(15.0)
    take(stage, "p000", "n2")
    before = stage.rows()
    for act in (partitions.check, partitions.hand_back, partitions.complete):
        assert is_lost(stage.store, lambda tx, act=act: act(tx, stage.keys, old))
    assert stage.rows() == before


@pytest.mark.rule("CLU-2")
def test_two_that_take_at_once_do_not_both_get_it() -> None:
    stage = Stage(patience_s=60.0)
    stage.make_partitions(1)
    stage.trouble.interlude = lambda: take(stage, "p000", "n2")
    lost = stage.store.run(lambda tx: partitions.take(tx, stage.keys, GROUP, "p000", "n1", stage.ttl_us))
    assert lost is None
    assert stage.parts()[0].holder == "n2"


def test_existing_partitions_are_not_created_again(stage: Stage) -> None:
    stage.make_partitions(2)
    part = take(stage, "p000", "n1")
    stage.store.run(lambda tx: partitions.complete(tx, stage.keys, part))
    before = stage.parts()
    payloads = {"p000": b"new", "p001": b"new", "p002": b""}
    created = stage.store.run(
        lambda tx: partitions.create(tx, stage.keys, GROUP, payloads, PartitionMap(1, 1, 3))
    )
    assert created == ["p002"]
    assert stage.parts()[:2] == before


# --- held by members ---------------------------------------------------------------------------------------


@pytest.mark.rule("CLU-13")
def test_nodes_help_themselves_to_their_fair_share_by_slots(stage: Stage) -> None:
    stage.make_partitions(12)
    for name, slots in (("n1", 2), ("n2", 4), ("n3", 12)):
        stage.member(name, slots=slots)
    stage.play(lambda: sum(stage.counts().values()) == 12, within_s=60.0)
    stage.pass_time(60.0)
    assert stage.counts()["n3"] == 8
    assert stage.counts()["n1"] in (1, 2)
    assert stage.counts()["n2"] in (2, 3)
    assert sum(stage.counts().values()) == 12


@pytest.mark.rule("CLU-13")
def test_no_node_takes_more_than_its_slots(stage: Stage) -> None:
    stage.make_partitions(20)
    stage.member("n1", slots=3)
    stage.member("n2", slots=2)
    stage.pass_time(120.0)
    assert stage.counts() == {"n1": 3, "n2": 2}
    held = stage.holdings_of("n2").held
    stage.holdings_of("n2").complete(next(iter(held.values())))
    assert stage.counts() == {"n1": 3, "n2": 1}
    stage.play(lambda: stage.counts() == {"n1": 3, "n2": 2}, within_s=10.0)


@pytest.mark.rule("CLU-13")
def test_acquisitions_are_a_random_pause_apart(stage: Stage) -> None:
    stage.make_partitions(8)
    member = stage.member("n1", slots=8, pause_s=0.2)
    times: list[float] = []
    emit = member.emit
    member.holdings.emit = lambda event: (
        times.append(stage.clock.monotonic()) if isinstance(event, PartitionTaken) else emit(event)
    )
    stage.play(lambda: len(times) == 8)
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert all(0.0 < pause <= 0.21 for pause in pauses)
    assert len(set(pauses)) == 7


@pytest.mark.rule("CLU-13")
def test_a_node_that_joins_gets_its_share_from_fuller_nodes_and_then_nothing_moves(
    stage: Stage,
) -> None:
    stage.make_partitions(10)
    stage.member("n1", slots=10)
    stage.member("n2", slots=10)
    stage.play(lambda: stage.counts() == {"n1": 5, "n2": 5})
    stage.member("n3", slots=10)
    stage.play(lambda: sorted(stage.counts().values()) == [3, 3, 4], within_s=120.0)
    handed = stage.told(PartitionHandedBack)
    assert len(handed) == 3, "as many moves as are needed"
    assert [event.node for event in handed].count("n3") == 0
    stage.pass_time(200.0)
    assert len(stage.told(PartitionHandedBack)) == 3
    assert stage.told(PartitionLost) == []


@pytest.mark.rule("CLU-13")
def test_a_requested_partition_goes_to_the_requester_and_not_back_to_its_holder(stage: Stage) -> None:
    """Four partitions, three nodes, two of them full: the third gets one, by one move."""
    stage.make_partitions(4)
    stage.member("n1", slots=4)
    stage.member("n2", slots=4)
    stage.play(lambda: stage.counts() == {"n1": 2, "n2": 2})
    stage.member("n3", slots=4)
    stage.pass_time(60.0)
    assert sorted(stage.counts().values()) == [1, 1, 2]
    assert len(stage.told(PartitionHandedBack)) == 1


@pytest.mark.rule("CLU-13")
def test_a_holder_that_ignores_a_request_gets_no_more_time_and_stops_before_it_is_taken(stage: Stage) -> None:
    stage.make_partitions(2)
    deaf = RecordingHost(hands_back=False)
    stage.member("n1", slots=4, host=deaf)
    stage.play(lambda: stage.counts() == {"n1": 2})
    stage.member("n2", slots=4)
    stage.play(lambda: len(deaf.aborted) == 1, within_s=2 * stage.ttl_s + 10.0)
    assert stage.counts()["n2"] == 0, "nobody takes it from a holder that may still act"
    stage.play(lambda: stage.counts()["n2"] == 1, within_s=stage.ttl_s)
    assert deaf.aborted[0].part.id == deaf.stopped[0].part.id
    with pytest.raises(LeaseLost):
        deaf.aborted[0].check()
    assert stage.counts() == {"n1": 1, "n2": 1}


@pytest.mark.rule("CLU-13")
def test_a_request_of_a_dead_node_does_not_block_balance_forever(stage: Stage) -> None:
    stage.make_partitions(4)
    stage.member("n1", slots=8, host=RecordingHost(hands_back=False))
    stage.play(lambda: stage.counts() == {"n1": 4})
    stage.store.run(lambda tx: partitions.request(tx, stage.keys, GROUP, "p000", "dead"))
    stage.member("n2", slots=8)
    stage.play(lambda: stage.counts() == {"n1": 2, "n2": 2}, within_s=8 * stage.ttl_s)


@pytest.mark.rule("CLU-13")
def test_the_work_of_a_dead_node_moves_when_its_leases_are_over(stage: Stage) -> None:
    stage.make_partitions(6)
    for name in ("n1", "n2", "n3"):
        stage.member(name, slots=6)
    stage.play(lambda: stage.counts() == {"n1": 2, "n2": 2, "n3": 2})
    stage.pass_time(10.0)
    orphans = {held.part.id for held in stage.holdings_of("n3").held.values()}
    ends_at = max(part.expires_at for part in summaries(stage) if part.id in orphans)
    stage.kill("n3")
    stage.play(lambda: sum(stage.counts().values()) == 6, within_s=stage.ttl_s + 4.0)
    assert stage.trouble.now_us() >= ends_at
    takes = [event for event in stage.told(PartitionTaken) if event.partition in orphans]
    assert {event.epoch for event in takes} == {1, 2}


@pytest.mark.rule("CLU-4")
def test_a_node_that_slept_past_its_ttl_aborts_what_it_held_before_anything_else(stage: Stage) -> None:
    stage.make_partitions(2)
    stage.member("n1", slots=2)
    stage.play(lambda: stage.counts() == {"n1": 2})
    held = list(stage.holdings_of("n1").held.values())
    stage.clock.advance(30.0)
    for each in held:
        with pytest.raises(LeaseLost):
            each.check()
        with pytest.raises(LeaseLost):
            stage.holdings_of("n1").complete(each)
    stage.members["n1"].tick()
    assert stage.hosts["n1"].aborted == held
    assert len(stage.told(PartitionLost)) == 2
    stage.play(lambda: stage.counts() == {"n1": 2}, within_s=1.0)
    assert {part.epoch for part in stage.parts()} == {2}


@pytest.mark.rule("CLU-4")
def test_the_deadline_is_kept_while_a_tick_hangs_in_the_store() -> None:
    """`run` has a second thread for this: the store does not answer, and the host is told in time."""
    stage = Stage()
    stage.make_partitions(1)
    aborted = threading.Event()
    answer = threading.Event()
    hanging = threading.Event()

    class Host(RecordingHost):
        def start(self, held: HeldPartition) -> None:
            super().start(held)
            stage.trouble.before = hang  # type: ignore[method-assign,assignment]

        def abort(self, held: HeldPartition) -> None:
            super().abort(held)
            aborted.set()

    def hang(store: object) -> None:
        if not answer.is_set():
            hanging.set()
            assert answer.wait(STUCK_S)

    host = Host()
    member = stage.member("n1", slots=1, host=host)
    racer = Racer(member.run)
    racer.start()
    assert hanging.wait(STUCK_S)
    assert aborted.wait(STUCK_S), "time passes by the guard's own waiting"
    assert not host.aborted[0].alive()
    member.drain(0.0)
    answer.set()
    racer.outcome()


@pytest.mark.rule("CLU-8")
def test_renewals_that_fail_lose_nothing_before_the_deadline(stage: Stage) -> None:
    stage.make_partitions(3)
    stage.member("n1")
    stage.play(lambda: stage.counts() == {"n1": 3})
    stage.trouble.down = True
    stage.pass_time(8.0)
    assert stage.counts() == {"n1": 3}
    stage.trouble.down = False
    stage.pass_time(30.0)
    assert stage.counts() == {"n1": 3}
    assert {part.epoch for part in stage.parts()} == {1}


@pytest.mark.rule("CLU-8")
def test_a_renewal_whose_outcome_is_unknown_loses_nothing(stage: Stage) -> None:
    stage.make_partitions(3)
    stage.member("n1")
    stage.play(lambda: stage.counts() == {"n1": 3})
    stage.trouble.hide_commits = 5
    stage.play(lambda: stage.trouble.hide_commits == 0)
    stage.pass_time(30.0)
    assert {part.epoch for part in stage.parts()} == {1}
    assert stage.told(PartitionLost) == []


def test_many_large_payloads_are_renewed_in_transactions_that_fit(stage: Stage) -> None:
    stage.make_partitions(10, payload=b"x" * 60_000)
    stage.make_partitions(10, group="h", payload=b"y" * 60_000)
    stage.make_partitions(10, group="i", payload=b"z" * 60_000)
    stage.member("n1", slots=30, groups=[GROUP, "h", "i"])
    stage.play(lambda: stage.counts() == {"n1": 30})
    stage.pass_time(40.0)
    assert stage.counts() == {"n1": 30}
    assert stage.told(PartitionLost) == []


def test_completing_writes_what_the_host_adds_in_the_same_transaction(stage: Stage) -> None:
    stage.make_partitions(1)
    stage.member("n1")
    stage.play(lambda: stage.counts() == {"n1": 1})
    held = only(stage, "n1")
    note = stage.keys.config["note"]

    def fail(tx: Tx) -> None:
        tx.set(note, b"x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stage.holdings_of("n1").complete(held, fail)
    assert stage.parts()[0].state is PartitionState.IN_PROGRESS
    stage.pass_time(30.0)
    assert held.alive(), "and it is renewed on"
    stage.holdings_of("n1").complete(held, lambda tx: tx.set(note, b"result"))
    assert stage.parts()[0].state is PartitionState.DONE
    assert stage.store.run(lambda tx: tx.get(note)) == b"result"
    assert stage.counts() == {"n1": 0}
    assert len(stage.told(PartitionDone)) == 1
    stage.pass_time(30.0)
    assert stage.counts() == {"n1": 0}, "done is done"


def test_a_partition_that_ends_while_it_is_renewed_is_done_and_not_lost(stage: Stage) -> None:
    """The host's thread has completed it and is about to say so when the tick's renewal finds it gone."""
    stage.make_partitions(1)
    stage.member("n1")
    stage.play(lambda: stage.counts() == {"n1": 1})
    held = only(stage, "n1")
    holdings = stage.holdings_of("n1")
    stage.clock.advance(3.0)
    stage.trouble.postlude = lambda: holdings.tick() and None
    holdings.complete(held)
    assert stage.parts()[0].state is PartitionState.DONE
    assert stage.hosts["n1"].aborted == []
    assert [type(event) for event in stage.events][-1] is PartitionDone


def test_a_partition_that_ends_while_deadlines_are_checked_is_not_aborted(stage: Stage) -> None:
    stage.make_partitions(1)
    stage.member("n1")
    stage.play(lambda: stage.counts() == {"n1": 1})
    holdings, held = stage.holdings_of("n1"), only(stage, "n1")

    class EndsWhenLookedAt(HeldPartition):
        def alive(self) -> bool:
            holdings.held.clear()  # another thread, at just this moment
            return False

    held.__class__ = EndsWhenLookedAt
    holdings.guard()
    assert stage.hosts["n1"].aborted == []
    assert stage.told(PartitionLost) == []


def test_a_completion_the_store_does_not_hear_can_be_repeated(stage: Stage) -> None:
    stage.make_partitions(1)
    stage.member("n1")
    stage.play(lambda: stage.counts() == {"n1": 1})
    held = only(stage, "n1")
    stage.trouble.down = True
    with pytest.raises(StoreUnavailable):
        stage.holdings_of("n1").complete(held)
    assert stage.counts() == {"n1": 1}
    stage.trouble.down = False
    stage.pass_time(20.0)
    stage.holdings_of("n1").complete(held)
    assert stage.parts()[0].state is PartitionState.DONE


@pytest.mark.rule("CLU-5")
def test_an_idle_node_reads_about_once_per_period(stage: Stage) -> None:
    stage.member("n1")
    stage.pass_time(30.0)
    attempts = stage.trouble.attempts
    stage.pass_time(300.0)
    periods = 100
    # a beat, a renewal of the leader's lease and one look at the partitions per period, and the duty
    assert stage.trouble.attempts - attempts <= 4 * periods
