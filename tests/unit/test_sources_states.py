import itertools

import pytest

from tidemill.errors import IllegalTransition
from tidemill.sources.states import WINDOW, WindowEdge, WindowState, step


@pytest.mark.parametrize(("state", "edge"), list(itertools.product(WindowState, WindowEdge)))
def test_every_edge_is_in_the_table_or_refused(state: WindowState, edge: WindowEdge) -> None:
    if edge in WINDOW[state]:
        assert step(state, edge) is WINDOW[state][edge]
    else:
        with pytest.raises(IllegalTransition):
            step(state, edge)


def test_an_ended_window_stays_ended() -> None:
    assert WINDOW[WindowState.PUBLISHED] == {} == WINDOW[WindowState.DROPPED]
