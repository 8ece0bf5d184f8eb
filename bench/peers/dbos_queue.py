"""DBOS's queued workflows on SQLite: enqueue many, then wait for the result of each.

`settings` are "default" (SQLite's rollback journal, `DBOS.enqueue_workflow` one by one, as many threads as
DBOS chooses, the queue polled every second) or "tuned", all from DBOS's documentation and measured to be
its fastest here: the file in WAL mode (as ours is, and as durable: `synchronous` is FULL in both), a hundred
workflows enqueued per transaction (`DBOSClient.enqueue_in_transaction`), two executor threads, the queue
polled ten times a second. The bench tries both and keeps the faster. Slower than "tuned": a poll every
10 ms (it competes for the file's lock), enqueueing from several threads, more executor threads, async
workflows, `worker_concurrency`, and workflows started without a queue.
"""

import sqlite3
import time
from importlib.metadata import version
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

from bench.answering import Command, answer, timed

QUEUE = "bench"
PAGE = 100
RESULT_EVERY_S = 0.005  # how often to poll for a result


@DBOS.workflow()
def noop(value: int) -> int:
    return value


class Queue:
    def open(self, path: str, settings: str, workers: int) -> dict[str, Any]:
        self._tuned = settings == "tuned"
        url = f"sqlite:///{path}"
        if self._tuned:
            with sqlite3.connect(path) as db:
                db.execute("PRAGMA journal_mode = WAL")
        config: dict[str, Any] = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
        if self._tuned:
            config["max_executor_threads"] = workers
        DBOS(config=config)  # type: ignore[arg-type]
        DBOS.launch()
        polling = {"polling_interval_sec": 0.1} if self._tuned else {}
        DBOS.register_queue(QUEUE, **polling)
        self._client = DBOSClient(system_database_url=url)
        self._engine = sqlalchemy.create_engine(url)
        time.sleep(1.5)  # DBOS polls for new queues once a second
        with self._engine.connect() as db:
            pragmas = {
                name: str(db.exec_driver_sql(f"PRAGMA {name}").scalar())
                for name in ("journal_mode", "synchronous")
            }
        return {
            "enqueue": "in transactions of 100" if self._tuned else "one by one",
            **{name: value for name, value in config.items() if name == "max_executor_threads"},
            **polling,
            **pragmas,
        }

    def work(self, count: int) -> float:
        def all_of_them() -> None:
            handles = self._enqueue(count)
            results = [handle.get_result(polling_interval_sec=RESULT_EVERY_S) for handle in handles]
            assert results == list(range(count))

        return timed(all_of_them)

    def _enqueue(self, count: int) -> list[Any]:
        if not self._tuned:
            return [DBOS.enqueue_workflow(QUEUE, noop, number) for number in range(count)]
        handles: list[Any] = []
        for first in range(0, count, PAGE):
            with self._engine.begin() as connection:
                handles += [
                    self._client.enqueue_in_transaction(
                        connection, {"workflow_name": noop.__qualname__, "queue_name": QUEUE}, number
                    )
                    for number in range(first, min(count, first + PAGE))
                ]
        return handles

    def close(self) -> None:
        DBOS.destroy()


if __name__ == "__main__":
    queue = Queue()
    commands: dict[str, Command] = {"open": queue.open, "work": queue.work, "close": queue.close}
    answer(commands, versions={"dbos": version("dbos"), "sqlite": sqlite3.sqlite_version})
