"""Ray's tasks: two CPUs on this host, no dashboard, results fetched by one `ray.get` of the whole batch.

Also tried, and equally fast within the noise: `ray.get` one by one, `ray.wait` in between, the strategy
"SPREAD", `num_cpus=0.5` per task. Slower: `num_cpus=0`, because Ray then starts many more processes than
there are cores. Ray stores nothing on disk: when its driver ends, all submitted tasks are lost.
"""

import os
import statistics
import time
from typing import Any

from bench.answering import answer, timed

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy
import ray


@ray.remote
def noop(value: int) -> int:
    return value


@ray.remote
def make(count: int) -> Any:
    array = numpy.arange(count, dtype=numpy.float64)
    array[0] = time.monotonic()
    return array


@ray.remote
def read(array: Any) -> tuple[float, float]:
    began = float(array[0])
    total = float(array[1:].sum())
    return time.monotonic() - began, total


class Tasks:
    def open(self, workers: int) -> dict[str, Any]:
        flags = {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False}
        ray.init(**flags, _node_ip_address="127.0.0.1", logging_level="ERROR")  # type: ignore[arg-type]
        return flags

    def work(self, count: int) -> float:
        def all_of_them() -> None:
            results = ray.get([noop.remote(number) for number in range(count)])
            assert results == list(range(count))

        return timed(all_of_them)

    def round_trips(self, count: int) -> dict[str, float]:
        took = [timed(lambda: ray.get(noop.remote(1))) for _ in range(count)]
        return {"median_s": statistics.median(took), "p90_s": sorted(took)[count * 9 // 10]}

    def hand_over(self, count: int) -> float:
        seconds, total = ray.get(read.remote(make.remote(count)))
        assert total == count * (count - 1) / 2
        return float(seconds)


if __name__ == "__main__":
    tasks = Tasks()
    commands = {
        "open": tasks.open,
        "work": tasks.work,
        "round_trips": tasks.round_trips,
        "hand_over": tasks.hand_over,
    }
    answer(commands, versions={"ray": ray.__version__, "numpy": numpy.__version__})
