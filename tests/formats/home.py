"""The frozen home as files: an archive beside this module, and what was recorded of it when it was made.

`home-1.tar.xz` holds the home and the folders that its sources read. `home-1.json` holds what the release
that built it read from it, and what one more step gave. The cluster key in the archive is for tests only.
"""

import json
import random
import re
import sqlite3
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import tidemill as tm
from tests.formats import history, pipeline, reading
from tests.leases import LongLeaseClock
from tidemill.clock import SYSTEM, Clock
from tidemill.events import Event
from tidemill.futures.home import CLUSTER
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.store import Tx
from tidemill.store.sqlite import SqliteStore
from tidemill.store.sqlite.location import MachineId
from tidemill.views.steps.events import StepCommitted, StepTimed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ARCHIVE = HERE / "home-1.tar.xz"
RECORDED = HERE / "home-1.json"
ELSEWHERE = MachineId("tests", "tests")
"""The machine that the home says it is from; a test adopts it."""

Recorded = dict[str, Any]


def clock_of(step: int) -> Clock:
    """A clock at the time of a step: a day later than the step before, and two hours of store time."""
    begin = history.BEGIN.timestamp() + step * history.DAY_S
    return LongLeaseClock(SYSTEM, wall_s=begin - SYSTEM.wall(), monotonic_s=7200.0 * step)


def opened(root: Path, spark: "SparkSession | None", step: int, **options: Any) -> tm.Pipeline:
    """The pipeline over an unpacked home, at the time of a step."""
    return pipeline.declare(root, spark, clock=clock_of(step), chance=random.Random(step), **options)


# --- packing


def leave(root: Path) -> None:
    """Make the home one of another machine, without deleted rows, and without paths of this machine."""
    store = root / "home" / "store.db"
    with SqliteStore(store, machine=ELSEWHERE, adopt=True, clock=clock_of(history.STEPS)) as opened:
        opened.run(_blot_paths)
    connection = sqlite3.connect(store)
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _blot_paths(tx: Tx) -> None:
    """Cut the folders of this machine out of stored tracebacks."""
    for row in tx.range(*FutureKeys(CLUSTER).error.all()):
        failure = rows.decode_failure(row.value)
        traceback = re.sub(r'File ".*/(src|site-packages|tests|lib)/', r'File "\1/', failure.traceback)
        tx.set(row.key, rows.encode(msgspec.structs.replace(failure, traceback=traceback)))


def pack(root: Path, archive: Path = ARCHIVE) -> None:
    """Write the archive. Owners and modes are not this machine's."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if "/store.db-" in member.name or "/.tidemill" in member.name:
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        return member

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for folder in sorted(root.iterdir()):
            tar.add(folder, folder.name, filter=plain)


def unpack(root: Path, archive: Path = ARCHIVE) -> None:
    """The home in a folder, adopted by this machine."""
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")
    (root / "home" / "cluster.key").chmod(0o600)
    SqliteStore(root / "home" / "store.db", adopt=True, clock=clock_of(history.STEPS)).close()


def recorded() -> Recorded:
    """What was recorded when the home was made."""
    loaded: Recorded = json.loads(RECORDED.read_text())
    return loaded


# --- looking


def observed(shown: tm.Pipeline, *, tables: bool = True) -> Recorded:
    """What can be read out of a home, as it is recorded; without `tables`, all but the rows of its tables."""
    plan = shown.plan()
    names = [*pipeline.DATASETS, *pipeline.ARC_TABLES, *shown.quarantines, *shown.views]
    site = shown.context
    return {
        "plan": {f"{stage['what']} {stage['name']}": stage["status"] for stage in plan.describe()},
        "positions": {name: shown[name].position for name in names},
        **({"tables": reading.tables(shown, names)} if tables else {}),
        "retired": reading.frame_digests({name: table.df() for name, table in shown.retired().items()}),
        "traces": {
            group.spec.name: reading.traces(
                site.objects,
                reading.version_of(shown, group.spec.name),
                reading.layouts(plan, shown, group.spec.name),
            )
            for group in plan.program.groups.values()
        },
    }


def stepped(shown: tm.Pipeline, root: Path, events: list[Event]) -> Recorded:
    """The same after a fixed change of every dataset and one more step, with what that published."""
    keyed = {name for name, table in shown.datasets.items() if table.dataset.key}
    names = [*(name for name in pipeline.DATASETS if name not in keyed), *pipeline.ARC_TABLES]
    before = {name: shown[name].position for name in names}
    history.write(shown, root, history.STEPS)
    report = shown.run(emit=events.append)
    return {
        **observed(shown),
        "ok": report.ok,
        "changes": reading.changes(shown, before),
        "steps": {event.group: sorted(event.views) for event in events if isinstance(event, StepCommitted)},
        "loaded": {
            event.group: event.loaded_traces
            for event in events
            if isinstance(event, StepTimed) and event.load_s
        },
    }
