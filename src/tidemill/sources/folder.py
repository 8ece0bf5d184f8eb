"""A folder as a source: `folder("landing/orders/*.json")`.

A link to a file in the same folder is followed. A link to a file outside the folder is followed only if the
source declares `outside_links=True`. Without this rule, a program that may only write to the folder could
make Tidemill read and publish any file on this machine. Links to folders are not followed, because they can
form a cycle. A file that this process cannot open is reported, and is taken later when it can be opened. A
missing folder is treated as empty, so nothing is lost if a disk is not mounted.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from tidemill.clock import Clock
from tidemill.errors import BadSource, SourceUnavailable
from tidemill.objects.folder_walk import FolderEntry, walk
from tidemill.paths import expanded
from tidemill.sources import path_patterns
from tidemill.sources.file_source import DEFAULT_POLICY, FilePolicy, FileSource, reading_of
from tidemill.sources.folder_watch import FolderWatch
from tidemill.sources.listing import ListedFile, Skip, is_ignored, path_fault
from tidemill.sources.path_patterns import PathPattern
from tidemill.sources.source import SourceContext
from tidemill.spark.ingest.formats import format_of
from tidemill.spark.ingest.origin_columns import OriginColumns

SETTLE_S = 2.0


@dataclass(frozen=True, kw_only=True, repr=False)
class FolderSource(FileSource):
    """Files in one folder, on this machine or on a file system that all machines share."""

    path: str
    outside_links: bool = False

    @property
    def root(self) -> str:
        return self.path

    def resolve(self, context: SourceContext) -> "FolderSource":
        """Resolve a relative path from the folder of the file that declares the pipeline."""
        return replace(self, path=str(context.base / expanded(self.path)))

    def watch(self, changed: Callable[[], object], clock: Clock) -> FolderWatch:
        return FolderWatch(Path(self.path), changed, clock)

    def listing(self) -> "FolderListing":
        return FolderListing(Path(self.path), self.pattern, outside_links=self.outside_links)


def folder(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - what users call it
    settle_s: float = SETTLE_S,
    on_change: str = "warn",
    max_files: int = DEFAULT_POLICY.max_files,
    max_bytes: int = DEFAULT_POLICY.max_bytes,
    listing_shards: int = 1,
    dedupe: str | None = None,
    forget_after_s: float | None = None,
    outside_links: bool = False,
    file_column: str = "",
    line_column: str = "",
    arrived_column: str = "",
    **options: object,
) -> FolderSource:
    """Declare a source: the files that other programs put into a folder.

    >>> folder("landing/orders/*.json").reading.format
    <Format.JSON: 'json'>

    Args:
        path: a folder, or a pattern for paths (`tidemill.sources.path_patterns`).
        format: json (one object per line), csv, parquet or text; by default, the file name's ending decides.
        settle_s: take a file when it has not changed for this long.
        on_change: what to do with a file that changes after it was taken: `warn` once, or `take` it again.
        max_files: the maximum number of files in one lot.
        max_bytes: the maximum size of one lot in bytes, unless a single file is larger.
        listing_shards: into how many shards to split the listing, so that several nodes can list at the same
            time. This is useful if there are more than about 10,000 files.
        dedupe: `content` to skip a copy: a new file with the same content as one that was read before. Each
            new file is then read twice, first to compute its digest. By default, each path counts.
        forget_after_s: forget a file that is gone, this long after it was read. By default, the store keeps a
            row for each file for ever. If a file that is forgotten comes back, it is read again.
        outside_links: also follow symbolic links to files outside the folder. Set it only if you trust every
            program that can write to the folder.
        file_column: a STRING column of the dataset that gets the path of the row's file, below the
            folder of the pattern. Its name may be `_file`.
        line_column: a BIGINT column that gets the number of the row's line. Its name may be `_line`. To
            number lines, Spark reads the files twice.
        arrived_column: a TIMESTAMP column that gets the time at which Tidemill found the file. Its name may
            be `_arrived_at`.
        options: options of the format; see `tidemill.spark.ingest.formats.FormatOptions`.
    """
    text = os.fspath(path)
    if not text or "\0" in text:
        raise BadSource(
            f"invalid path {text!r}", hint="use the path of a folder, or a pattern for files in it"
        )
    root, pattern = path_patterns.split(text)
    if not pattern:
        parent, _, name = root.rpartition("/")
        if format_of(name) is not None and not root.endswith("/"):
            root = parent + "/" if parent or root.startswith("/") else ""
            pattern = path_patterns.literal(name)
        else:
            pattern = "*"
    return FolderSource(
        path=root or ".",
        outside_links=outside_links,
        pattern=PathPattern(pattern),
        reading=reading_of(pattern, format, options),
        origin=OriginColumns(file=file_column, line=line_column, arrived=arrived_column),
        policy=FilePolicy(
            settle_s=settle_s,
            on_change=on_change,
            max_files=max_files,
            max_bytes=max_bytes,
            listing_shards=listing_shards,
            dedupe=dedupe,
            forget_after_s=forget_after_s,
        ),
    )


class FolderListing:
    """Lists a folder.

    Args:
        root: the folder; it may be a link, because the user declares it.
        pattern: the paths of the files.
        outside_links: whether to follow links to files outside of the folder.
    """

    def __init__(self, root: Path, pattern: PathPattern, *, outside_links: bool = False) -> None:
        self._root = Path(os.path.abspath(root))  # noqa: PTH100 - does not follow a link as the root
        self._outside_links = outside_links
        self._matcher = pattern.matcher()

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def files(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[ListedFile]:
        """List files in path order. Each folder is read when the walk reaches it.

        So memory holds the entries of only one folder for each level.
        """

        def entries(below: str) -> Iterator[FolderEntry[os.DirEntry[str]]]:
            return self._entries(below, skip)

        for path, entry in walk(entries, "", after or None):
            if until is not None and path > until:
                return
            if fault := path_fault(path):
                skip(path.encode(errors="backslashreplace").decode(), fault)
                continue
            try:
                status = entry.stat()
            except OSError:
                continue  # deleted while we listed, or a broken link
            yield _listed(path, status)

    def entries(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[ListedFile]:
        """List the same files as `files`.

        `files` has already checked the names, so `wanted` accepts all of them.
        """
        return self.files(skip, after=after, until=until)

    def wanted(self, path: str, skip: Skip) -> bool:
        return True

    def _entries(self, below: str, skip: Skip) -> Iterator[FolderEntry[os.DirEntry[str]]]:
        try:
            inside = os.scandir(self._root / below)
        except (FileNotFoundError, NotADirectoryError):
            if below:
                return  # deleted while we listed
            if self._root.exists():
                raise SourceUnavailable(f"{self._root} is not a folder") from None
            return
        except OSError as error:
            if not below:
                raise SourceUnavailable(f"cannot list {self._root}: {error.strerror}") from None
            skip(below, f"the folder cannot be listed: {error.strerror}")
            return
        with inside:
            for entry in inside:
                path = below + entry.name
                if is_ignored(entry.name):
                    continue
                with contextlib.suppress(OSError):  # deleted while we listed
                    if entry.is_dir(follow_symlinks=False):
                        if self._matcher.enters(path):
                            yield FolderEntry(entry.name, None)
                    elif self._matcher.matches(path) and entry.is_file():
                        if entry.is_symlink() and self._leaves(path):
                            skip(
                                path,
                                "a link to a place outside the folder is not followed (outside_links=False)",
                            )
                        else:
                            yield FolderEntry(entry.name, entry)
                    elif entry.is_symlink() and entry.is_dir() and self._matcher.enters(path):
                        skip(path, "a link to a folder is not followed")

    def stat(self, paths: Sequence[str]) -> list[ListedFile | None]:
        return [self._stat(path) for path in paths]

    def _stat(self, path: str) -> ListedFile | None:
        try:
            status = (self._root / path).stat()
        except OSError:
            return None
        if self._leaves(path):
            return None  # a link replaced the file after it was listed
        return _listed(path, status) if stat.S_ISREG(status.st_mode) else None

    def can_read(self, path: str) -> bool:
        return os.access(self._root / path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)

    def uri(self, path: str) -> str:
        return f"file://{self._root / path}"

    def read_options(self) -> dict[str, str]:
        return {}

    def open(self, path: str) -> BinaryIO:
        if self._leaves(path):
            raise FileNotFoundError(f"{path} is a link to a place outside {self._root}")
        return (self._root / path).open("rb")

    def _leaves(self, path: str) -> bool:
        """Return whether a path leads outside the folder through a link, and so must not be read."""
        if self._outside_links:
            return False
        return not (self._root / path).resolve().is_relative_to(self._root.resolve())


def _listed(path: str, status: os.stat_result) -> ListedFile:
    # The version has no inode: after a folder is restored or moved to another disk, its files are the same.
    version = f"{status.st_size:x}-{status.st_mtime_ns:x}"
    return ListedFile(path, status.st_size, status.st_mtime_ns / 1e9, version)
