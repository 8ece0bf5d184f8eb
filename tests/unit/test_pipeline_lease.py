"""Appends, and the lease of the process that appends."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.clock import SYSTEM, poll
from tidemill.cluster import nodes
from tidemill.scope import Scope
from tidemill.testing.threads import STUCK_S


@pytest.mark.slow
def test_an_append_raises_the_error_that_ended_the_renewal_of_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders = shop.dataset("orders", "id BIGINT")
        orders.append([(1,)])
        connection = shop.context.connection

        def broken() -> float:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(connection.membership, "tick", broken)
        assert poll(lambda: connection._error is not None, SYSTEM, every_s=0.01, timeout_s=STUCK_S)
        with pytest.raises(ZeroDivisionError):
            orders.append([(2,)])


@pytest.mark.slow
def test_an_append_that_loses_its_lease_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders = shop.dataset("orders", "id BIGINT")
        orders.append([(1,)])
        new_attempt = Scope.new_attempt
        calls = 0

        def new_attempt_after_sleep(scope: Scope) -> str:
            """Lose the node's entry once, as when a laptop sleeps; the node joins again soon."""
            nonlocal calls
            calls += 1
            membership = shop.context.connection.membership
            assert membership is not None
            if calls == 1:
                scope.store.run(lambda tx: nodes.leave(tx, membership.keys, membership.node))
                membership._due = 0.0
            return new_attempt(scope)

        monkeypatch.setattr(Scope, "new_attempt", new_attempt_after_sleep)
        assert orders.append([(2,)]).position == 2
        assert calls > 1
