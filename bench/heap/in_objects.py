"""The heap on S3: a real server on loopback, and a proxy in front of it that counts requests.

It pushes items of scheduled subscriptions, a fifth of them due, and finds the due ones. It counts what a bill
would show: LIST, GET and HEAD requests of one peek at all due items.
"""

import contextlib
import random
import re
import socket
import statistics
import threading
import time
from collections import Counter
from itertools import islice

from bench.comparison import rounded
from bench.report import Report, at_most
from tests.servers.s3 import S3Server, SeaweedS3
from tidemill.clock import SYSTEM
from tidemill.objects import open_objects
from tidemill.triggers.heap import MINUTE_US, Item
from tidemill.triggers.object_heap import ObjectHeap

SIZES = (1_000, 50_000)
QUICK_SIZES = (50, 100)
NOW = 1_000_000 * MINUTE_US
REQUEST = re.compile(rb"^(GET|HEAD|PUT|DELETE|POST) (\S+) HTTP/1\.1\r$", re.MULTILINE)


class CountingProxy:
    """Forwards connections to a server, and counts the requests that go through it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for source, target, count in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=(source, target, count), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if count:
                    self._note(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _note(self, data: bytes) -> None:
        with self._lock:
            for method, path in REQUEST.findall(data):
                verb = method.decode()
                self.counts["LIST" if verb == "GET" and b"list-type=2" in path else verb] += 1

    def since(self) -> Counter[str]:
        """Return the counts since the last call."""
        with self._lock:
            counted, self.counts = self.counts, Counter()
        return counted

    def close(self) -> None:
        self._listener.close()


def measure(report: Report) -> None:
    with SeaweedS3() as server:
        proxy = CountingProxy(server.port)
        lists, gets = [], 0
        for size in QUICK_SIZES if report.quick else SIZES:
            per_1000, fetched = _size(report, server, proxy, size)
            lists.append(per_1000)
            gets += fetched
        proxy.close()
    report.figure("lists_per_1000_due", max(lists), target=at_most(1.0))
    report.figure("gets", gets, target=at_most(0))


def _size(report: Report, server: S3Server, proxy: CountingProxy, size: int) -> tuple[float, int]:
    url = (
        f"s3://{server.access_key}:{server.secret_key}@{server.new_bucket()}/root"
        f"?endpoint={proxy.endpoint}&region={server.region}&listing=flat"
    )
    heap = ObjectHeap(open_objects(url, clock=SYSTEM, chance=random.Random(1), probe=False))
    due = size if size <= 1_000 else size // 5
    chance = random.Random(size)
    items = [
        Item(
            NOW - chance.randrange(60) * MINUTE_US
            if n < due
            else NOW + chance.randrange(1, 1_440) * MINUTE_US,
            f"s{n:06}",
            1,
        )
        for n in range(size)
    ]
    chance.shuffle(items)
    began = time.perf_counter()
    heap.push(items)
    push_s = time.perf_counter() - began
    proxy.since()
    peeks = []
    for _ in range(3):
        began = time.perf_counter()
        items_due = list(islice(heap.listed(0, NOW + 1), due))
        peeks.append((time.perf_counter() - began) * 1000)
        assert len(items_due) == due
    counted = proxy.since()
    assert len(list(heap.listed(0, NOW + 1))) == due
    to_the_end = proxy.since()["LIST"]
    began = time.perf_counter()
    heap.remove(items_due[:1_000])
    remove_s = time.perf_counter() - began
    report.raw[f"objects_{size}"] = {
        "scheduled": size,
        "due": due,
        "push_per_s": rounded(size / push_s),
        "peek_all_due_ms": [rounded(ms) for ms in peeks],
        "remove_1000_s": rounded(remove_s),
        "requests_of_three_peeks": dict(counted),
        "lists_of_a_peek_past_them": to_the_end,
    }
    per_1000 = counted["LIST"] / 3 / (due / 1_000)
    report.say(
        f"S3, {size:,} scheduled, {due:,} due: {size / push_s:,.0f} pushes/s, "
        f"peek {statistics.median(peeks):.0f} ms, {counted['LIST'] / 3:g} LISTs, {counted['GET']} GETs"
    )
    return per_1000, counted["GET"] + counted["HEAD"]
