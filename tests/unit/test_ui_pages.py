"""The screens of the page: each is reached by links, and escapes what it shows."""

import re
from html import unescape
from html.parser import HTMLParser

import msgspec
import pytest
from starlette.testclient import TestClient

from tests.unit.lots_stage import SECOND_US
from tests.unit.page_stage import HOSTILE, PageStage
from tidemill.lots import expiry
from tidemill.obs.event_log import EventLog
from tidemill.obs.keys import ObservationKeys
from tidemill.pipeline.descriptions import DescriptionKeys, OperatorDescription, ViewDescription
from tidemill.triggers.events import RunFailed
from tidemill.ui.model import grid
from tidemill.views.steps import failed_views
from tidemill.views.steps.failed_views import FailedView


@pytest.fixture(scope="module")
def stage() -> PageStage:
    stage = PageStage().fill()
    stage.quarantine(stage.orders, "A00000000000000001", 3)
    return stage


@pytest.fixture(scope="module")
def client(stage: PageStage) -> TestClient:
    return stage.client()


class Links(HTMLParser):
    """Collects the links, the ids and the scripts of a page, and checks that it has no inline code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert "style" not in values, "the content security policy allows no inline style"
        assert not [name for name in values if name.startswith("on")]
        if tag == "a":
            self.links.append(values["href"] or "")
        if "id" in values:
            self.ids.append(values["id"] or "")
        if tag == "script":
            assert (values["src"] or "").startswith("/assets/")
            self.scripts += 1


def test_every_screen_is_reached_by_links_and_none_fails(stage: PageStage) -> None:
    client = stage.client(token="")  # with a token, rows need it
    waiting, seen = ["/"], set()
    kinds: dict[str, int] = {}
    while waiting:
        address = waiting.pop().partition("#")[0]
        path = address.partition("?")[0]
        if address in seen or not address.startswith("/") or kinds.get(path, 0) >= 6:
            continue
        seen.add(address)
        kinds[path] = kinds.get(path, 0) + 1
        response = client.get(address)
        assert response.status_code == 200, (address, response.text)
        page = Links(response.text)
        assert page.scripts == 1
        assert len(page.ids) == len(set(page.ids)), "an id is used twice"
        waiting += page.links
    screens = {
        "/",
        "/lineage",
        "/runs",
        "/run",
        "/table",
        "/views",
        "/view",
        "/cluster",
        "/futures",
        "/future",
        "/columns",
        "/rows",
        "/quarantine",
        "/view-columns",
        "/view-rows",
        "/changes",
        "/view-query",
    }
    assert screens <= set(kinds)


def test_hostile_names_and_errors_are_escaped_on_every_screen(client: TestClient) -> None:
    future = client.get("/api/v1/futures?state=failed").json()["items"][0]["id"]
    addresses = ["/", "/lineage", "/runs", "/views", "/cluster", "/futures", f"/future?id={future}"]
    addresses += ["/columns?name=orders", "/view-columns?name=totals", "/view?view=totals"]
    for address in addresses:
        text = client.get(address).text
        assert "<script>alert" not in text, address
    shown = unescape(client.get(f"/future?id={future}").text)
    assert f"ValueError: {HOSTILE}" in shown
    for address in ("/table", "/view", "/run", "/nothing", "/futures"):
        response = client.get(
            address, params={"table": HOSTILE, "view": HOSTILE, "arc": HOSTILE, "lot": HOSTILE}
        )
        assert "<script>alert" not in response.text, address


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/table?table=nothing", 404),
        ("/table", 400),
        ("/table?table=orders&limit=0", 400),
        ("/table?table=orders&limit=x", 400),
        ("/table?table=clicks&before=zzz", 400),
        ("/run?arc=arc:shop/clean&lot=nothing", 404),
        ("/run?arc=x&lot=y&generation=-1", 400),
        ("/view?view=nothing", 404),
        ("/view?view=totals&before=abc", 400),
        ("/future?id=zz", 400),
        ("/future?id=" + "0" * 32, 404),
        ("/futures?before=abc", 400),
        ("/runs?after=xyz", 400),
        ("/?after=99999", 200),
        ("/nothing", 404),
        ("/table?table=" + "x" * 1024, 404),
        ("/assets/../pages.py", 404),
        ("/assets/page.css", 200),
    ],
)
def test_an_address_that_is_wrong_is_an_error_page_with_a_status(
    client: TestClient, address: str, status: int
) -> None:
    assert client.get(address).status_code == status


def test_the_overview_shows_problems_with_their_root_cause_and_the_grid(client: TestClient) -> None:
    text = unescape(client.get("/").text)
    assert "ValueError: 4 is bad" in text
    assert "3 records do not fit the table" in text
    assert "1 problem" not in text
    assert re.search(r'class="cell s-partial"[^>]*title="A00000000000000005: partial', text)
    assert 'class="cell s-running"' in text
    assert 'class="cell s-complete q"' in text


def test_a_view_shows_its_query_its_circuit_and_its_steps(client: TestClient) -> None:
    raw = client.get("/view-query?name=totals").text
    assert "<script>alert" not in raw
    text = unescape(raw)
    assert f"SELECT '{HOSTILE}' AS name FROM orders" in text
    assert 'class="tag r-native">native' in text
    text = unescape(client.get("/view?view=totals").text)
    assert "Rows changed per step" in text
    assert "shop.py:12" in text
    table = unescape(client.get("/table?table=orders").text)
    assert "landing/*.json" in table


def test_a_view_shows_how_many_rows_fail_each_of_its_checks(client: TestClient) -> None:
    raw = client.get("/view?view=totals").text
    assert "<script>alert" not in raw
    text = " ".join(unescape(raw).split())
    assert f'<code>{HOSTILE}</code></td><td><span class="tag r-full">stop the view' in text
    assert "<strong>1,234</strong>" in text
    assert 'are counted</span></td><td class="n">0</td>' in text
    assert "view=totals_failures" in text
    checks = client.get("/api/v1/view?name=totals").json()["checks"]
    assert [(check["on_fail"], check["failing"]) for check in checks] == [("fail", 1234), ("warn", 0)]


def test_a_view_that_is_set_aside_says_why() -> None:
    stage = PageStage().fill()
    row = FailedView(view="totals", code="c", error=f"it raises {HOSTILE}", since=3, current=2)
    keys = stage.steps.keys
    stage.store.run(lambda tx: failed_views.store(tx, keys, "shop", "totals", {}, {"totals": row}))
    client = stage.client()
    text = client.get("/view?view=totals").text
    assert f"set aside at step 3: it raises {HOSTILE}" in unescape(text)
    assert "<script>alert" not in text
    assert ">set aside<" in client.get("/views").text


def test_a_table_says_how_long_its_lots_are_kept(stage: PageStage, client: TestClient) -> None:
    assert "for ever" in client.get("/table?table=rates").text
    policy = {stage.rates: expiry.KeepPolicy(30 * 86_400 * SECOND_US)}
    stage.store.run(lambda tx: expiry.set_keep(tx, stage.lots, "shop", policy))
    assert client.get("/api/v1/table?name=rates").json()["keep_s"] == 30 * 86_400
    assert "30 d" in client.get("/table?table=rates").text


def test_an_empty_cluster_has_empty_states_instead_of_errors() -> None:
    client = PageStage().client()
    for address in ("/", "/lineage", "/runs", "/views", "/cluster", "/futures"):
        response = client.get(address)
        assert response.status_code == 200
        assert "Traceback" not in response.text
    assert "No futures" in client.get("/futures").text


def test_lots_are_paged_newest_first_and_each_is_shown_once(client: TestClient) -> None:
    lots: list[str] = []
    before = ""
    for _ in range(20):
        page = client.get("/api/v1/lots", params={"table": "cleaned", "before": before, "limit": 3}).json()
        lots += [item["lot"] for item in page["items"]]
        before = page["next"]
        if not before:
            break
    assert lots == sorted(lots, reverse=True)
    assert len(lots) == len(set(lots)) == 12


def test_intervals_that_are_overdue_are_in_the_grid_but_not_without_limit(stage: PageStage) -> None:
    """The clock is years after the last interval: the grid shows a few overdue intervals, not all."""
    stage.clock.advance(3600)
    catalog = stage.site().reader.catalog()
    row = grid.LotGrid(stage.site().reader, catalog).row(stage.clicks)
    states = {cell.lot: cell.state for cell in row.cells}
    assert states["20230131PT5M002"] == "complete"
    assert states["20230131PT5M003"] == "absent"
    assert len(row.cells) <= 5 + grid.AHEAD


def test_a_gap_names_the_table_where_it_began(client: TestClient) -> None:
    cells = client.get("/api/v1/lots?table=summed").json()["items"]
    partial = next(cell for cell in cells if cell["lot"] == "A00000000000000005")
    assert (partial["state"], partial["cause"]) == ("absent", "cleaned")


def test_the_log_of_a_run_and_the_events_are_shown_and_filtered(client: TestClient) -> None:
    run = unescape(client.get("/run?arc=arc:shop/clean&lot=A00000000000000005").text)
    assert "begins in 2 parts" in run
    assert "runner-2" in client.get("/events").text
    failures = client.get("/events?severity=error").text
    assert "runner-2" not in failures
    assert "1 part failed" in failures
    assert "No event matches" in client.get("/events?text=nothing-like-this").text


def test_a_view_shows_the_rows_and_the_time_of_each_kernel(client: TestClient) -> None:
    page = client.get("/view-query?name=totals").text
    assert "rows in" in page
    assert "Step 3 of the group totals: plan 20 ms" in page
    assert re.search(r'<td class="n">120</td><td class="n">8</td><td class="n">50 ms</td>', page)


def test_a_table_shows_its_checks_and_a_stale_one_needs_attention(client: TestClient) -> None:
    page = unescape(client.get("/table?table=cleaned").text)
    assert "not true: amount > 0" in page
    assert "go to quarantine" in page
    assert "fresh within" in page or "stale" in page


@pytest.mark.rule("STO-14")
def test_a_secret_in_the_message_of_an_event_is_on_no_screen_in_no_answer_and_no_metric() -> None:
    secret = "planted-s3cret"
    stage = PageStage().fill()
    log = EventLog(stage.store, ObservationKeys("c"), pipeline="shop", node="n", clock=stage.clock)
    why = f"cannot connect to postgresql://ann:{secret}@db/shop?sslpassword={secret}"
    log(RunFailed(name="arc:shop/clean", code="arc", message=why, backoff_s=1.0, failures=1))
    log.flush()
    client = stage.client()
    addresses = ["/", "/events", "/events?severity=error", "/runs", "/cluster", "/metrics", "/api/v1/events"]
    texts = [client.get(address).text for address in addresses]
    assert "postgresql://ann:***@db" in unescape(texts[1])
    assert not [address for address, text in zip(addresses, texts, strict=True) if secret in text]


def test_a_view_with_an_operator_that_spark_recomputes_is_not_called_incremental(
    stage: PageStage, client: TestClient
) -> None:
    key = DescriptionKeys("c").view["shop", "totals"]
    before = stage.store.run(lambda tx: tx.get(key))
    assert before is not None
    assert '<span class="tag ok">incremental</span>' in client.get("/view?view=totals").text

    described = msgspec.msgpack.decode(before, type=ViewDescription)
    ranked = OperatorDescription("c3", "window", "full", "rank()", "it has no key", ("a1",))
    changed = msgspec.structs.replace(described, operators=(ranked, *described.operators))
    stage.store.run(lambda tx: tx.set(key, msgspec.msgpack.encode(changed)))
    try:
        assert '<span class="tag warn">partly incremental</span>' in client.get("/view?view=totals").text
        assert '<span class="tag warn">partly incrementally</span>' in client.get("/views").text
        assert client.get("/api/v1/view?name=totals").json()["cuts"] == 1
    finally:
        stage.store.run(lambda tx: tx.set(key, before))
