"""A walk through folders in the order of the full keys.

The order of folders is not the order of keys: of `a/x` and `a-1` the folder `a` comes first by name, but the
key `a-1` by bytes ('-' sorts before '/'). Sorting folders by their names *with* the slash gives exactly the
order in which S3 lists, with one folder per level in memory. Local files are listed like this, and so are
providers that list by folders.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class FolderEntry(NamedTuple, Generic[T]):
    """One name in a folder; `info` is what the backend knows of an object, None for a folder."""

    name: str
    info: T | None


def walk(
    read: Callable[[str], Iterable[FolderEntry[T]]], prefix: str, after: str | None
) -> Iterator[tuple[str, T]]:
    """List the objects whose key begins with `prefix` and sorts after `after`, in key order.

    It reads only the folders that can hold such a key, each when it is reached.

    Args:
        read: returns the entries of a folder (`""` or a path that ends in `/`) in any order.
        prefix: what the keys begin with; it may end within a name.
        after: list only keys after this one, or None.
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
