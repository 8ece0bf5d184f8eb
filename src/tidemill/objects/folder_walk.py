"""Walk through folders, and return the objects in the order of their full keys.

Sorting names in each folder does not give the order of keys. For example, the name `a` sorts before `a-1`,
but the key `a-1` sorts before `a/x`, because '-' sorts before '/'. Sorting folder names *with* the slash
gives exactly the order in which S3 lists. The walk keeps only one folder per level in memory. Local files are
listed like this, and so are the objects of providers that list by folder.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class FolderEntry(NamedTuple, Generic[T]):
    """One name in a folder; `info` is what the backend knows about an object, None for a folder."""

    name: str
    info: T | None


def walk(
    read: Callable[[str], Iterable[FolderEntry[T]]], prefix: str, after: str | None
) -> Iterator[tuple[str, T]]:
    """List the objects whose key begins with `prefix` and sorts after `after`, in key order.

    It reads only the folders that can contain such a key, and reads each folder only when the walk reaches
    it.

    Args:
        read: returns the entries of a folder (`""` or a path that ends in `/`) in any order.
        prefix: what the keys begin with; it may end within a name.
        after: list only keys after this key; None to list all keys.
    """
    folder, slash, partial = prefix.rpartition("/")
    return _below(read, folder + slash, partial, after)


def _below(
    read: Callable[[str], Iterable[FolderEntry[T]]], folder: str, partial: str, after: str | None
) -> Iterator[tuple[str, T]]:
    level = [
        (entry.name if entry.info is not None else entry.name + "/", entry.info)
        for entry in read(folder)
        if entry.name.startswith(partial)
    ]
    level.sort(key=lambda item: item[0])
    for name, info in level:
        path = folder + name
        if info is not None:
            if after is None or path > after:
                yield path, info
        elif after is None or after[: len(path)] <= path:  # else every key below sorts before `after`
            yield from _below(read, path, "", after)
