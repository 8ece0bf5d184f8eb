"""Functions for the tests of workers: a module of their own, so that children import little."""

import ctypes
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.futures.worker import task_context
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from tidemill.futures.client.client import Client


def _client() -> "Client":
    """Imported where it is needed: it takes longer than most tasks."""
    from tidemill.futures.client.client import connect

    return connect()


def add(x: int, y: int = 1) -> int:
    return x + y


def total(*values: int) -> int:
    return sum(values)


def note(folder: str, text: str) -> int:
    """Add a line to a file, and say how many there are now."""
    path = Path(folder) / "notes"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)
    return len(path.read_text().splitlines())


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def fails_until(folder: str, times: int) -> str:
    """Raise the first times, then succeed."""
    if note(folder, "try") <= times:
        raise ValueError("not yet")
    return "done"


def raises(text: str) -> None:
    raise LookupError(text)


def leaves() -> None:
    raise SystemExit(3)


def kills_itself(folder: str, number: int) -> None:
    note(folder, "killed")
    os.kill(os.getpid(), number)


def crashes_in_c() -> None:
    ctypes.string_at(0)


def ends_at_once(code: int) -> None:
    os._exit(code)


def closes_all_files(folder: str) -> None:
    """Close the sockets to the supervisor as well, and run on."""
    note(folder, "closed")
    os.closerange(3, 1_000)
    threading.Event().wait()


def returns_a_lock() -> object:
    return threading.Lock()


def waits_for(folder: str, name: str) -> str:
    """Say that we began, then wait until a file is there."""
    note(folder, f"began {name}")
    task = task_context.current_task()
    assert task is not None
    while not (Path(folder) / name).exists():
        task.wait_cancelled(0.01)
    note(folder, f"ended {name}")
    return name


def hangs(folder: str) -> str:
    """Silent for ever the first time."""
    if note(folder, "try") == 1:
        threading.Event().wait()
    return "done"


def makes_progress(folder: str, steps: int) -> str:
    """Take a step when its file is there, and tell of it."""
    note(folder, "began")
    task = task_context.current_task()
    assert task is not None
    for step in range(steps):
        while not (Path(folder) / f"go {step}").exists():
            task.wait_cancelled(0.01)
        task.progress()
        note(folder, f"progress {step}")
    return "done"


def listens(folder: str) -> str:
    """Run until asked to end."""
    note(folder, "began")
    task = task_context.current_task()
    assert task is not None
    while not task.wait_cancelled(0.05):
        pass
    note(folder, "heard")
    task.check()
    return "unreachable"


def deaf(folder: str) -> None:
    """Run on whatever is asked."""
    note(folder, "began")
    threading.Event().wait()


def takes_memory(size: int, folder: str, kills: int) -> int:
    """Take it, and keep it until killed for it; return it when that has happened so often."""
    tries = note(folder, "try")
    data = bytearray(size)
    if tries <= kills:
        threading.Event().wait()
    return len(data)


def large(size: int, folder: str = "") -> bytes:
    if folder:
        note(folder, "made")
    return bytes(size)


def length(value: bytes) -> int:
    return len(value)


def fib(n: int) -> int:
    if n < 2:
        return n
    client = _client()
    first, second = client.submit(fib, n - 1), client.submit(fib, n - 2)
    return int(first.result() + second.result())


def nested(depth: int, folder: str) -> int:
    """A chain of tasks that each await the next."""
    note(folder, f"began {depth}")
    if depth == 0:
        return 0
    return int(_client().submit(nested, depth - 1, folder).result()) + 1


def whoami() -> tuple[int, int]:
    """The child that runs this, and its supervisor."""
    return os.getpid(), os.getppid()


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class Counter:
    """An actor for tests."""

    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.seen: list[Any] = []

    def add(self, amount: int) -> int:
        self.value += amount
        self.seen.append(amount)
        return self.value

    def history(self) -> list[Any]:
        return self.seen

    def listed(self, *values: Any) -> list[Any]:
        return list(values)

    def pid(self) -> int:
        return os.getpid()

    def die(self) -> None:
        os._exit(7)

    def raises(self) -> None:
        raise LookupError("from the actor")


def awaits_large(ram: str) -> int:
    return int(_client().submit(add, 0, ram=ram).result())


def awaits_file(folder: str, name: str) -> str:
    return str(_client().submit(waits_for, folder, name).result())


def parent_of(value: bytes) -> int:
    return os.getppid()


# --- diamonds: see tests/acceptance/test_futures_kills.py


def _executed(log: str) -> None:
    task = task_context.current_task()
    assert task is not None
    fd = os.open(Path(log) / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{task.id.hex()} {task.epoch}\n".encode())
    os.close(fd)


def top(log: str, number: int, size: int) -> bytes:
    _executed(log)
    return number.to_bytes(4, "big") * size


def side(log: str, value: bytes, factor: int) -> bytes:
    _executed(log)
    number = int.from_bytes(value[-4:], "big") * factor
    return number.to_bytes(4, "big") * (len(value) // 4)


def join(log: str, left: bytes, right: bytes) -> int:
    _executed(log)
    return sum(left[-4:]) + sum(right[:4]) + len(left) + len(right)


def expected(number: int, size: int) -> int:
    return sum((2 * number).to_bytes(4, "big")) + sum((3 * number).to_bytes(4, "big")) + 8 * size


def starts_a_process(folder: str) -> None:
    process = subprocess.Popen(["sleep", "600"])
    note(folder, str(process.pid))
    threading.Event().wait()


def adds_under_lock(folder: str, times: int) -> None:
    """Count in a file, which goes wrong unless one does it at a time."""
    task = task_context.current_task()
    assert task is not None
    path = Path(folder) / "count"
    for _ in range(times):
        with task.lock("count").holding(STUCK_S) as held:
            count = int(path.read_text()) if path.exists() else 0
            threading.Event().wait(0.001)
            held.check()
            path.write_text(str(count + 1))


def takes_permits(permits: int) -> list[bool]:
    """Take one permit more than there are, without waiting for the last."""
    task = task_context.current_task()
    assert task is not None
    semaphore = task.semaphore("seats", permits)
    held = [semaphore.acquire(timeout_s=STUCK_S if n < permits else 0.05) for n in range(permits + 1)]
    for permit in held:
        if permit is not None:
            semaphore.release(permit)
    return [permit is not None for permit in held]


def tells(folder: str, text: str) -> str:
    task = task_context.current_task()
    assert task is not None
    while not (Path(folder) / "go").exists():
        task.status(text)
        threading.Event().wait(0.02)
    return "told"


def prints(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - that is the point


def long_if(folder: str, is_long: bool) -> bool:
    if is_long:
        note(folder, "long")
        while not (Path(folder) / "go").exists():
            threading.Event().wait(0.02)
    return is_long


def listed(*values: Any, **more: Any) -> tuple[Any, Any]:
    return values, more


def lists_many(folder: str, count: int) -> list[int]:
    """Pass many futures to one call; the first time, die after that."""
    client = _client()
    listing = client.submit(listed, *client.map(add, range(count)))
    if note(folder, listing.id.hex()) == 1:
        os.kill(os.getpid(), 9)
    return list(listing.result()[0])
