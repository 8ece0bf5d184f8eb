"""The parts of the soak that judge and report: they must be able to fail."""

import random
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.servers.process import wait_until
from tests.soak import inputs, oracle
from tests.soak.connections import TcpProxy
from tests.soak.faults import KINDS, Injector
from tests.soak.holdings import Holdings
from tests.soak.nodes import FAKETIME, SoakNode
from tests.soak.pipeline import Site
from tests.soak.report import ReportedFault, Sample, Soak, Verdict, render
from tests.soak.run import memory_growth
from tidemill.clock import SYSTEM
from tidemill.cluster.nodes import Node
from tidemill.testing.threads import STUCK_S

SENT = {"orders": 6, "clicks": 4, "payments": 5, "customers": 9}


def test_the_oracle_expects_every_row_once_in_tables_and_views() -> None:
    tables = oracle.expected(SENT)
    rows = 6 * inputs.ORDERS + 4 * inputs.CLICKS + 5 * inputs.PAYMENTS
    assert sum(tables["ledger"].values()) == rows == sum(row[1] for row in tables["kinds"])
    assert {*tables["ledger"].values()} == {1}
    assert sum(row[1] for row in tables["regions"]) == sum(tables["doubled"].values())
    (total,) = tables["all_tiers"]
    assert total[1] == sum(row[1] for row in tables["by_tier"]) > 0
    assert 0 < len(tables["tiers"]) < inputs.CUSTOMERS, "some customers are deleted"


@pytest.mark.parametrize("table", ["orders", "tidy_clicks", "ledger", "kinds", "by_tier", "tiers (changes)"])
def test_the_oracle_finds_a_lost_and_a_doubled_row_in_each_table(table: str) -> None:
    wanted = oracle.expected(SENT)
    stored = {name: Counter(rows) for name, rows in wanted.items()}
    assert oracle.differences(wanted, stored) == []
    row = next(iter(stored[table]))
    stored[table][row] -= 1
    assert [str(difference) for difference in oracle.differences(wanted, stored)] == [
        f"{table}: lost {row}: 0 times instead of 1"
    ]
    stored[table][row] += 2
    assert [str(difference) for difference in oracle.differences(wanted, stored)] == [
        f"{table}: doubled {row}: 2 times instead of 1"
    ]


def test_the_oracle_finds_a_row_that_was_never_sent_and_a_missing_table() -> None:
    wanted, stored = oracle.expected(SENT), oracle.expected(SENT)
    stored["orders"][(-1, 0, "north", 1)] += 1
    del stored["pages"]
    kinds = Counter((row.table, row.wanted, row.stored) for row in oracle.differences(wanted, stored))
    assert kinds[("orders", 0, 1)] == 1
    assert kinds[("pages", 1, 0)] == len(wanted["pages"])


def test_a_digest_depends_on_counts_and_not_on_the_order_of_rows() -> None:
    rows = Counter({("a", 1): 1, ("b", 2): 2})
    assert oracle.digest(rows) == oracle.digest(Counter({("b", 2): 2, ("a", 1): 1}))
    assert oracle.digest(rows) != oracle.digest(Counter({("a", 1): 1, ("b", 2): 1}))
    assert oracle.digest(rows) != oracle.digest(Counter({("a", 1): 2, ("b", 2): 1}))


def test_memory_that_grows_in_the_second_half_is_found() -> None:
    steady = [Sample(float(n), 1, 1, 1000) for n in range(100)]
    growing = [Sample(float(n), 1, 1, 1000 + max(0, n - 50) * 10) for n in range(100)]
    assert memory_growth(steady, 100.0)[0] == 0.0
    assert memory_growth(growing, 100.0)[0] > 0.3
    assert memory_growth(steady[:3], 100.0)[0] == float("inf"), "no verdict without samples"
    in_python = [Sample(float(n), 1, 1, 1000 + max(0, n - 50), 900) for n in range(100)]
    assert memory_growth(in_python, 100.0)[0] > 0.3, "Java hides the growth of Python in the sum"
    takes_over = [Sample(float(n), 1, 1, 1000 + (50 if n >= 70 else 0), 900) for n in range(100)]
    assert memory_growth(takes_over, 100.0)[0] == pytest.approx(0.05), "it counts only in the sum"
    twice = [Sample(float(n), 1, 1, 1000 + 50 * ((n >= 70) + (n >= 80)), 900) for n in range(100)]
    assert memory_growth(twice, 100.0)[0] > 0.3


def test_temporary_files_count_if_they_take_up_space(tmp_path: Path) -> None:
    site = Site(tmp_path / "site", store="", objects="", brokers="", topic="")
    node = SoakNode(site, "runner", "run", 1, steady=True)
    temporary = site.folder / "runner" / "tmp"
    for folder in ("cache/traces", "s3a", "spark-1/blocks"):
        (temporary / folder).mkdir(parents=True)
    (temporary / "cache" / "traces" / "run").write_bytes(b"kept")
    assert node.temporary_files() == []
    (temporary / "spark-1" / "blocks" / "shuffle").write_bytes(b"left")
    assert node.temporary_files() == ["spark-1"]


class NodeList:
    """What the soak reads of the store, in turn."""

    def __init__(self, *readings: Holdings) -> None:
        self._readings = list(readings)

    def read(self) -> Holdings:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def test_a_fault_reports_what_its_target_held_before_and_during_the_fault() -> None:
    node = Node(id="a", epoch=1, kind="runner", slots=3, started_at=200)
    before = Holdings({3: node}, {"a": ["claim 1", "claim 2", "lease x"], "b": ["claim 9"]})
    during = Holdings({3: node}, {"a": ["claim 2", "claim 3", "lease x"], "b": ["claim 9"]})
    down = Holdings({}, {}, known=False)
    reads = NodeList(before, down, during)
    injector = Injector([], None, None, random.Random(1), reads.read, lambda: 0.0)  # type: ignore[arg-type]
    _, held = injector._target("postgres", 0)
    assert injector._still_held(held) == ["claim 2", "claim 9", "lease x"]


def test_the_entry_of_a_killed_process_is_not_that_of_the_process_that_replaced_it() -> None:
    node = Node(id="a", epoch=1, kind="runner", slots=3, started_at=200)
    holdings = Holdings({3: node}, {"a": ["claim 1"]})
    assert holdings.entry(3, 150) is node
    assert holdings.entry(3, 250) is None, "this process started after the entry was written"
    assert holdings.entry(4, 0) is None


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed (apt-get install faketime)")
def test_the_clock_of_a_running_process_can_be_shifted_and_put_back(tmp_path: Path) -> None:
    site = Site(tmp_path / "site", store="", objects="", brokers="", topic="")
    node = SoakNode(site, "runner", "run", 1, steady=True, clock=True)
    code = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=node._environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None

        def clocks() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("now\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            return wall - SYSTEM.wall(), monotonic - SYSTEM.monotonic()

        def shifted(by_s: int) -> bool:
            return abs(clocks()[0] - by_s) < 60

        assert max(map(abs, clocks())) < 60
        for shift_s in (3600, -7 * 86_400, 0):
            node.set_clock(shift_s)
            assert wait_until(partial(shifted, shift_s), timeout_s=STUCK_S)
            assert abs(clocks()[1]) < 60, "only the wall clock moves"
        process.kill()


class Tags(HTMLParser):
    """Checks that tags are closed in their order, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "line", "rect", "polyline") or not (self.get_starttag_text() or "").endswith(
            "/>"
        ):
            self.open += [] if tag == "meta" else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_report_shows_every_fault_and_verdict_and_loads_nothing() -> None:
    faults = [
        ReportedFault(
            kind=kind,
            target=f"runner-{n}",
            detail=f"detail <{n}>",
            holds=["claim a", "run b", "lease c", "lease d"],
            at_s=10.0 * n,
            end_s=10.0 * n + 3,
            recovered_s=None if n == 2 else 10.0 * n + 7.5,
        )
        for n, kind in enumerate(KINDS)
    ]
    soak = Soak(
        minutes=20,
        seed=7,
        began="now",
        machine="2 cores",
        nodes=["runner-1 (never killed)"],
        faults=faults,
        skipped={"clock": "no libfaketime"},
        samples=[Sample(float(n), n, n // 2, 10**9) for n in range(90)],
        rows={"orders": 1234},
        retries=5,
        restarts=3,
        verdicts=[
            Verdict("every row counts once", True, "fine"),
            Verdict("nothing is left", False, "3 left"),
        ],
    )
    page = render(soak)
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    assert page.count('fill="var(--fault)"') == page.count('fill="var(--recovery)"') == len(faults)
    for text in ("failed", "detail <5>", "and 1 more", "3 left", "1,234", "skipped: no libfaketime", "4.5 s"):
        assert text in parser.words, text
    assert not re.search(r"https?://|<script|<link|<img", page)


def test_the_proxy_forwards_cuts_and_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.sendall(client.recv(100))

        threading.Thread(target=echo, daemon=True).start()
        with TcpProxy(server.getsockname()[1]) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port), STUCK_S) as wire:
                wire.sendall(b"hello")
                assert wire.recv(100) == b"hello"
                assert proxy.cut() == 1
                assert wire.recv(100) == b""
            proxy.refusing = True
            with socket.create_connection(("127.0.0.1", proxy.port), STUCK_S) as wire:
                assert wire.recv(100) == b""
