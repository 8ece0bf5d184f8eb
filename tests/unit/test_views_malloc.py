"""What a worker has when it begins: memory that is used again, and no more code than it needs."""

import platform
import subprocess
import sys

import pytest

_LOOP = """
import resource, sys
import numpy as np
import pyarrow as pa
from tidemill.views.spark.malloc import keep_memory
if "limited" in sys.argv:
    resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))
assert keep_memory() is ("limited" not in sys.argv)
rows = pa.array(np.arange(1_000_000)[::-1])
values = pa.array(np.arange(1_000_000))
for turn in range(30):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    values.take(rows)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*args: str) -> int:
    done = subprocess.run([sys.executable, "-c", _LOOP, *args], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only there can it be arranged")
def test_arrays_of_megabytes_are_made_of_memory_that_was_used_before():
    assert _faults() < 2_000, "twenty arrays of 8 MB are 40,000 pages"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only there can it be arranged")
def test_a_process_whose_memory_is_limited_keeps_nothing():
    _faults("limited")


def test_a_worker_does_not_load_the_parser_of_sql():
    code = "import sys, tidemill.views.spark.tasks; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
