"""Walk a tree of folders in the order of the full keys.

Folder by folder is not key by key: of `a/x` and `a-1` the folder `a` comes first by name, the key `a-1` by
bytes ('-' sorts before '/'). Sorting folders under their name *with* the slash gives exactly the order in
which S3 lists, with one folder in memory at a time per level. Local files are walked like this, and so are
object storages that list by folders.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """One name in a folder; `found` is what the backend knows of an object, None for a folder."""

    name: str
    found: T | None


def walk(
    read: Callable[[str], Iterable[Entry[T]]], prefix: str, after: str | None
) -> Iterator[tuple[str, T]]:
    """Objects whose key begins with `prefix` and sorts behind `after`, in key order.

    Reads only the folders that can hold such a key, each when it is reached.

    Args:
        read: the entries of a folder (`""` or a path that ends in `/`) in any order, each name once per kind.
        prefix: what the keys begin with; may end within a name.
        after: the last key that is not wanted, or None.
    """
    folder, slash, partial = prefix.rpartition("/")
    return _below(read, folder + slash, partial, after)


def _below(
    read: Callable[[str], Iterable[Entry[T]]], folder: str, partial: str, after: str | None
) -> Iterator[tuple[str, T]]:
    level = [
        (entry.name if entry.found is not None else entry.name + "/", entry.found)
        for entry in read(folder)
        if entry.name.startswith(partial)
    ]
    level.sort(key=lambda item: item[0])
    for name, found in level:
        path = folder + name
        if found is not None:
            if after is None or path > after:
                yield path, found
        elif after is None or after[: len(path)] <= path:  # otherwise every key below sorts before `after`
            yield from _below(read, path, "", after)
