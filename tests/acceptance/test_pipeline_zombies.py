"""A runner that is paused in the middle of a part until another has done its work, and then goes on."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import shop
from tests.leases import end_lease
from tests.servers.process import wait_until
from tidemill import crash
from tidemill.pipeline import run as pipeline_run
from tidemill.pipeline.run import join_cluster, run_as_node
from tidemill.publish.cleaner import Cleaner
from tidemill.runner.presence import OwnPresence
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TTL_S = 4.0  # how often runners look after each other
WRITERS = ("run-", "lots", "future-", "claim-", "projections")  # the names of a runner's threads


class Paused:
    """A runner in a thread that stops at a crash point, with the thread that renews its lease.

    `end` waits for all threads of the runner. The thread that stops may be one that the runner does not wait
    for when it ends, because it has lost its lease: that thread would then write while the test looks.
    """

    def __init__(self, pipeline: Any, point: str, visit: int, patch: pytest.MonkeyPatch) -> None:
        self.pipeline = pipeline
        self.there = threading.Event()
        self.go = threading.Event()
        self.ended: BaseException | object = None
        self._left = visit
        self._point = point
        self._lock = threading.Lock()
        self._presence: list[OwnPresence] = []
        self._others = set(threading.enumerate())
        patch.setattr(crash, "point", self._pass)
        patch.setattr(pipeline_run, "OwnPresence", self._made)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _made(self, *arguments: Any, **options: Any) -> OwnPresence:
        self._presence.append(OwnPresence(*arguments, **options))
        return self._presence[-1]

    def _pass(self, name: str) -> None:
        if name != self._point:
            return
        with self._lock:
            if self.there.is_set():
                return
            self._left -= 1
            if self._left > 0:
                return
            presence = self._presence[0]
            presence._over.set()  # as SIGSTOP would: its lease is not renewed, and it does not join again
            presence._wake.set()
            presence._thread.join(STUCK_S)
            end_lease(presence.store, presence.member.keys, presence.node.id)
            presence.member.membership.deadline = 0.0  # its own clock says so, too
            self.there.set()
        assert self.go.wait(STUCK_S)

    def _run(self) -> None:
        try:
            with join_cluster(self.pipeline, ttl_s=TTL_S) as presence:
                self.ended = run_as_node(self.pipeline, presence)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.ended = error

    def end(self) -> None:
        self.go.set()
        self._thread.join(STUCK_S)
        assert not self._thread.is_alive()
        assert wait_until(lambda: not self._writers(), timeout_s=STUCK_S), self._writers()

    def _writers(self) -> list[threading.Thread]:
        new = set(threading.enumerate()) - self._others
        return [thread for thread in new if thread.name.startswith(WRITERS)]


@pytest.mark.rule("LOT-17")
@pytest.mark.rule("LOT-9")
@pytest.mark.parametrize(
    ("point", "visit"),
    [
        ("spark.write.before", 3),  # the last sink of the first arc's part: its first sink is written
        ("publish.part-manifest.before", 4),  # a manifest of the first arc: it lands after its successor's
        ("publish.commit.before", 2),  # all is written, and only the word is missing
    ],
)
def test_a_runner_that_goes_on_after_its_successor_published_doubles_nothing(
    point: str, visit: int, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, home = tmp_path / "landing", tmp_path / "home"
    shop.land(landing, "a", 0)
    with (
        shop.declare(home, landing, spark, refresh="full") as first,
        shop.declare(home, landing, spark, refresh="full") as second,
    ):
        paused = Paused(first, point, visit, monkeypatch)
        try:
            assert wait_until(paused.there.is_set, timeout_s=STUCK_S)
            assert second["odd"].position == 0
            assert second.run().ok  # does its work, because the lease of the first is over
            assert shop.held(second) == shop.expected(range(6))
            Cleaner(second.context.scope).clean()  # has been here before the first writes the rest
        finally:
            paused.end()
        assert shop.held(second) == shop.expected(range(6))
        shop.clean_up(second)
        assert shop.orphans(second) == []
        shop.seen(second)
        assert second.run().arcs == ()  # there is nothing left to do
