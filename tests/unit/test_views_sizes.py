"""How a step is cut into tasks: by rows, by bytes, and by the memory that a Python worker has."""

from typing import Any, cast

import pytest

from tidemill.views.spark.execution import NOTHING, TASK_BYTES, TASK_ROWS, InputSize, tasks_for, worker_bytes


class Conf:
    """As much of a session as is asked: two cores, and a setting."""

    def __init__(self, memory: str = "") -> None:
        self.conf = {"spark.executor.pyspark.memory": memory} if memory else {}
        self.sparkContext = self
        self.defaultParallelism = 2


def tasks(size: InputSize, memory: str = "") -> int:
    return tasks_for(cast(Any, Conf(memory)), size)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", None), ("0", None), ("512", 256 * 2**20), ("512m", 256 * 2**20), ("1G", 2**29), ("4kb", 2048)],
)
def test_the_memory_of_a_worker_is_its_share_of_the_setting(setting: str, expected: int | None) -> None:
    assert worker_bytes(setting, 2) == expected


def test_tasks_are_as_many_as_rows_bytes_and_memory_ask_for() -> None:
    assert tasks(NOTHING) == 2
    assert tasks(InputSize(5 * TASK_ROWS, 0)) == 6, "no core waits while another takes the last"
    assert tasks(InputSize(10, 7 * TASK_BYTES + 1)) == 8, "few rows that are wide"
    assert tasks(InputSize(10, 2**20), "64m") == 2
    assert tasks(InputSize(10, 2**26), "64m") == 64, "each worker has 32 MiB, and reads one of them"
    assert tasks(InputSize(10**12, 2**60)) == 256, "there are no more slices"
    assert InputSize(1, 2) + InputSize(3, 4) == InputSize(4, 6)
