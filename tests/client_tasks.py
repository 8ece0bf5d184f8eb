"""Functions for the client's tests: in a module of their own, so that tasks do not import the tests."""

import threading
from pathlib import Path
from typing import Any

import tidemill
from tests.worker_tasks import note
from tidemill import Future
from tidemill.futures.worker import task_context

_LOOK_S = 0.01


def describe(a: Any, b: Any = 2, *more: Any, c: Any = 3, **rest: Any) -> tuple[Any, ...]:
    return a, b, more, c, rest


def waits_for_file(path: str) -> str:
    """Return when the file is there."""
    task = task_context.current_task()
    assert task is not None
    while not Path(path).exists():
        task.check()
        task.wait_cancelled(_LOOK_S)
    return path


def alone(folder: str) -> int:
    """How many of these run at this moment, this one included."""
    task = task_context.current_task()
    assert task is not None
    mine = Path(folder) / f"running-{task.id.hex()}"
    mine.touch()
    task.wait_cancelled(_LOOK_S)
    running = len(list(Path(folder).glob("running-*")))
    mine.unlink()
    return running


def fails_after_submitting(folder: str) -> list[int]:
    """Submit three children and one value; fail the first time, and give their results the second time."""
    client = tidemill.connect()
    children = [client.submit(note, folder, f"child {n}") for n in range(3)]
    value = client.put({"made by": "the parent"})
    if note(folder, f"put {value.id.hex()}") and len(client.gather(children)) != 3:
        raise AssertionError
    marker = Path(folder) / "second"
    if not marker.exists():
        marker.touch()
        raise ValueError("the first time")
    return client.gather(children)


def submits_for(names: list[str]) -> list[Future[Any]]:
    """Handles of futures that the task submitted itself."""
    client = tidemill.connect()
    return client.map(str.upper, names)


def puts(size: int, count: int) -> list[Future[Any]]:
    """Large values, put by a task."""
    client = tidemill.connect()
    return [client.put(bytes([n]) * size, durable=False) for n in range(count)]


def takes(future_id: bytes) -> bool:
    client = tidemill.connect()
    return client.take_ownership(client.future(future_id))


def node_of_task() -> str:
    task = task_context.current_task()
    assert task is not None
    return task.site.hello.node


def many_threads(count: int) -> int:
    """Threads of a task use its client, too."""
    client = tidemill.connect()
    results: list[int] = []

    def one(n: int) -> None:
        results.append(client.submit(pow, n, 2).result())

    threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(results)
