"""Copies of a stored home, and the commands that read it without Spark."""

import functools
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.formats import history
from tests.formats import home as stored
from tidemill.cli import main
from tidemill.errors import JavaMissing
from tidemill.pipeline.context import PipelineContext
from tidemill.store.sqlite import SqliteStore

PIPELINE = """
from pathlib import Path
from tests.formats import pipeline

frozen = pipeline.declare(Path(__file__).parent, None)
"""
_NEEDED = re.compile(r"home/(store\.db|cluster\.key)$|/manifest[^/]*\.json$|quarantine")
"""What commands read without Spark: the store, the manifests, and the records in quarantine."""
TABLES = ("sales", "stock", "arrivals", "rescued", "daily", "cleaned", "by_region", "both")
COMMANDS: Sequence[Sequence[str]] = (
    ("status",),
    ("ls",),
    *(("lots", table) for table in TABLES),
    *(("lots", table, "--list", "--json") for table in TABLES),
    ("gaps",),
    ("gaps", "--json"),
    ("quarantine",),
    ("quarantine", "show", "arrivals"),
    ("quarantine", "export", "arrivals", "exported.jsonl"),
    ("quarantine", "discard", "arrivals", "A00000000000000001"),
    ("triggers",),
    ("triggers", "retry", "--dead"),
    ("nodes", "--home", "home"),
    ("futures", "--home", "home"),
    ("clock",),
    ("clock", "--rewind", "daily"),
    ("pause", "clean"),
    ("resume", "nightly"),
    ("retry", "halve"),
    ("replay", "cleaned", "--dry-run", "--from", "A00000000000000001", "--to", "A00000000000000009"),
    ("backfill", "both", "--from", "20260101", "--to", "20260110"),
    ("compact", "sales"),
    ("plan",),
    ("explain", "by_region"),
    ("query", "SELECT 1"),
)


@functools.cache
def template() -> Path:
    """Unpack the home once. Forked processes copy it."""
    folder = tempfile.TemporaryDirectory(prefix="tidemill-fuzz-home-")
    _folders.append(folder)
    root = Path(folder.name)
    with tarfile.open(stored.ARCHIVE) as tar:
        tar.extractall(root, [member for member in tar if _NEEDED.search(member.name)], filter="data")
    (root / "home" / "cluster.key").chmod(0o600)
    SqliteStore(root / "home" / "store.db", adopt=True, clock=stored.clock_of(history.STEPS)).close()
    (root / "frozen.py").write_text(PIPELINE)
    return root


_folders: list[tempfile.TemporaryDirectory[str]] = []


@contextmanager
def copied(*, objects: bool = False) -> Iterator[Path]:
    """Copy the home and make its folder the current one.

    - objects: copy the objects of the quarantine, and no others; otherwise the copy shares all objects.
    """
    original = template()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "home").mkdir()
        for file in ("frozen.py", "home/store.db", "home/cluster.key"):
            shutil.copy2(original / file, root / file)
        source = original / "home" / "objects"
        if objects:
            for folder_of_quarantine in source.glob("*/name=*quarantine*"):
                target = root / "home" / "objects" / folder_of_quarantine.relative_to(source)
                shutil.copytree(folder_of_quarantine, target)
        else:
            (root / "home" / "objects").symlink_to(source)
        os.chdir(root)
        try:
            yield root
        finally:
            os.chdir("/")


def run(command: Sequence[str], *, usage: bool = False) -> None:
    """Run a command. It succeeds, or ends with a typed error; anything else raises.

    - usage: the arguments may be anything, and name their pipeline themselves, or not.
    """
    os.environ["TIDEMILL_DEBUG"] = "1"  # an unexpected error raises
    os.environ["COLUMNS"] = "200"
    PipelineContext.spark = _no_spark  # type: ignore[method-assign, assignment]
    in_pipeline = "--home" not in command and not (usage and ("-f" in command or len(command) % 3 == 0))
    with Path(os.devnull).open("w") as nothing:
        kept = os.dup(1)
        os.dup2(nothing.fileno(), 1)
        try:
            code = main([*command, *(("-f", "frozen.py:frozen") if in_pipeline else ())])
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    assert code in (0, 1, 2), f"exit code {code}"


def _no_spark(*_: object) -> object:
    raise JavaMissing("this machine has no Java")
