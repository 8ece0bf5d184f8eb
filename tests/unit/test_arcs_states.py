"""The arc machine and the rollup, enumerated."""

from itertools import chain, combinations

import pytest

from tidemill.arcs.states import ARC, ArcEdge, ArcState, PartState, part_state, rollup, step
from tidemill.errors import IllegalTransition
from tidemill.lots.manifest import ManifestState

S, P = ArcState, PartState

EDGES = {
    (S.NONE, S.RUNNING),
    (S.RUNNING, S.RUNNING),  # the lease changes hands; no other state follows
    (S.RUNNING, S.COMPLETE),
    (S.RUNNING, S.PARTIAL),
    (S.RUNNING, S.MISSING),
    (S.PARTIAL, S.RUNNING),
    (S.PARTIAL, S.MISSING),
    (S.MISSING, S.RUNNING),
}


@pytest.mark.rule("LOT-12")
def test_every_state_has_the_edges_of_the_rule_and_no_others():
    assert {(state, after) for state, edges in ARC.items() for after in edges.values()} == EDGES
    for state in ArcState:
        for edge in ArcEdge:
            if edge in ARC[state]:
                assert step(state, edge) is ARC[state][edge]
            else:
                with pytest.raises(IllegalTransition):
                    step(state, edge)


EVERY = list(chain.from_iterable(combinations(PartState, n) for n in range(len(PartState) + 1)))


@pytest.mark.rule("LOT-13")
@pytest.mark.rule("LOT-8")
@pytest.mark.parametrize("states", EVERY, ids=lambda states: "+".join(states) or "none")
def test_the_state_of_a_lot_follows_from_every_combination_of_manifest_states(states):
    rolled_up = rollup(states)
    if P.PARTIAL in states:
        assert rolled_up is S.PARTIAL
    elif all(state in (P.COMPLETE, P.EMPTY) for state in states):
        assert rolled_up is S.COMPLETE
    elif not any(state in (P.COMPLETE, P.EMPTY) for state in states):
        assert rolled_up is S.MISSING
    else:
        assert rolled_up is S.PARTIAL
    assert rollup([*states, *states]) is rolled_up  # how many of each does not matter
    assert rollup(reversed(states)) is rolled_up


def test_no_state_of_a_manifest_is_forgotten():
    assert {part_state(state) for state in [*ManifestState, None]} == set(PartState)
    assert part_state(None) is PartState.ABSENT
