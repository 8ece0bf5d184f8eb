"""Memory that this process has used stays with it for the next kernel.

Arrays of some megabytes are made and dropped all the time. Each of them is given back to the system, by the C
library and by Arrow's own allocator alike, and the system has to clear its pages when the next one asks: much
of the 20 to 40 % of a load's kernels that were the system's time, measured. So Arrow takes its memory from
the C library as well, and that keeps some of what is free. All threads share it: what each had of its own the
C library would give back in pieces of 64 MB, and a step of two threads took a fifth longer. A process whose
memory is limited keeps nothing, and one that was told which allocator Arrow is to use
(`ARROW_DEFAULT_MEMORY_POOL`) uses it.
"""

import ctypes
import functools
import os
import platform
import resource
import threading

import pyarrow as pa

KEPT_BYTES = 256 * 1024**2
_MAPPED_BYTES = 32 * 1024**2  # larger arrays come from the system

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


@functools.cache
def keep_memory() -> bool:
    """Keep some of what is free, from now on; whether that could be arranged.

    Threads that were there before may have memory of their own, so a process that computes calls this first.
    """
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    limited = any(resource.getrlimit(one)[0] != resource.RLIM_INFINITY for one in limits)
    if limited or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_MMAP_THRESHOLD, _MAPPED_BYTES), (_M_ARENA_MAX, 1))
    if not all(mallopt(setting, value) for setting, value in settings):
        return False
    if not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
        pa.set_memory_pool(pa.system_memory_pool())  # what the other one gave stays its own
    return True


_USED = threading.Event()


def used_much() -> None:
    """A step took much memory: the next large one will want it again."""
    _USED.set()


def give_back() -> None:
    """No large step follows: what the last one used goes back to the system."""
    if _USED.is_set():
        _USED.clear()
        if keep_memory():
            ctypes.CDLL(None).malloc_trim(0)
