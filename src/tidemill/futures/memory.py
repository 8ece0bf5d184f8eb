"""How much memory there is, how much a task may take, and whether the kernel has killed somebody for it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/")
STACKS_BYTES = 16 * 1024**2


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
    """Let this process take so many bytes more than it has now; beyond them Python raises MemoryError.

    What counts is private memory that can be written (RLIMIT_DATA): mapping another task's result, which is
    shared, costs nothing. Addresses count whether they are used or not, and a thread's stack is 8 MB of them:
    so there is `STACKS_BYTES` on top. 0 sets no limit.
    """
    if not ram:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _private_bytes() + ram + STACKS_BYTES
    resource.setrlimit(
        resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def lifted() -> Iterator[None]:
    """Do something of our own inside a task: open a store, start a thread, whose stack alone may be too much.

    What is taken meanwhile is added to the task's limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == hard:
        yield
        return
    before = _private_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        wanted = soft + max(0, _private_bytes() - before)
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def _private_bytes() -> int:
    """Private memory of this process that can be written."""
    return int(_field(Path("/proc/self/status"), "VmData:")) * 1024
