"""A pipeline's file in a folder, and `tidemill run` on it as a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from tests import shop
from tests.servers.process import wait_until
from tidemill.pipeline.pipeline import Pipeline
from tidemill.spark.sessions import SparkSettings
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

FILE = """
import json, os
from pathlib import Path
from tests import shop as declared
from tidemill.spark.sessions import SparkSettings

options = json.loads({options!r})
spark = SparkSettings(**json.loads({spark!r}))
declared.note(options["notes"], "imported")
shop = declared.declare(options.pop("home"), options.pop("landing"), spark, **options)
"""


class Place:
    """A folder with a pipeline in it: its file, what arrives, its home (or store and objects), and notes."""

    def __init__(self, folder: Path, spark: SparkSettings, *, store: str = "", **options: Any) -> None:
        self.folder = folder
        self.landing = folder / "landing"
        self.notes = folder / "notes"
        self.landing.mkdir(parents=True)
        self.notes.touch()
        self.options: dict[str, Any] = {
            "home": str(folder / "home"),
            "landing": str(self.landing),
            "notes": str(self.notes),
            "refresh": "full",
            **options,
        }
        if store:
            key = folder / "cluster.key"
            key.write_bytes(bytes(range(32)).hex().encode())
            key.chmod(0o600)
            objects = (folder / "objects").as_uri()
            (folder / "objects").mkdir()
            self.options |= {"home": None, "store": store, "objects": objects, "key_file": str(key)}
        text = FILE.format(options=json.dumps(self.options), spark=msgspec.json.encode(spark).decode())
        (folder / "shop.py").write_text(text)
        (folder / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')

    def declare(self, spark: "SparkSession | None" = None) -> Pipeline:
        """The same pipeline here: to be read, which needs no Spark."""
        return shop.declare(spark=spark, **self.options)

    def lines(self, word: str) -> list[str]:
        """Who noted it, one for each time."""
        return shop.noted(str(self.notes), word)

    def runners(self, word: str) -> Counter[str]:
        """The runners that noted it while they made parts, and how often."""
        return shop.runners(str(self.notes), word)


class Run:
    """One `tidemill run`."""

    def __init__(
        self,
        place: Place,
        *arguments: str,
        crash: str = "",
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            **({"TIDEMILL_CRASH": crash} if crash else {}),
            **(environment or {}),
        }
        self._log = place.folder / f"run-{len(list(place.folder.glob('run-*')))}.err"
        with self._log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.patient_cli", "run", "--json", *arguments],
                cwd=place.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def report(self) -> dict[str, Any]:
        """What it did, when it has ended by itself."""
        out, _ = self.process.communicate(timeout=STUCK_S)
        log = self.said()
        assert out, log
        report = json.loads(out.splitlines()[-1])
        assert (self.process.returncode == 0) == report.get("ok", False), (report, log)
        return dict(report)

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def until(self, ready: Any, what: str) -> None:
        """Wait for something while it runs."""
        wait_until(lambda: ready() or self.process.poll() is not None, timeout_s=STUCK_S, every_s=0.05)
        assert ready(), f"{what}: {self.process.poll()}\n{self.said()}"

    def drain(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=STUCK_S)
        return self.process.returncode

    def end(self) -> None:
        """Kill the process, whatever it is doing, and all that it started."""
        if self.process.poll() is None:
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for child in below:
                if child.is_running():
                    child.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:  # not ended before
            self.process.communicate()
