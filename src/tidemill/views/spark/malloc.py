"""Memory that this process has used stays with it for the next kernel.

Arrays of some megabytes are made and dropped all the time. The C library gives each of them back to the
system, which has to clear its pages when the next one asks: a fifth of what sorting and storing rows took,
measured in a loop. So some of what is free is kept. A process whose memory is limited keeps nothing.
"""

import ctypes
import functools
import platform
import resource

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
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES))
