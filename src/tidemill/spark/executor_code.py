"""Bring Tidemill's code to Spark executors that do not have it, as one archive (DBSP-44).

Tasks of a step import Tidemill. Executors on other machines, and the Python of a Spark Connect server, may
not have it, or have another release. When a session is opened, one small task looks for it. If it is missing
or differs, the driver sends an archive with `addArtifact`, which Spark unpacks on each executor into a
folder that its Python workers import from.

The archive contains this package, and the compiled packages that tasks need besides pyarrow, numpy and
pandas. These are for the Python of the driver; Spark requires the same Python on executors anyway.

`tidemill pack` writes the same archive, for clusters that do not allow artifacts.
"""

import ast
import atexit
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tidemill.errors import ExecutorCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER: Final = "tidemill"
"""The folder into which Spark must unpack the archive: `archive.zip#tidemill`."""

VENDORED: Final = ("cloudpickle", "msgspec", "obstore")
"""The packages that tasks import besides those of Spark."""

_PACKAGE: Final = Path(__file__).parents[1]
_RELEASE: Final = '^__version__ = "(.*)"'
_ENDINGS: Final = (".py", ".so", ".pyd", ".properties")
_OMITTED: Final = ("__pycache__", "ui", "cli")
_PRELUDE: Final = """
import sys as _sys

_sys.path.append(__file__.rpartition("__init__")[0] + "_vendored")
"""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class CodeArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive: its file, and what it contains.

    - python: the version of Python that its compiled packages need.
    - packages: the other packages in it, with their releases.
    """

    path: str
    size: int
    digest: str
    release: str
    python: str
    packages: dict[str, str]


def pack(path: Path) -> CodeArchive:
    """Write the archive; the same code gives the same bytes."""
    packages: dict[str, str] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in _files(_PACKAGE):
            name = file.relative_to(_PACKAGE).as_posix()
            _add(archive, name, _initial(file) if name == "__init__.py" else file.read_bytes())
        for package in VENDORED:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                packages[package] = importlib.metadata.version(package)
                folder = _folder_of(package)
                for file in _files(folder):
                    _add(archive, f"_vendored/{package}/{file.relative_to(folder)}", file.read_bytes())
    body = path.read_bytes()
    return CodeArchive(
        path=str(path),
        size=len(body),
        digest=hashlib.sha256(body).hexdigest(),
        release=own_release(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        packages=packages,
    )


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.suffix in _ENDINGS and parts[0] not in _OMITTED and "__pycache__" not in parts:
            yield file


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _initial(file: Path) -> bytes:
    """Return the package's first module, which also finds the packages in the archive."""
    text = file.read_text()
    first = ast.parse(text).body[0]
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: first.end_lineno], _PRELUDE, *lines[first.end_lineno :]]).encode()


def _add(archive: zipfile.ZipFile, name: str, body: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, body)


# --- sessions


def own_release() -> str:
    """Return the release of this package, as a task finds it."""
    match = re.search(_RELEASE, (_PACKAGE / "__init__.py").read_text(), re.MULTILINE)
    return match.group(1) if match else ""


def ship(session: "SparkSession") -> bool:
    """Let the executors of a session import this release; return whether the archive was sent.

    Raises `ExecutorCode` if they still cannot import it.
    """
    if release_on_executors(session) == own_release():
        return False
    folder = Path(tempfile.mkdtemp(prefix="tidemill-pack-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # Spark reads the file while it runs
    packed = pack(folder / "tidemill.zip")
    named = folder / f"tidemill-{packed.digest[:16]}.zip"
    (folder / "tidemill.zip").rename(named)
    session.addArtifacts(f"{named}#{FOLDER}", archive=True)
    release = release_on_executors(session)
    if release != own_release():
        raise ExecutorCode(
            f"the executors of this Spark session import Tidemill {release or '(nothing)'} instead of"
            f" {own_release()}"
        )
    return True


def release_on_executors(session: "SparkSession") -> str:
    """Return the release of Tidemill that a task of this session would import; empty if there is none.

    The function is sent as text, because executors without Tidemill cannot import this module.
    """
    names: dict[str, Any] = {}
    exec(_PROBE, names)  # noqa: S102 - a constant: a function that pickle sends by value
    frame = session.range(1, numPartitions=1).mapInArrow(names["probe"], "release STRING")
    row = frame.first()
    return str(row[0]) if row is not None else ""


_PROBE: Final = """
def probe(batches):
    import importlib.util
    import re

    import pyarrow

    for _ in batches:
        pass
    spec = importlib.util.find_spec("tidemill")
    release = ""
    if spec is not None and spec.origin:
        with open(spec.origin, encoding="utf-8") as file:
            match = re.search('^__version__ = "(.*)"', file.read(), re.MULTILINE)
        release = match.group(1) if match else ""
    yield pyarrow.RecordBatch.from_arrays([pyarrow.array([release])], names=["release"])
"""
