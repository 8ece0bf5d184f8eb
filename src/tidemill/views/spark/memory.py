"""Keep freed memory in this process for the next kernel, instead of returning it to the system.

Kernels allocate and free arrays of several megabytes all the time. By default, the C library and Arrow's
allocator return each of them to the system, and the system clears the pages for the next allocation. In
measurements, the system took 20 to 40 % of the kernels' time in a load, and much of that went into clearing
pages. So Arrow allocates from the C library, and the C library keeps some free memory. All threads share one
arena: with one arena per thread, the C library returns memory in pieces of 64 MB, which made a step with two
threads a fifth slower.

A process with limited memory keeps no free memory. If `ARROW_DEFAULT_MEMORY_POOL` is set, Arrow uses its
value.
"""

import ctypes
import functools
import os
import platform
import resource
import threading

import pyarrow as pa

KEPT_BYTES = 256 * 1024**2
_MAPPED_BYTES = 32 * 1024**2  # larger arrays are mapped from the system

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


@functools.cache
def keep_memory() -> bool:
    """Keep some free memory from now on; return whether this system allows it.

    Threads that are already running may have their own arenas, so call this before a process computes.
    """
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    limited = any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits)
    if limited or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_MMAP_THRESHOLD, _MAPPED_BYTES), (_M_ARENA_MAX, 1))
    if not all(mallopt(setting, value) for setting, value in settings):
        return False
    if not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
        pa.set_memory_pool(pa.system_memory_pool())  # buffers of the previous pool stay in it
    return True


_LARGE_STEP = threading.Event()


def expect_large_steps() -> None:
    """Keep the memory of a large step: another large step may follow."""
    _LARGE_STEP.set()


def release_memory() -> None:
    """Return the memory of the last large step to the system: small steps follow."""
    if _LARGE_STEP.is_set():
        _LARGE_STEP.clear()
        if keep_memory():
            ctypes.CDLL(None).malloc_trim(0)
