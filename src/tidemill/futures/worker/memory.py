"""How much memory there is, how much a task may take, and whether the kernel has killed somebody for it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/")
ROOM_BYTES = 512 * 1024**2
SLACK_BYTES = 32 * 1024**2


def total_bytes(root: Path = ROOT) -> int:
    """What this process may use at most: the machine's memory, or less if its control group has less."""
    amounts = [int(_field(root / "proc/meminfo", "MemTotal:")) * 1024]
    for folder in _groups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name)
            if text.isdigit():
                amounts.append(int(text))
    return min(amounts)


def kills(root: Path = ROOT) -> int:
    """How many processes the kernel has killed for want of memory, as far as we can see.

    It grows with every kill in our control group, or on the machine; so that a child that ended by SIGKILL
    while it grew has most likely run out of memory.
    """
    return int(_field(root / "proc/vmstat", "oom_kill")) + sum(
        int(_field(folder / name, "oom_kill"))
        for folder in _groups(root)
        for name in ("memory.events", "memory.oom_control")
    )


def _groups(root: Path) -> list[Path]:
    """The folders of our control group and those around it; in a container only the outermost is there."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):
            top = root / "sys/fs/cgroup" / ("memory" if kinds else "")
            found += [top / one.relative_to("/") for one in (Path(group), *Path(group).parents)]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _field(path: Path, name: str) -> str:
    for line in _text(path).splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[0] == name:
            return parts[1]
    return "0"


@contextmanager
def limited(ram: int) -> Iterator[None]:
    """Stop this process at far more than `ram` bytes: beyond that Python raises MemoryError; 0 for no limit.

    This is the second line, for what grows faster than the supervisor looks. It counts address space that is
    private and can be written (RLIMIT_DATA), of which threads and libraries reserve much that they never use;
    hence the room. Mapping another task's result, which is shared, costs nothing.
    """
    if not ram:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    now = int(_field(Path("/proc/self/status"), "VmData:")) * 1024
    wanted = now + 2 * ram + ROOM_BYTES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def used_bytes(pid: int | str = "self") -> int:
    """What a process has in memory that is its own: not what it has mapped of files and of others."""
    return int(_field(Path(f"/proc/{pid}/status"), "RssAnon:")) * 1024


def is_over(used: int, ram: int) -> bool:
    """Has a task that asked for `ram` bytes taken more, with some room for the modules it imports?"""
    return used > ram * 1.05 + SLACK_BYTES
