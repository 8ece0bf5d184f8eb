"""A process that appends, and the entry in the node list under which it does."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.clock import SYSTEM, poll
from tidemill.cluster import nodes
from tidemill.scope import Scope
from tidemill.testing.threads import STUCK_S


@pytest.mark.slow
def test_when_the_keeping_of_our_entry_has_ended_an_append_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders = shop.dataset("orders", "id BIGINT")
        orders.append([(1,)])
        connection = shop.context.connection

        def broken() -> float:
            raise ZeroDivisionError("a mistake of ours")

        monkeypatch.setattr(connection.membership, "tick", broken)
        assert poll(lambda: connection._broken is not None, SYSTEM, every_s=0.01, timeout_s=STUCK_S)
        with pytest.raises(ZeroDivisionError):
            orders.append([(2,)])


@pytest.mark.slow
def test_an_append_whose_lease_was_lost_on_the_way_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders = shop.dataset("orders", "id BIGINT")
        orders.append([(1,)])
        given = Scope.new_attempt
        lost = 0

        def slept(scope: Scope) -> str:
            """As when a laptop sleeps behind the lid: the entry is gone, and soon there again."""
            nonlocal lost
            lost += 1
            membership = shop.context.connection.membership
            assert membership is not None
            if lost == 1:
                scope.store.run(lambda tx: nodes.leave(tx, membership.keys, membership.node))
                membership._due = 0.0
            return given(scope)

        monkeypatch.setattr(Scope, "new_attempt", slept)
        assert orders.append([(2,)]).position == 2
        assert lost > 1
