"""Python workers reuse freed memory, and load only the modules that they need."""

import platform
import subprocess
import sys

import pytest

_LOOP = """
import resource, sys
import numpy as np
import pyarrow as pa
from tidemill.views.spark.memory import keep_memory
if "limited" in sys.argv:
    resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))
assert keep_memory() is ("limited" not in sys.argv)
rows = pa.array(np.arange(1_000_000)[::-1])
values = pa.array(np.arange(1_000_000))
for number in range(30):
    if number == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    values.take(rows)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*args: str) -> int:
    done = subprocess.run([sys.executable, "-c", _LOOP, *args], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc supports it")
def test_large_arrays_reuse_freed_memory():
    assert _faults() < 2_000, "twenty arrays of 8 MB are 40,000 pages"


_THREADS = """
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from tidemill.views.spark.memory import expect_large_steps, keep_memory, release_memory
assert keep_memory()
def step(_):
    arrays = [np.ones(1_000_000) for _ in range(30)]
    return np.ones(10)
def large():
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(step, range(2)))
kept = [large(), large()]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
kept.append(large())
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
most = held()
release_memory()
assert held() == most, "no large step ended"
expect_large_steps()
release_memory()
print(most - held())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc supports it")
def test_threads_share_freed_memory_and_small_steps_release_it():
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True)
    faults, released = map(int, done.stdout.split())
    assert faults < 30_000, "sixty arrays of 8 MB are 120,000 pages"
    assert released > 100_000_000


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc supports it")
def test_a_process_with_limited_memory_keeps_nothing():
    _faults("limited")


def test_a_worker_does_not_load_the_sql_parser():
    code = "import sys, tidemill.views.spark.tasks; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
