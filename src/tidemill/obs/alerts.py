"""Send alerts to the hooks of a pipeline: when something fails, and when a table gets too old.

Any process that imports the pipeline can send its alerts: each runner does, and `tidemill alerts --watch`
does without Spark. One of them holds a lease and sends; when it dies, another one takes over. An alert is
first stored in the outbox, in the transaction that moves the cursor over the event log, and removed when its
hook has taken it. So no alert is lost with a process, and a hook may get an alert twice.

A failure is an event of the log with the severity *error*. After a failure, further failures of the same
subject are left out for a while. A table is stale when it is older than its `fresh_within`.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.errors import LeaseLost, StoreError
from tidemill.events import Emit, Event, ignore
from tidemill.obs import event_log, freshness
from tidemill.obs.event_log import LoggedEvent
from tidemill.obs.freshness import Age
from tidemill.obs.hooks import Alert, Hook, HookFailed
from tidemill.obs.keys import ObservationKeys
from tidemill.obs.lines import Severity
from tidemill.store import Store, Tx
from tidemill.views.steps.keys import StepKeys

CHECK_S = 2.0
"""How often the sender looks for failures and stale tables."""

QUIET_S = 600.0
"""For how long further failures of the same subject are left out."""

MOST_TRIES = 12
FIRST_RETRY_S = 5.0
MOST_RETRY_S = 600.0
PAGE = 200


class AlertGivenUp(Event, frozen=True):
    """A hook did not take an alert after many attempts; the alert is dropped."""

    pipeline: str
    hook: str
    alert: str
    why: str


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """An alert in the outbox. `why` says why the last attempt failed."""

    alert: Alert
    due_at: float
    tries: int = 0
    why: str = ""


_waiting = msgspec.msgpack.Decoder(OutboxRow)
_number = msgspec.msgpack.Decoder(float)


class Alerts:
    """Finds what to alert about, and sends it to hooks, in the process that holds the lease.

    Args:
        store: the store of the cluster.
        cluster: the name of the cluster.
        pipeline: whose alerts to send.
        hooks: the hooks for failures, and those for tables that become stale or fresh.
        keeper: holds our lease.
        clock: the source of time.
        chance: the source of random numbers.
        emit: receives `AlertGivenUp`.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        pipeline: str,
        *,
        hooks: Mapping[str, Sequence[Hook]],
        keeper: Keeper,
        clock: Clock = SYSTEM,
        chance: random.Random,
        emit: Emit = ignore,
    ) -> None:
        self._store = store
        self._keys = ObservationKeys(cluster)
        self._steps = StepKeys(cluster)
        self._pipeline = pipeline
        self._hooks = {
            f"{list_name} {number}": hook
            for list_name, hooks_of in hooks.items()
            for number, hook in enumerate(hooks_of)
        }
        self._keeper = keeper
        self._clock = clock
        self._chance = chance
        self._emit = emit
        self._lease: HeldLease | None = None

    # --- the sender

    def tick(self) -> int:
        """Do everything that is due, if this process is the sender; return how many alerts were sent."""
        if not self._holds_lease():
            return 0
        try:
            while self._store.run(self._collect_failures) == PAGE:
                pass
            self._store.run(self._collect_stale)
            return self._send_due()
        except LeaseLost:
            self._lease = None
            return 0

    def run(self, stop: threading.Event) -> None:
        """Call `tick` until stopped, and release the lease."""
        while not self._clock.wait(stop, CHECK_S):
            try:
                self.tick()
            except StoreError:
                continue  # the next tick tries again
        self.close()

    def close(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and lease.alive():
            try:
                self._keeper.release(lease)
            except StoreError:
                return  # the lease expires

    def _holds_lease(self) -> bool:
        if self._lease is None or not self._lease.alive():
            lease = self._keeper.acquire(self._keys.lease[self._pipeline])
            self._lease = lease if isinstance(lease, HeldLease) else None
        return self._lease is not None

    def _fence(self, tx: Tx) -> None:
        assert self._lease is not None
        self._lease.fence(tx)

    # --- what to alert about

    def _collect_failures(self, tx: Tx) -> int:
        """Move the cursor over the event log, and put failures into the outbox; return how many rows."""
        self._fence(tx)
        keys, seen = self._keys, self._keys.seen[self._pipeline]
        cursor = tx.get(seen)
        if cursor is None:  # the first sender ever: what happened before is no news
            last = event_log.newest(tx, keys, limit=1)
            tx.set(seen, last[0].key if last else keys.log.prefix, quiet=True)
            return 0
        rows = event_log.read(tx, keys, b"" if cursor == keys.log.prefix else cursor, PAGE)
        for row in rows:
            event = row.event
            if event.pipeline == self._pipeline and event.severity is Severity.ERROR:
                self._fail(tx, event, row.key[-12:].hex())
        if rows:
            tx.set(seen, rows[-1].key, quiet=True)
        return len(rows)

    def _fail(self, tx: Tx, event: LoggedEvent, id_: str) -> None:
        firing = self._keys.firing[self._pipeline, "failure", event.about]
        last = tx.get(firing)
        if last is not None and event.at - _number.decode(last) < QUIET_S:
            return
        tx.set(firing, msgspec.msgpack.encode(event.at), quiet=True)
        alert = Alert(
            kind="failure",
            pipeline=self._pipeline,
            name=event.about,
            text=event.text,
            at=event.at,
            lot=event.lot,
            id=id_,
        )
        self._put(tx, "on_failure", alert)

    def _collect_stale(self, tx: Tx) -> None:
        """Put tables that became stale or fresh into the outbox."""
        self._fence(tx)
        now = self._clock.wall()
        for age in freshness.ages(tx, self._keys, self._steps, self._pipeline, now):
            firing = self._keys.firing[self._pipeline, "stale", age.table]
            fires = tx.get(firing) is not None
            if age.is_stale and not fires:
                tx.set(firing, msgspec.msgpack.encode(now), quiet=True)
                self._put(tx, "on_stale", self._stale_alert("stale", age, now, _stale_text(age)))
            elif fires and not age.is_stale:
                tx.clear(firing, quiet=True)
                self._put(
                    tx, "on_stale", self._stale_alert("fresh", age, now, "the table is up to date again")
                )

    def _stale_alert(self, kind: str, age: Age, now: float, text: str) -> Alert:
        return Alert(
            kind="stale" if kind == "stale" else "fresh",
            pipeline=self._pipeline,
            name=age.table,
            text=text,
            at=now,
            id=f"{kind}-{age.table}-{int(now * 1000)}",
        )

    def _put(self, tx: Tx, list_name: str, alert: Alert) -> None:
        waiting = msgspec.msgpack.encode(OutboxRow(alert=alert, due_at=alert.at))
        for name in self._hooks:
            if name.startswith(f"{list_name} "):
                tx.set(self._keys.outbox[self._pipeline, alert.id, name], waiting, quiet=True)

    # --- sending

    def _send_due(self) -> int:
        rows = self._store.run(
            lambda tx: tx.range(*self._keys.outbox.under(self._pipeline), limit=PAGE, snapshot=True)
        )
        sent = 0
        for row in rows:
            waiting = _waiting.decode(row.value)
            if waiting.due_at > self._clock.wall() and waiting.tries:
                continue
            name = str(self._keys.outbox.unpack(row.key)[2])
            failed = self._send(self._hooks.get(name), waiting.alert)
            after = None if failed is None else self._retry(waiting, name, failed)
            self._store.run(partial(self._note, key=row.key, waiting=after))
            sent += failed is None
        return sent

    def _send(self, hook: Hook | None, alert: Alert) -> str | None:
        """Send an alert; return why it failed, or None. An alert to a hook that is gone counts as sent."""
        if hook is None:
            return None
        try:
            hook.send(alert)
        except HookFailed as failed:
            return str(failed)
        return None

    def _retry(self, waiting: OutboxRow, name: str, why: str) -> OutboxRow | None:
        """Return the alert for its next attempt; None if there were too many."""
        tries = waiting.tries + 1
        if tries >= MOST_TRIES:
            label = self._hooks[name].label
            self._emit(AlertGivenUp(pipeline=self._pipeline, hook=label, alert=waiting.alert.text, why=why))
            return None
        wait_s = backoff(tries, self._chance, first_s=FIRST_RETRY_S, most_s=MOST_RETRY_S)
        due_at = self._clock.wall() + wait_s
        return msgspec.structs.replace(waiting, due_at=due_at, tries=tries, why=why)

    def _note(self, tx: Tx, key: bytes, waiting: OutboxRow | None) -> None:
        self._fence(tx)
        if waiting is None:
            tx.clear(key, quiet=True)
        else:
            tx.set(key, msgspec.msgpack.encode(waiting), quiet=True)


def in_thread(alerts: Alerts) -> Callable[[], None]:
    """Send alerts from another thread; return a function that ends it."""
    stop = threading.Event()
    thread = threading.Thread(target=alerts.run, args=(stop,), name="tidemill-alerts", daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end


def _stale_text(age: Age) -> str:
    if not age.published_at:
        return f"nothing was published for {_minutes(age.age_s)}; the limit is {_minutes(age.within_s)}"
    return f"the newest lot is {_minutes(age.age_s)} old; the limit is {_minutes(age.within_s)}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
