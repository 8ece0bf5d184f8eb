"""A real Chromium for tests, driven through the two pipes of its debugging protocol.

    with Browser(tmp_path) as browser:
        browser.resize(390, 844, dark=True)
        browser.open("http://127.0.0.1:8642/")
        browser.click("a[href='/runs']")

Chromium reads commands from file descriptor 3 and writes answers to 4: JSON, each followed by a zero byte.
"""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).parents[2] / ".cache" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class PageFailed(AssertionError):
    """The script of the page failed, or an expression of the test."""


class Browser:
    """One Chromium with one tab.

    `errors` has what the console logged as an error, and each exception that no script caught.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._buffer = b""
        self._session = ""
        self._loaded = False
        self.errors: list[str] = []

    def __enter__(self) -> "Browser":
        (commands, self._to), (self._from, answers) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (commands, answers)]

        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={self._folder / 'profile'}", "about:blank"]
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, pipe, 3 + number) for number, pipe in enumerate(high)]
        self._pid = os.posix_spawn(str(CHROMIUM), command, os.environ, file_actions=[*quiet, *pipes])
        for descriptor in (commands, answers, *high):
            os.close(descriptor)
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = ""
        with contextlib.suppress(OSError, PageFailed):
            self._send("Browser.close")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._to)
        os.close(self._from)

    # --- what a test does

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and whether the user prefers dark pages."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Open an address, and wait until it has loaded."""
        self._loaded = False
        self._send("Page.navigate", url=url)
        self._wait_loaded()

    def click(self, selector: str) -> None:
        """Click the first element that matches, and wait until the screen that it leads to has loaded."""
        self._loaded = False
        self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " if (!e) throw new Error('no such element'); e.scrollIntoView(); e.click(); })()"
        )
        self._wait_loaded()

    def type(self, selector: str, text: str) -> None:
        """Type a text into a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self._send("Input.insertText", text=text)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; wait for it if it is a promise."""
        answer = self._send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            described = answer["exceptionDetails"].get("exception", {}).get("description", "")
            raise PageFailed(f"{expression[:200]}: {described or answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole screen."""
        data = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def serious_problems(self) -> list[str]:
        """Return what axe calls serious or critical on this screen."""
        self.run(f"{AXE.read_text(encoding='utf-8')}; undefined")
        violations = self.run("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
        return [
            f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]} {rule['nodes'][0]['any'][:1]}"
            for rule in violations
            if rule["impact"] in ("serious", "critical")
        ]

    # --- the protocol

    def _send(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise PageFailed(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _wait_loaded(self) -> None:
        while not self._loaded:
            self._receive()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise PageFailed("Chromium has ended")
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"].get("text")))
            case "Runtime.consoleAPICalled" if message["params"]["type"] in ("error", "assert"):
                self.errors.append(str(message["params"]["args"]))
            case "Log.entryAdded" if message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])
        return message
