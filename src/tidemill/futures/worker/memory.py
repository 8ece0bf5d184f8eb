"""Memory: the machine's total, the limit of a task, and the number of processes that the kernel killed."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/")
ROOM_BYTES = 512 * 1024**2
SLACK_BYTES = 32 * 1024**2


def total_bytes(root: Path = ROOT) -> int:
    """Return how much memory this process may use: that of the machine, or the limit of a control group."""
    amounts = [int(_field(root / "proc/meminfo", "MemTotal:")) * 1024]
    for folder in _groups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name)
            if text.isdigit():
                amounts.append(int(text))
    return min(amounts)


def kills(root: Path = ROOT) -> int:
    """Return how many processes the kernel has killed because memory ran out.

    The number grows with every such kill in our control group or on the machine. If a child ended by SIGKILL
    and the number has grown since the child started, the child most likely ran out of memory.
    """
    return int(_field(root / "proc/vmstat", "oom_kill")) + sum(
        int(_field(folder / name, "oom_kill"))
        for folder in _groups(root)
        for name in ("memory.events", "memory.oom_control")
    )


def _groups(root: Path) -> list[Path]:
    """Return the folders of our control group and its parents. A container has only the outermost folder."""
    folders = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):
            top = root / "sys/fs/cgroup" / ("memory" if kinds else "")
            folders += [top / path.relative_to("/") for path in (Path(group), *Path(group).parents)]
    return folders


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
    """Limit the memory of this process: beyond the limit Python raises MemoryError. 0 means no limit.

    The supervisor already checks the memory of tasks. This limit stops a task that grows faster than the
    supervisor checks. The limit counts private, writable address space (RLIMIT_DATA). Threads and libraries
    reserve much address space without using it, so the limit is far above `ram`. Results of other tasks that
    are mapped into memory do not count.
    """
    if not ram:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    now = int(_field(Path("/proc/self/status"), "VmData:")) * 1024
    limit = now + 2 * ram + ROOM_BYTES
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def used_bytes(pid: int | str = "self") -> int:
    """Return the private memory of a process, not counting mapped files or shared memory."""
    return int(_field(Path(f"/proc/{pid}/status"), "RssAnon:")) * 1024


def is_over(used: int, ram: int) -> bool:
    """Return whether a task uses more than its `ram` bytes, with a margin for the modules it imports."""
    return used > ram * 1.05 + SLACK_BYTES
