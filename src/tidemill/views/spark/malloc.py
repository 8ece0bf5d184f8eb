"""Memory that this process has used stays with it for the next kernel.

Arrays of some megabytes are made and dropped all the time. Each of them is given back to the system, by the C
library and by Arrow's own allocator alike, and the system has to clear its pages when the next one asks: much
of the 20 to 40 % of a load's kernels that were the system's time, measured. So Arrow takes its memory from
the C library as well, and that keeps some of what is free. A process whose memory is limited keeps nothing,
and one that was told which allocator Arrow is to use (`ARROW_DEFAULT_MEMORY_POOL`) uses it.
"""

import ctypes
import functools
import os
import platform
import resource

import pyarrow as pa

KEPT_BYTES = 256 * 1024**2
_MAPPED_BYTES = 32 * 1024**2  # larger arrays come from the system

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@functools.cache
def keep_memory() -> bool:
    """Keep some of what is free, from now on; whether that could be arranged."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    limited = any(resource.getrlimit(one)[0] != resource.RLIM_INFINITY for one in limits)
    if limited or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    if not (mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)):
        return False
    if not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
        pa.set_memory_pool(pa.system_memory_pool())  # what the other one gave stays its own
    return True
