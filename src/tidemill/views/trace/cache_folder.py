"""The folder in which a machine caches run files: one for each user, machine and boot.

Every process uses the folder of the machine it runs on, so Spark executors have their own folders. Folders of
earlier boots are removed. Folders of other machines that share the same home directory are kept.
"""

import contextlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT = "TIDEMILL_CACHE"
"""The environment variable that sets the cache folder; `off` disables the cache."""

LIMIT_BYTES = 16 * 1024**3
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class CacheFolder(NamedTuple):
    """A folder, and its maximum size."""

    folder: Path
    limit_bytes: int


def cache_folder(setting: str = "") -> CacheFolder | None:
    """Return the folder for cached run files; None if the cache is off or no folder is usable.

    - setting: a folder or `off`. If it is empty, `TIDEMILL_CACHE` is used; if that is not set, the user's
      cache folder.
    """
    configured = setting or os.environ.get(ENVIRONMENT, "")
    boot = _boot_id()
    if configured.lower() == "off" or not boot:
        return None
    machine = "".join(c if c.isalnum() or c == "-" else "_" for c in platform.node()) or "here"
    for parent in [Path(configured)] if configured else _default_parents():
        folder = parent / f"traces-{machine}-{boot}"
        if _create_private(parent) and _create_private(folder):
            _remove_earlier(folder, f"traces-{machine}-")
            return CacheFolder(folder, _limit(folder))
    return None


def _default_parents() -> list[Path]:
    """Return the user's cache folder, if there is a home, and then a folder for temporary files."""
    parents = []
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home
        parents.append((Path(xdg) if xdg else Path.home() / ".cache") / "tidemill")
    return [*parents, Path(tempfile.gettempdir()) / f"tidemill-{os.getuid()}"]


def _create_private(folder: Path) -> bool:
    """Create a folder; return False if other users can write to it, because the files are trusted."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError:
        return False
    return facts.st_uid == os.getuid() and not facts.st_mode & stat.S_IWOTH and os.access(folder, os.W_OK)


def _remove_earlier(folder: Path, prefix: str) -> None:
    with contextlib.suppress(OSError):
        for other in folder.parent.iterdir():
            if other.name.startswith(prefix) and other != folder:
                shutil.rmtree(other, ignore_errors=True)


def _limit(folder: Path) -> int:
    """Return how large the folder may become: at most its present size plus half of the free space."""
    used = 0
    with contextlib.suppress(OSError):
        used = sum(file.stat().st_size for file in os.scandir(folder))
    free = LIMIT_BYTES
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
    return min(LIMIT_BYTES, used + free // 2)


def _boot_id() -> str:
    """Return an id of this boot of the machine; empty if the system has none."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            process = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
            return process.stdout.strip()
    return ""
