"""Where a machine keeps run files near the kernels: a folder of this user, this machine and this boot.

It is found on the machine that computes, not on the one that plans: an executor has its own. What an earlier
boot left is removed; what another machine keeps in the same home is not.
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
"""A folder to keep run files in, or `off`."""

LIMIT_BYTES = 16 * 1024**3
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class CacheFolder(NamedTuple):
    """A folder, and how large it may become."""

    folder: Path
    limit_bytes: int


def cache_folder(setting: str = "") -> CacheFolder | None:
    """Where to keep run files; None to keep none: when that is wished, or there is no folder to be had.

    - setting: a folder, or `off`; empty: what `TIDEMILL_CACHE` says, else the user's own folder for caches.
    """
    wished = setting or os.environ.get(ENVIRONMENT, "")
    boot = _boot()
    if wished.lower() == "off" or not boot:
        return None
    machine = "".join(c if c.isalnum() or c == "-" else "_" for c in platform.node()) or "here"
    for parent in [Path(wished)] if wished else _usual():
        folder = parent / f"traces-{machine}-{boot}"
        if _is_ours(parent) and _is_ours(folder):
            _remove_earlier(folder, f"traces-{machine}-")
            return CacheFolder(folder, _limit(folder))
    return None


def _usual() -> list[Path]:
    """The user's folder for caches; where there is no home, one among the temporary files."""
    found = []
    given = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home
        found.append((Path(given) if given else Path.home() / ".cache") / "tidemill")
    return [*found, Path(tempfile.gettempdir()) / f"tidemill-{os.getuid()}"]


def _is_ours(folder: Path) -> bool:
    """Make a folder; False unless it is this user's own: what others could write is not read as ours."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError:
        return False
    return facts.st_uid == os.getuid() and not facts.st_mode & stat.S_IWOTH and os.access(folder, os.W_OK)


def _remove_earlier(folder: Path, start: str) -> None:
    with contextlib.suppress(OSError):
        for other in folder.parent.iterdir():
            if other.name.startswith(start) and other != folder:
                shutil.rmtree(other, ignore_errors=True)


def _limit(folder: Path) -> int:
    """At most half of what is free, with what lies here already."""
    held = 0
    with contextlib.suppress(OSError):
        held = sum(one.stat().st_size for one in os.scandir(folder))
    free = LIMIT_BYTES
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
    return min(LIMIT_BYTES, held + free // 2)


def _boot() -> str:
    """What names this start of the machine; empty where nothing does."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return ""
