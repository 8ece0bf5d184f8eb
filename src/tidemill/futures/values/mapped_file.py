"""Map files into memory, read-only, for as long as an object refers to the mapping.

Python's `mmap` keeps a file descriptor open for each mapping, so a thousand results in one process would use
up the descriptors. This module calls the operating system's mmap directly and keeps no descriptor open.
Python objects that use the memoryview keep the mapping alive. The file may be unlinked in the meantime; its
memory is freed with the last view.
"""

import ctypes
import os
import weakref
from pathlib import Path

_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def map_file(path: Path) -> memoryview:
    """Return a read-only view of a whole file. Raise `OSError` on failure."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return map_descriptor(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def map_descriptor(fd: int, size: int) -> memoryview:
    """Return a read-only view of an open file, which may be closed afterwards. Raise `OSError` on failure."""
    if size == 0:
        return memoryview(b"")
    address = _libc.mmap(None, size, _PROT_READ, _MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    array = (ctypes.c_ubyte * size).from_address(address)
    ended = weakref.finalize(array, _libc.munmap, address, size)
    ended.atexit = False  # views may be in use until the process exits, and the kernel cleans up then
    return memoryview(array).cast("B").toreadonly()
