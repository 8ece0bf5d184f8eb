"""The rows that the soak sends. They are functions of a number, so the oracle knows every row.

Each sender repeats a request until it is confirmed, as users do. Batch `n` of an input always has the same
rows.
"""

import http.client
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tidemill as tm
from tests.servers.kafka import KafkaServer
from tests.unit.push_stage import post
from tidemill.clock import SYSTEM
from tidemill.errors import TidemillError

ORDERS, CLICKS, PAYMENTS = 12, 10, 10
"""The rows in a batch."""

MERGED = 25
PARTITIONS = 3
REGIONS = ("north", "south", "east")
PAGES = ("home", "cart", "pay", "help")
TIERS = ("gold", "silver", "bronze")
CUSTOMERS = 40
MANY_CUSTOMERS = 8
"""Every so many batches, three of four customers change their tier."""

Row = tuple[Any, ...]


def orders(batch: int) -> list[Row]:
    """Return the orders of a file: id, customer, region, amount. Every fifth amount is refused."""
    first = batch * ORDERS
    return [
        (n, n * 7 % CUSTOMERS, REGIONS[n % 3], -n if n % 5 == 0 else n % 900 + 1)
        for n in range(first, first + ORDERS)
    ]


def clicks(batch: int) -> list[Row]:
    """Return the clicks of a push request: id, page, milliseconds."""
    first = batch * CLICKS
    return [(n, PAGES[n * 3 % 4], n * 13 % 500) for n in range(first, first + CLICKS)]


def payments(batch: int) -> list[Row]:
    """Return the payments of a batch of messages: id, customer, cents."""
    first = batch * PAYMENTS
    return [(n, n * 11 % CUSTOMERS, n * 17 % 10_000) for n in range(first, first + PAYMENTS)]


def customers(batch: int) -> tuple[str, list[Row]]:
    """Return a change of customers: `upsert` with ids and tiers, or `delete` with ids."""
    if batch == 0:
        return "upsert", [(n, TIERS[n % 3]) for n in range(CUSTOMERS)]
    turn = batch // MANY_CUSTOMERS
    if batch % MANY_CUSTOMERS == 0:
        return "upsert", [(n, TIERS[(n + turn) % 3]) for n in range(CUSTOMERS) if (n - turn) % 4 != 1]
    ids = [(batch * 5 + k * 3) % CUSTOMERS for k in range(4)]
    if batch % 4 == 3:
        return "delete", [(n,) for n in ids[:2]]
    return "upsert", [(n, TIERS[(n + batch) % 3]) for n in ids]


class Inputs:
    """Sends batches to a pipeline: files, push requests, messages and changes of customers.

    - sent: how many batches of each input were confirmed.
    - retries: how many requests were repeated.
    """

    def __init__(self, pipeline: tm.Pipeline, landing: Path, kafka: KafkaServer, topic: str) -> None:
        self._pipeline = pipeline
        self._landing = landing
        self._kafka = kafka
        self._topic = topic
        self.sent = dict.fromkeys(("orders", "clicks", "payments", "customers"), 0)
        self.retries = 0
        self.errors: list[BaseException] = []

    def send_orders(self, batch: int) -> bool:
        """Land a file: readers see it whole, or not at all."""
        names = ("id", "cust", "region", "amount")
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in orders(batch))
        hidden = self._landing / f".orders-{batch:05}"
        hidden.write_text(text)
        hidden.rename(self._landing / f"orders-{batch:05}.json")
        return True

    def send_clicks(self, batch: int, count: int = 1) -> bool:
        """Push a request with one or more batches; return whether it was confirmed."""
        names = ("id", "page", "ms")
        rows = [row for n in range(batch, batch + count) for row in clicks(n)]
        body = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows).encode()
        try:
            dataset = self._pipeline["raw_clicks"]
            assert isinstance(dataset, tm.Dataset)
            address = dataset.address()
            base, _, path = address.url.rpartition("/")
            status, answer = post(
                base,
                body,
                path=f"/{path}",
                token=address.token,
                Tidemill_Producer="soak",
                Tidemill_Seq=str(batch),
            )
        except (OSError, http.client.HTTPException, ValueError, TidemillError):
            return False  # no node receives now, or it ended before it answered
        assert status in (200, 429, 503), answer
        return bool(status == 200)

    def send_payments(self, batch: int) -> bool:
        names = ("id", "cust", "cents")
        rows = [json.dumps(dict(zip(names, row, strict=True))).encode() for row in payments(batch)]
        self._kafka.send(self._topic, [(n % PARTITIONS, row) for n, row in enumerate(rows)])
        return True

    def send_customers(self, batch: int) -> bool:
        """Upsert or delete customers; a repeated request takes effect once."""
        operation, rows = customers(batch)
        try:
            dataset = self._pipeline["customers"]
            assert isinstance(dataset, tm.Dataset)
            if operation == "upsert":
                dataset.upsert([{"id": n, "tier": tier} for n, tier in rows], producer="soak", seq=batch)
            else:
                dataset.delete([{"id": n} for (n,) in rows], producer="soak", seq=batch)
        except TidemillError:
            return False
        return True

    def send(self, name: str, batch: int, stop: threading.Event | None = None) -> bool:
        """Send a batch until it is confirmed; return False if `stop` was set before the first attempt."""
        attempt: Callable[[int], bool] = getattr(self, f"send_{name}")
        if stop is not None and stop.is_set():
            return False
        while not attempt(batch):
            self.retries += 1
            SYSTEM.sleep(0.5)
        self.sent[name] = batch + 1
        return True

    def send_last(self) -> None:
        """Send one more batch of each input, and of customers until a batch changes most of them.

        A view that joins customers then uses most of its state once more, so damage in the state shows.
        """
        for name in self.sent:
            self.send(name, self.sent[name])
        while (self.sent["customers"] - 1) % MANY_CUSTOMERS:
            self.send("customers", self.sent["customers"])

    def send_all(self, sent: dict[str, int]) -> None:
        """Send what another pipeline has received, in larger pieces. The topic has its messages already."""
        for name in ("customers", "orders"):
            for batch in range(sent[name]):
                self.send(name, batch)
        for batch in range(0, sent["clicks"], MERGED):
            count = min(MERGED, sent["clicks"] - batch)
            while not self.send_clicks(batch, count):
                SYSTEM.sleep(0.5)
        self.sent = dict(sent)


class Senders:
    """Threads that send one batch of each input every so often, until they are stopped.

    - every_s: the pause between two batches of an input.
    - wait: blocks while the pipeline has much to do.
    """

    def __init__(
        self, inputs: Inputs, every_s: dict[str, float], wait: Callable[[threading.Event], None]
    ) -> None:
        self._inputs = inputs
        self._wait = wait
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(name, pause_s), name=f"send-{name}", daemon=True)
            for name, pause_s in every_s.items()
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str, pause_s: float) -> None:
        try:
            while self._inputs.send(name, self._inputs.sent[name], self._stop):
                SYSTEM.wait(self._stop, pause_s)
                self._wait(self._stop)
        except BaseException as error:  # noqa: BLE001 - reported by `stop`
            self._inputs.errors.append(error)

    def stop(self) -> None:
        """Send nothing new, and wait until everything that was begun is confirmed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._inputs.errors:
            raise self._inputs.errors[0]
