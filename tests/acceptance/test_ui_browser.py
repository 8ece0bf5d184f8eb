"""The page in a real browser: every screen by clicks, every action, at three window sizes, light and dark.

Skipped where no Chromium is installed (Debian: `apt-get install chromium`). Set `TIDEMILL_PICTURES` to a
folder to keep the screenshots.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import tidemill as tm
from tests.servers.browser import AXE, CHROMIUM, Browser
from tests.unit.page_stage import TOKEN, PageStage
from tidemill.clock import SYSTEM
from tidemill.objects import open_objects
from tidemill.store import open_store
from tidemill.ui.client import PageClient
from tidemill.ui.model.answers import Action
from tidemill.ui.server import PageOptions, in_background, make_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
SIZES = {"phone": (390, 844), "laptop": (1280, 900), "wide": (1920, 1080)}
PATH = {
    "overview": [],
    "lineage": ["nav a[href='/lineage']"],
    "table": ["a[href='/table?table=cleaned']"],
    "columns": ["a[href='/table?table=cleaned']", "nav.tabs a[href^='/columns']"],
    "runs": ["nav a[href='/runs']"],
    "run": ["nav a[href='/runs']", "a[href^='/run?']"],
    "views": ["nav a[href='/views']"],
    "view": ["nav a[href='/views']", "a[href*='view=totals']"],
    "query": ["nav a[href='/views']", "a[href*='view=totals']", "nav.tabs a[href^='/view-query']"],
    "view-columns": ["nav a[href='/views']", "a[href*='view=totals']", "nav.tabs a[href^='/view-columns']"],
    "cluster": ["nav a[href='/cluster']"],
    "futures": ["nav a[href='/futures']"],
    "future": ["nav a[href='/futures']", "a[href^='/future?']"],
    "events": ["nav a[href='/events']"],
}
"""The clicks from the overview to each screen."""


@pytest.fixture(scope="module")
def stage() -> PageStage:
    stage = PageStage().fill()
    stage.quarantine(stage.orders, "A00000000000000001", 3)
    return stage


@pytest.fixture(scope="module")
def url(stage: PageStage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    token = tmp_path_factory.mktemp("page") / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    options = PageOptions(port=0, token_file=str(token))
    with in_background(server := make_server(stage.store, "c", options, clock=stage.clock)):
        yield server.url


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        *((size, False) for size in SIZES),
        ("laptop", True),
        pytest.param("phone", True, marks=pytest.mark.crash),
        pytest.param("wide", True, marks=pytest.mark.crash),
    ],
)
def test_every_screen_is_reached_by_clicks_and_fits(
    browser: Browser, url: str, size: str, dark: bool
) -> None:
    browser.resize(*SIZES[size], dark=dark)
    browser.errors.clear()
    problems: list[Any] = []
    for screen, clicks in PATH.items():
        browser.open(f"{url}/")
        for selector in clicks:
            browser.click(selector)
        assert browser.run("document.querySelector('h1') !== null"), screen
        wider = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{screen} is {wider} pixels wider than the window"
        if AXE.exists():
            problems += [(screen, problem) for problem in browser.serious_problems()]
        if folder := os.environ.get("TIDEMILL_PICTURES"):
            browser.screenshot(Path(folder) / f"{screen}-{size}-{'dark' if dark else 'light'}.png")
    assert browser.errors == []
    assert problems == []


def test_the_arrow_keys_move_between_lots(browser: Browser, url: str) -> None:
    browser.open(f"{url}/")
    last = browser.run("document.querySelector('[data-cells] a[tabindex=\"0\"]').dataset.lot")
    moved = browser.run(
        "(() => { const cell = document.querySelector('[data-cells] a[tabindex=\"0\"]'); cell.focus();"
        " cell.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}));"
        " return document.activeElement.dataset.lot; })()"
    )
    assert moved
    assert moved != last


def test_an_action_needs_the_token_and_then_works(browser: Browser, url: str) -> None:
    """Signs in with the keyboard, and requests a failed future again. Ends with a session."""
    browser.resize(*SIZES["laptop"])
    browser.open(f"{url}/futures?state=failed")
    browser.click("a[href^='/future?']")
    browser.click(".actions a.button[href='/login'], a.button[href='/login']")
    browser.type("input[name=token]", TOKEN)
    browser.click("main form button")
    assert "signed in" in browser.run("document.body.textContent")
    browser.open(f"{url}/futures?state=failed")
    browser.click("a[href^='/future?']")
    browser.click("main form[action='/actions'] button")
    assert browser.run("document.querySelector('.notice.good') !== null")
    assert browser.errors == []


# --- every action, on a real pipeline


class Acting:
    """A pipeline with a failed lot and quarantined records, and the server of its page.

    The page's own declaration accepts larger amounts: so one of the quarantined records fits by now.
    """

    def __init__(self, home: Path, spark: Any) -> None:
        self.home = home
        self.spark = spark
        with self.declare(most=1_000) as shop:
            for rows in ([(1, 5)], [(2, 2_000), (3, 7)], [(4, 9_999_999), (13, 5)]):
                shop["orders"].append(rows)
                shop.run()
            self.store, self.cluster = shop.context.place.store, shop.context.place.cluster

    def declare(self, most: int = 5_000) -> tm.Pipeline:
        shop = tm.Pipeline("shop", home=self.home, spark=self.spark)
        check = tm.expect(f"amount < {most}", name="amount", on_fail="drop")
        orders = shop.dataset("orders", "id BIGINT, amount BIGINT", checks=[check])

        @shop.arc(reads=orders, writes="cleaned", retries=0)
        def clean(df: Any) -> Any:
            if df.where("id = 13").count():
                raise ValueError("13 is not a number that we like")
            return df

        shop.view("totals", "SELECT count(*) AS n FROM cleaned")
        return shop


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Acting:
    return Acting(tmp_path_factory.mktemp("acting"), spark)


def test_each_action_works_in_the_browser_with_the_token_alone(
    browser: Browser, acting: Acting, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    browser.resize(*SIZES["laptop"])
    browser.errors.clear()
    with open_store(acting.store) as store:
        options = PageOptions(port=0, token_file=str(token))
        server = make_server(
            store,
            acting.cluster,
            options,
            load=acting.declare,
            open_objects=lambda: open_objects(f"file://{acting.home / 'objects'}", clock=SYSTEM),
        )
        with in_background(server):
            _try_every_action(browser, server.url, PageClient(server.url, token=TOKEN))


def _try_every_action(browser: Browser, url: str, client: PageClient) -> None:
    table, quarantine, lots = "/table?table=cleaned", "/quarantine?table=orders", client.lots("cleaned").items
    states = {cell.lot: cell.state for cell in lots}
    assert sorted(states.values()) == ["complete", "complete", "partial"]
    held = [cell.lot for cell in client.lots("orders").items if cell.quarantined]
    assert len(held) == 2

    def post(path: str, body: str, **headers: str) -> int:
        call = f"fetch('{path}', {{method: 'POST', body: {body!r}, headers: {headers}}}).then(r => r.status)"
        return int(browser.run(call))

    # Without the token there is no button, and no action is carried out.
    browser.open(url + table)
    assert browser.run("document.querySelectorAll('form[action=\"/actions\"]').length") == 0
    for name in get_args(Action.__annotations__["name"]):
        form = f"name={name}&pipeline=shop&target=clean&form_token=guessed"
        assert post("/actions", form, **{"content-type": "application/x-www-form-urlencoded"}) == 403, name
        assert post("/api/v1/actions", f'{{"name": "{name}", "target": "clean"}}') == 401, name
    browser.open(url + quarantine)
    assert "who have the token" in browser.run("document.body.textContent")
    browser.errors.clear()  # the refusals

    browser.open(f"{url}/login")
    browser.type("input[name=token]", TOKEN)
    browser.click("main form button")

    def act(path: str, selector: str, expected: str) -> None:
        browser.open(url + path)
        browser.click(selector)
        assert not browser.run("(document.querySelector('.notice.bad') || {}).textContent"), path
        assert expected in browser.run("document.querySelector('.notice.good').textContent")

    def button(name: str, *, lot: str = "") -> str:
        return f"form[action='/actions']:has(input[value={name!r}]):has(input[value={lot!r}]) button"

    act(table, button("pause"), "clean is paused")
    assert client.table("cleaned").trigger.state == "paused"  # type: ignore[union-attr]
    act("/", button("resume"), "clean is resumed")
    assert client.table("cleaned").trigger.state != "paused"  # type: ignore[union-attr]
    failed = next(lot for lot, state in states.items() if state == "partial")
    act("/runs", button("retry", lot=failed), "the next run retries 1 lot")
    act(table, button("replay", lot=min(states)), "runners will produce 1 lot")
    browser.open(url + table)
    for field in ("first", "last"):
        browser.type(f"input[name={field}]", sorted(states)[1])
    browser.click("button[value=replay]")
    assert "runners will produce 1 lot" in browser.run("document.querySelector('.notice.good').textContent")
    browser.open(url + table)
    browser.click("button[value=backfill]")
    assert browser.run("document.querySelector('.notice.good').textContent")
    act(quarantine, button("reingest", lot=min(held)), "added 1 record to orders")
    assert [record.lot for record in client.records("orders").items] == [max(held)]
    act(quarantine, button("discard", lot=max(held)), "discarded 1 record of orders")
    assert client.records("orders").records == 0
    browser.open(f"{url}/rows?table=orders")
    assert "2000" in browser.run("document.querySelector('table.data').textContent")
    assert browser.errors == []
