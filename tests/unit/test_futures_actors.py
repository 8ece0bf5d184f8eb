"""Actors at the level of the transaction: bound to a node, in order, dead once."""

import pytest

from tests.unit.futures_stage import Stage
from tidemill.cluster.nodes import Node
from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import actors, cancel, finish, requeue
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Blocked, Cancelled, Claimed, Failed, Failure, Realized, Unclaimed
from tidemill.futures.protocol.states import ActorState

DEATH = Failure(kind="crash", type="Killed", message="signal 9")


@pytest.fixture
def stage() -> Stage:
    return Stage()


def create(stage: Stage, node: Node | None = None) -> bytes:
    actor = stage.here(actors.create, stage.spec("Counter"))
    if node is not None:
        stage.make(node, actor, kind="actor")
    return actor


def call(stage: Stage, actor: bytes, *inputs: bytes, **fields: object) -> bytes:
    return stage.here(actors.call, actor, [stage.spec("add", inputs=inputs, **fields)])[0]


@pytest.mark.rule("FUT-47", "FUT-42")
def test_calls_are_bound_to_the_actors_node_in_the_order_they_were_made(stage: Stage) -> None:
    home, other = stage.worker("home"), stage.worker("other")
    actor = create(stage, home)
    made = [call(stage, actor) for _ in range(5)]
    assert stage.claim(other) == []
    rows = [stage.row(future_id) for future_id in made]
    assert all(isinstance(row, Unclaimed) and row.hard and row.assigned == "home" for row in rows)
    assert [stage.spec_of(future_id).ordinal for future_id in made] == [1, 2, 3, 4, 5]
    calls = stage.here(actors.calls, actor, 2)
    assert [(item.ordinal, item.id) for item in calls] == list(enumerate(made, start=1))[1:]
    assert {claimed.id for claimed in stage.claim(home)} == set(made)


@pytest.mark.rule("FUT-47")
def test_calls_made_before_the_actor_is_born_wait_for_it(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage)
    first = call(stage, actor)
    assert isinstance(stage.row(first), Blocked)
    stage.make(home, actor, kind="actor")
    row = stage.row(first)
    assert isinstance(row, Unclaimed)
    assert (row.assigned, row.hard) == ("home", True)
    assert stage.store.run(lambda tx: actors.read(tx, stage.keys, actor)) == actors.ActorRow(
        id=actor, node="home", node_epoch=home.epoch, next_ordinal=2
    )


@pytest.mark.rule("FUT-47")
def test_the_node_can_see_that_the_call_it_waits_for_will_not_come(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage, home)
    missing = stage.submit()
    first, second = call(stage, actor, missing), call(stage, actor)
    assert {claimed.id for claimed in stage.claim(home, free=Capacity())} >= {second}
    stage.here(cancel.cancel, first)
    (gone, next_) = stage.here(actors.calls, actor, 1)
    assert isinstance(gone.row, Cancelled)
    assert isinstance(next_.row, Claimed)


@pytest.mark.rule("FUT-47", "FUT-60")
def test_when_the_node_dies_every_call_that_has_not_ended_fails_with_a_typed_error(stage: Stage) -> None:
    home, other = stage.worker("home"), stage.worker("other")
    actor = create(stage, home)
    done, running, waiting = call(stage, actor), call(stage, actor), call(stage, actor)
    blocked = call(stage, actor, stage.submit())
    stage.make(home, done)
    stage.claim_one(home, running)
    stage.kill(home, alive=[other])
    stage.round("reap futures")
    stage.round("notify dependents")
    assert isinstance(stage.row(done), Realized)
    for future_id in (running, waiting, blocked, actor):
        row = stage.row(future_id)
        assert isinstance(row, Failed)
        assert row.kind == "actor"
    assert not any(
        key.startswith((stage.keys.hosted.prefix, stage.keys.assigned.prefix)) for key in stage.all_rows()
    )


@pytest.mark.rule("FUT-47")
def test_an_actor_whose_process_died_on_a_live_node_takes_its_calls_with_it(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage, home)
    running, waiting = call(stage, actor), call(stage, actor)
    behind = stage.submit(waiting)
    claimed = stage.claim_one(home, running)
    assert stage.here(actors.died, actor, DEATH)
    assert not stage.here(actors.died, actor, DEATH)
    stage.drain()
    failure = stage.failure(waiting)
    assert failure is not None
    assert (failure.kind, failure.message) == ("actor", "signal 9")
    row = stage.row(behind)
    assert isinstance(row, Failed)
    assert row.kind == "upstream"
    with pytest.raises(BaseException, match="no longer holds the claim"):
        stage.realize(home, claimed)
    assert stage.claim(home) == []


@pytest.mark.rule("FUT-47")
def test_a_call_to_a_dead_actor_fails_at_once_and_keeps_its_place_in_the_order(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage, home)
    stage.here(actors.died, actor, DEATH)
    late = call(stage, actor)
    row = stage.row(late)
    assert isinstance(row, Failed)
    assert row.kind == "actor"
    assert stage.spec_of(late).ordinal == 1
    with pytest.raises(FutureUnknown):
        call(stage, b"\x00" * 16)


@pytest.mark.rule("FUT-47")
def test_calls_to_an_actor_that_was_never_born_fail_as_its_calls(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage)
    early = call(stage, actor)
    stage.fail(home, stage.claim_one(home, actor), message="no such model")
    late = call(stage, actor)
    for future_id in (early, late):
        row = stage.row(future_id)
        assert isinstance(row, Failed)
        assert row.kind == "actor"
        failure = stage.failure(future_id)
        assert failure is not None
        assert failure.message == "no such model"


@pytest.mark.rule("FUT-47")
def test_neither_an_actor_nor_its_calls_are_ever_computed_again_by_themselves(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage, home)
    assert not stage.spec_of(actor).reconstruct
    future_id = call(stage, actor)
    stage.make(home, future_id, kind="segment")
    assert not stage.spec_of(future_id).reconstruct
    assert isinstance(stage.lose(actor), Realized)  # an actor is not a result that can be lost
    lost = stage.lose(future_id)
    assert isinstance(lost, Failed)
    assert lost.kind == "lost"
    stage.here(actors.died, actor, DEATH)
    with pytest.raises(UsageError):
        stage.here(requeue.requeue, actor)
    with pytest.raises(UsageError):
        stage.here(requeue.requeue, future_id)


def test_a_creation_that_a_dead_node_had_begun_goes_on_elsewhere(stage: Stage) -> None:
    home, other = stage.worker("home"), stage.worker("other")
    actor = create(stage)
    waiting = call(stage, actor)
    stage.claim_one(home, actor)
    stage.kill(home, alive=[other])
    stage.round("reap futures")
    stage.make(other, actor, kind="actor")
    row = stage.row(waiting)
    assert isinstance(row, Unclaimed)
    assert row.assigned == "other"


def test_a_node_that_lost_its_lease_and_came_back_has_lost_its_actors(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage, home)
    stage.kill(home)
    again = stage.worker("home")
    alive = create(stage, again)
    stage.round("reap futures")
    actor_rows = [stage.here(actors.read, actor_id) for actor_id in (actor, alive)]
    assert [row.state for row in actor_rows if row] == [ActorState.DEAD, ActorState.ALIVE]


def test_the_fast_way_leaves_the_birth_of_an_actor_to_the_slow_one(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage)
    claimed = stage.claim_one(home, actor)
    assert stage.realize_fast(home, claimed, kind="actor") == [False]
    stage.realize(home, claimed, kind="actor")


def test_a_call_with_a_known_key_takes_no_second_place(stage: Stage) -> None:
    actor = create(stage)
    first = call(stage, actor, key="once")
    assert call(stage, actor, key="once") == first
    assert stage.spec_of(call(stage, actor)).ordinal == 2


def test_a_failed_call_leaves_the_actor_and_the_calls_behind_it_alone(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage, home)
    first, second = call(stage, actor), call(stage, actor)
    stage.fail(home, stage.claim_one(home, first))
    assert isinstance(stage.row(first), Failed)
    stage.make(home, second)


def test_what_is_swept_leaves_no_calls_behind(stage: Stage) -> None:
    home = stage.worker("home")
    actor = create(stage, home)
    future_id = call(stage, actor)
    stage.make(home, future_id)
    stage.clock.advance(2 * 24 * 3600)
    stage.round("sweep futures")
    assert isinstance(stage.row(actor), Realized)  # its home may be gone, but nobody has said so yet
    stage.round("reap futures")
    stage.clock.advance(2 * 24 * 3600)
    for _ in range(3):
        stage.round("sweep futures")
    for space in (stage.keys.actor, stage.keys.hosted, stage.keys.call, stage.keys.dep, stage.keys.future):
        assert not any(key.startswith(space.prefix) for key in stage.all_rows())
    assert stage.there(finish.relinquish, stage.worker("x"), []) == []
