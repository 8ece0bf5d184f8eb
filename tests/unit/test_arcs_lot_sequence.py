import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemill.arcs.lot_sequence import LotSequence, LotTurn
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.lots.events import LotEvent
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.testing.threads import STUCK_S
from tidemill.triggers.runs import Ticket

SOURCE = DatasetId("orders")


def sequence_of(count: int) -> LotSequence:
    ticket = Ticket("arc:p/a", 1, 1, Node(id="n", epoch=1), {SOURCE: 10}, {SOURCE: 10 + count})
    page = [(SOURCE, LotEvent(11 + n, f"L{n}", 0, LotState.COMPLETE, "t", 0, 0)) for n in range(count)]
    return LotSequence(ticket, page)


@pytest.mark.rule("LOT-27")
def test_lots_end_in_order_whichever_is_made_first_and_the_last_one_ends_the_run() -> None:
    sequence, ended = sequence_of(4), []
    computed = [threading.Event() for _ in range(4)]

    def work(number: int) -> None:
        with sequence.turn(number) as turn:
            computed[number].wait(STUCK_S)
            ending = turn.wait()
            ended.append((number, None if ending is None else ending.target))

    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(work, number)
        for number in (3, 1, 2, 0):
            computed[number].set()
    assert ended == [(0, None), (1, None), (2, None), (3, {SOURCE: 14})]


def test_when_a_lot_is_interrupted_later_lots_do_not_end() -> None:
    sequence = sequence_of(3)

    def work(number: int) -> str:
        with sequence.turn(number) as turn:
            if number == 0:
                raise OSError("the disk is full")
            turn.wait()
            return "ended"

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(work, number) for number in (1, 2, 0)]
    assert [type(future.exception()) for future in futures] == [LeaseLost, LeaseLost, OSError]
    assert isinstance(sequence.broken, OSError)


def test_a_run_that_stopped_before_its_end_is_not_ended_by_its_last_lot() -> None:
    sequence = sequence_of(2)
    with sequence.turn(0):
        sequence.stop(0)
    with sequence.turn(1) as turn:
        assert turn.wait() is None
    assert sequence.progress_before(sequence.stopped_at or 0) == {SOURCE: 10}


def test_a_lot_without_a_sequence_does_not_wait() -> None:
    assert LotTurn().wait() is None
