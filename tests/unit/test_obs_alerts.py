"""Alerts: what is sent, once, with retries, and by another process when the first one dies."""

import random
from functools import partial
from typing import Any

import pytest

from tests.unit.lots_stage import Stage
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.leases import TTL_S, LeaseTiming
from tidemill.errors import DeclarationError
from tidemill.events import Event
from tidemill.lots.ids import AppendId
from tidemill.obs import freshness
from tidemill.obs.alerts import CHECK_S, MOST_TRIES, QUIET_S, AlertGivenUp, Alerts
from tidemill.obs.event_log import EventLog
from tidemill.obs.freshness import Freshness
from tidemill.obs.hooks import Alert, Hook, HookFailed, command, hooks_of, webhook
from tidemill.obs.keys import ObservationKeys
from tidemill.triggers.events import RunFailed

KEYS = ObservationKeys("c")


class Recorder(Hook):
    """A hook that keeps what it gets, and refuses the first alerts."""

    def __init__(self, refuse: int = 0) -> None:
        self.alerts: list[Alert] = []
        self.refuse = refuse

    @property
    def label(self) -> str:
        return "recorder"

    def send(self, alert: Alert) -> None:
        if self.refuse:
            self.refuse -= 1
            raise HookFailed("it is away")
        self.alerts.append(alert)


class AlertStage:
    def __init__(self) -> None:
        self.stage = Stage(scan=False)
        self.store, self.clock = self.stage.store, self.stage.clock
        self.told: list[Event] = []
        self.lots = 0
        self.log = EventLog(self.store, KEYS, pipeline="shop", node="n1", clock=self.clock)
        self.orders = self.stage.dataset("orders")

    def limit(self, within_s: float) -> None:
        limit = Freshness(within_s=within_s, since=self.clock.wall())
        self.store.run(partial(freshness.declare, keys=KEYS, pipeline="shop", wanted={"orders": limit}))

    def alerts(self, name: str, **hooks: Hook) -> Alerts:
        keeper = Keeper(
            self.store, name, clock=self.clock, chance=random.Random(1), timing=LeaseTiming(TTL_S)
        )
        chosen = {list_name: [hook] for list_name, hook in hooks.items()}
        return Alerts(
            self.store,
            "c",
            "shop",
            hooks=chosen,
            keeper=keeper,
            clock=self.clock,
            chance=random.Random(1),
            emit=self.told.append,
        )

    def fail(self, message: str = "it broke", name: str = "arc:shop/clean") -> None:
        self.log(RunFailed(name=name, code="arc", message=message, backoff_s=1.0, failures=1))
        self.log.flush()

    def publish(self) -> None:
        self.lots += 1
        self.stage.add(self.orders, str(AppendId(self.lots)))


@pytest.fixture
def stage() -> AlertStage:
    return AlertStage()


def test_a_failure_is_sent_once_and_earlier_ones_are_no_news(stage: AlertStage) -> None:
    hook = Recorder()
    alerts = stage.alerts("a", on_failure=hook)
    stage.fail("before")
    alerts.tick()
    stage.fail("after")
    stage.fail("again")
    assert alerts.tick() == 1
    assert alerts.tick() == 0
    (alert,) = hook.alerts
    assert (alert.kind, alert.pipeline, alert.name) == ("failure", "shop", "clean")
    assert "after" in alert.text
    stage.clock.advance(QUIET_S)
    stage.fail("much later")
    stage.clock.advance(TTL_S)
    alerts.tick()
    assert [each.name for each in hook.alerts] == ["clean", "clean"]


def test_a_stale_table_alerts_once_and_again_when_it_is_fresh(stage: AlertStage) -> None:
    hook = Recorder()
    alerts = stage.alerts("a", on_stale=hook)
    stage.publish()
    stage.limit(60)
    alerts.tick()
    stage.clock.advance(10)
    alerts.tick()
    assert hook.alerts == []
    stage.clock.advance(51)
    alerts.tick()
    alerts.tick()
    assert [(each.kind, each.name) for each in hook.alerts] == [("stale", "orders")]
    assert "61 s old; the limit is 60 s" in hook.alerts[0].text
    stage.publish()
    alerts.tick()
    assert [each.kind for each in hook.alerts] == ["stale", "fresh"]


def test_a_table_without_lots_is_stale_after_its_limit(stage: AlertStage) -> None:
    hook = Recorder()
    alerts = stage.alerts("a", on_stale=hook)
    stage.limit(60)
    stage.clock.advance(30)
    stage.limit(60)  # the next run declares it again: the time goes on
    stage.clock.advance(31)
    alerts.tick()
    assert "nothing was published for 61 s" in hook.alerts[0].text


def test_the_alert_of_a_killed_runner_arrives_before_its_deadline(stage: AlertStage) -> None:
    """The process that publishes and sends dies: another one sends within the limit, a lease and a check."""
    first, second = Recorder(), Recorder()
    runner, watcher = stage.alerts("runner", on_stale=first), stage.alerts("watcher", on_stale=second)
    stage.limit(60)
    stage.publish()
    published = stage.clock.wall()
    assert runner._holds_lease()
    assert not watcher._holds_lease()
    while not second.alerts:  # the first node is dead and sends nothing
        stage.clock.advance(CHECK_S)
        watcher.tick()
    (alert,) = second.alerts
    assert alert.at - published <= 60 + TTL_S + CHECK_S
    assert first.alerts == []


def test_what_a_dead_sender_left_in_the_outbox_is_sent(stage: AlertStage) -> None:
    class Died(BaseException):
        pass

    class Dying(Recorder):
        def send(self, alert: Alert) -> None:
            raise Died

    runner, hook = stage.alerts("runner", on_failure=Dying()), Recorder()
    watcher = stage.alerts("watcher", on_failure=hook)
    runner.tick()
    stage.fail()
    with pytest.raises(Died):
        runner.tick()
    stage.clock.advance(TTL_S + 1)
    watcher.tick()
    assert [each.name for each in hook.alerts] == ["clean"]


def test_a_hook_that_is_away_is_tried_again_and_given_up_at_last(stage: AlertStage) -> None:
    hook = Recorder(refuse=3)
    alerts = stage.alerts("a", on_failure=hook)
    alerts.tick()
    stage.fail()
    alerts.tick()
    assert alerts.tick() == 0  # not due yet
    for _ in range(40):
        stage.clock.advance(30)
        alerts.tick()
    assert len(hook.alerts) == 1
    hook.refuse = MOST_TRIES
    stage.fail()
    for _ in range(400):
        stage.clock.advance(30)
        alerts.tick()
    assert len(hook.alerts) == 1
    assert [type(event) for event in stage.told] == [AlertGivenUp]


def test_a_second_pipeline_is_not_alerted(stage: AlertStage) -> None:
    hook = Recorder()
    alerts = stage.alerts("a", on_failure=hook)
    alerts.tick()
    other = EventLog(stage.store, KEYS, pipeline="other", node="n1", clock=stage.clock)
    other(RunFailed(name="arc:other/x", code="arc", message="m", backoff_s=1.0, failures=1))
    other.flush()
    alerts.tick()
    assert hook.alerts == []


@pytest.mark.rule("STO-14")
def test_hooks_never_show_their_secrets(tmp_path: Any) -> None:
    hook = webhook("http://user:s3cret@127.0.0.1:9/services/s3cret?token=s3cret", headers={"A": "s3cret"})
    alert = Alert(kind="failure", pipeline="p", name="n", text="t", at=0.0)
    with pytest.raises(HookFailed) as failed:
        hook.send(alert)
    program = command(["/bin/false", "s3cret"])
    with pytest.raises(HookFailed) as ended:
        program.send(alert)
    assert "s3cret" not in f"{hook!r} {failed.value} {program!r} {ended.value}"


def test_a_command_gets_the_alert_as_json(tmp_path: Any) -> None:
    target = tmp_path / "alert.json"
    command(["tee", str(target)]).send(Alert(kind="stale", pipeline="p", name="n", text="t", at=1.0))
    assert b'"kind":"stale"' in target.read_bytes()


def test_what_is_no_hook_is_refused() -> None:
    for wrong in (lambda: webhook("ftp://x"), lambda: command([]), lambda: hooks_of("on_stale", ["mail"])):
        with pytest.raises(DeclarationError):
            wrong()  # type: ignore[arg-type, no-untyped-call]
