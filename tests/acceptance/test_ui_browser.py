"""The page in a real browser: every screen by clicks, every action, at three window sizes, light and dark.

Skipped where no Chromium is installed (Debian: `apt-get install chromium`). Set `TIDEMILL_PICTURES` to a
folder to keep the screenshots.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.browser import AXE, CHROMIUM, Browser
from tests.unit.page_stage import TOKEN, PageStage
from tidemill.ui.server import PageOptions, in_background, make_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
SIZES = {"phone": (390, 844), "laptop": (1280, 900), "wide": (1920, 1080)}
PATH = {
    "overview": [],
    "lineage": ["nav a[href='/lineage']"],
    "table": ["a[href='/table?table=cleaned']"],
    "runs": ["nav a[href='/runs']"],
    "run": ["nav a[href='/runs']", "a[href^='/run?']"],
    "views": ["nav a[href='/views']"],
    "view": ["nav a[href='/views']", "a[href*='view=totals']"],
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
