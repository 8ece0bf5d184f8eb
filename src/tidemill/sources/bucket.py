"""A bucket as a source: `bucket("s3://landing/orders/**/*.json")`.

An object appears in a bucket only when it is complete, so there is no need to wait until it settles. Its ETag
shows whether it has changed. The URL can name any object storage (`tidemill.objects.url`), and its path is a
pattern. The secrets in the URL are never shown.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import BadSource, ObjectError, ObjectMissing, SourceUnavailable
from tidemill.objects import ObjectInfo, Objects, open_objects
from tidemill.objects.url import KINDS, redact, scheme
from tidemill.sources import path_patterns
from tidemill.sources.file_source import DEFAULT_POLICY, FilePolicy, FileSource, reading_of
from tidemill.sources.listing import ListedFile, Skip, is_ignored, path_fault
from tidemill.sources.path_patterns import PathPattern
from tidemill.spark.ingest.origin_columns import OriginColumns
from tidemill.spark.parquet_files import RangedFile

_STAT_THREADS = 16


@dataclass(frozen=True, kw_only=True, repr=False)
class BucketSource(FileSource):
    """Objects of one bucket, below a prefix.

    Args:
        url: the URL of the bucket, with its secrets.
        prefix: the folder that the pattern is relative to.
    """

    url: str
    prefix: str

    @property
    def root(self) -> str:
        return f"{redact(self.url).partition('?')[0].rstrip('/')}/{self.prefix}"

    def listing(self, clock: Clock = SYSTEM) -> "BucketListing":
        return BucketListing(open_objects(self.url, clock=clock, probe=False), self.prefix, self.pattern)


def bucket(
    url: str,
    *,
    format: str | None = None,  # noqa: A002 - what users call it
    settle_s: float = 0.0,
    on_change: str = "warn",
    max_files: int = DEFAULT_POLICY.max_files,
    max_bytes: int = DEFAULT_POLICY.max_bytes,
    listing_shards: int = 1,
    dedupe: str | None = None,
    forget_after_s: float | None = None,
    file_column: str = "",
    line_column: str = "",
    arrived_column: str = "",
    **options: object,
) -> BucketSource:
    """Declare a source: the objects that other programs put into a bucket.

    >>> bucket("s3://landing/orders/*.csv.gz").reading.format
    <Format.CSV: 'csv'>

    Args:
        url: the URL of a bucket, with a pattern as its path. The pattern cannot contain `?`, because that
            character begins the settings in a URL.
        format: json (one object per line), csv, parquet or text; by default, the file name's ending decides.
        settle_s: take an object when it is this many seconds old.
        on_change: what to do with an object that is replaced after it was taken: `warn` once, or `take` it
            again.
        max_files: the maximum number of objects in one lot.
        max_bytes: the maximum size of one lot in bytes, unless a single object is larger.
        listing_shards: into how many shards to split the listing, so that several nodes can list at the same
            time. This is useful if there are more than about 10,000 objects.
        dedupe: `content` to skip a copy: a new object with the same content as one that was read before. Each
            new object is then read twice, first to compute its digest. By default, each path counts.
        forget_after_s: forget an object that is gone, this long after it was read. By default, the store
            keeps a row for each object for ever. If an object that is forgotten comes back, it is read again.
        file_column: a STRING column of the dataset that gets the path of the row's object, below the
            prefix of the pattern. Its name may be `_file`.
        line_column: a BIGINT column that gets the number of the row's line. Its name may be `_line`. To
            number lines, Spark reads the objects twice.
        arrived_column: a TIMESTAMP column that gets the time at which Tidemill found the object. Its name may
            be `_arrived_at`.
        options: options of the format; see `tidemill.spark.ingest.formats.FormatOptions`.
    """
    name = scheme(url)
    if name not in KINDS:
        raise BadSource(
            f"{redact(url)!r:.200} is not a bucket URL",
            hint=f"use a URL that begins with one of {', '.join(f'{kind}://' for kind in KINDS)}",
        )
    location, _, settings = url.partition("?")
    host, _, path = location.removeprefix(f"{name}://").partition("/")
    prefix, pattern = path_patterns.split(path)
    if not pattern:
        prefix, pattern = (f"{prefix.rstrip('/')}/" if prefix else ""), "**"
    return BucketSource(
        url=f"{name}://{host}" + (f"?{settings}" if settings else ""),
        prefix=prefix,
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


class BucketListing:
    """Lists a bucket, or the objects below a prefix that ends in `/`."""

    def __init__(self, objects: Objects, prefix: str, pattern: PathPattern) -> None:
        self._objects = objects
        self._prefix = prefix
        self._matcher = pattern.matcher()

    @property
    def url(self) -> str:
        return f"{self._objects.url}/{self._prefix}"

    def files(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[ListedFile]:
        entries = self.entries(skip, after=after, until=until)
        return (entry for entry in entries if self.wanted(entry.path, skip))

    def entries(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[ListedFile]:
        first = self._prefix + after if after else None
        cut = len(self._prefix)
        try:
            for key, size, etag, modified_at in self._objects.list_foreign(skip, self._prefix, after=first):
                path = key[cut:]
                if until is not None and path > until:
                    return
                yield ListedFile(path, size, modified_at, etag)
        except ObjectError as error:
            raise SourceUnavailable(f"cannot list {self.url}: {error.message}") from error

    def wanted(self, path: str, skip: Skip) -> bool:
        if is_ignored(path) or not self._matcher.matches(path):
            return False
        fault = path_fault(path)
        if fault:
            skip(path, fault)
        return not fault

    def stat(self, paths: Sequence[str]) -> list[ListedFile | None]:
        with ThreadPoolExecutor(max_workers=min(_STAT_THREADS, len(paths) or 1)) as pool:
            return list(pool.map(self._stat, paths))

    def _stat(self, path: str) -> ListedFile | None:
        try:
            return _listed(path, self._objects.head(self._prefix + path))
        except ObjectMissing:
            return None

    def can_read(self, path: str) -> bool:
        return True

    def uri(self, path: str) -> str:
        from tidemill.spark.storage import Storage

        return Storage(self._objects).uri(self._prefix + path)

    def read_options(self) -> dict[str, str]:
        from tidemill.spark.storage import Storage

        return Storage(self._objects).read_options()

    def open(self, path: str) -> BinaryIO:
        key = self._prefix + path
        try:
            size = self._objects.head(key).size
        except ObjectMissing as missing:
            raise FileNotFoundError(missing.message) from missing
        return cast(BinaryIO, io.BufferedReader(_RawFile(self._objects, key, size), 1 << 20))


class _RawFile(RangedFile):
    """An object as a file that `io.BufferedReader` can read, one byte range at a time."""

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _listed(path: str, info: ObjectInfo) -> ListedFile:
    return ListedFile(path, info.size, info.modified_at, info.etag)
