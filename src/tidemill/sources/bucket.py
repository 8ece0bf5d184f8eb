"""A bucket as a source: `bucket("s3://landing/orders/**/*.json")`.

Objects appear whole, so they need not come to rest, and their etag says whether they changed. The URL is that
of any object storage (`tidemill.objects.url`), with a pattern for its path; its secrets are shown to nobody.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import BadSource, ObjectError, ObjectMissing, SourceUnavailable
from tidemill.objects import Info, Objects, open_objects
from tidemill.objects.url import KINDS, redact, scheme
from tidemill.sources import listing, patterns
from tidemill.sources.declarations import DEFAULT_POLICY, Policy
from tidemill.sources.folder import reading_of
from tidemill.sources.listing import Found, Skip
from tidemill.sources.patterns import Pattern
from tidemill.spark.footers import RangedFile
from tidemill.spark.formats import Reading

_AT_ONCE = 16


class BucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects of which bucket, how to read them, and when to take them."""

    url: str  # of the bucket, with its secrets
    prefix: str
    pattern: Pattern
    reading: Reading
    policy: Policy

    @property
    def root(self) -> str:
        """Where it is, for people."""
        return f"{redact(self.url).partition('?')[0].rstrip('/')}/{self.prefix}"

    def below(self, base: Path) -> "BucketSpec":
        """The same: a URL is not relative to anything."""
        return self

    def listing(self, clock: Clock = SYSTEM) -> "BucketListing":
        return BucketListing(open_objects(self.url, clock=clock, probe=False), self.prefix, self.pattern)

    def __repr__(self) -> str:
        return f"<BucketSpec {self.root}{self.pattern.text}>"


def bucket(
    url: str,
    *,
    format: str | None = None,  # noqa: A002 - what users call it
    settle_s: float = 0.0,
    on_change: str = "warn",
    max_files: int = DEFAULT_POLICY.max_files,
    max_bytes: int = DEFAULT_POLICY.max_bytes,
    stretches: int = 1,
    **options: object,
) -> BucketSpec:
    """Objects that others put into a bucket.

    >>> bucket("s3://landing/orders/*.csv.gz").reading.format
    <Format.CSV: 'csv'>

    Args:
        url: of a bucket, with a pattern as its path (without `?`, which begins the settings of a URL).
        format: json (an object per line), csv, parquet or text; by the ending unless given.
        settle_s: an object is taken when it is so old.
        on_change: what becomes of an object that is replaced after it was taken: `warn` (once) or `take`.
        max_files: of one lot.
        max_bytes: of one lot, unless a single object is larger.
        stretches: into how many the listing is cut, for nodes to share; worth it from some 10,000 files.
        options: of the format, see `tidemill.spark.formats.Reading`.
    """
    name = scheme(url)
    if name not in KINDS:
        raise BadSource(
            f"{redact(url)!r:.200} is no bucket", hint=f"one of {', '.join(f'{k}://' for k in KINDS)}"
        )
    where, _, settings = url.partition("?")
    head, _, path = where.removeprefix(f"{name}://").partition("/")
    prefix, pattern = patterns.split(path)
    if not pattern:
        prefix, pattern = (f"{prefix.rstrip('/')}/" if prefix else ""), "**"
    return BucketSpec(
        url=f"{name}://{head}" + (f"?{settings}" if settings else ""),
        prefix=prefix,
        pattern=Pattern(pattern),
        reading=reading_of(pattern, format, options),
        policy=Policy(
            settle_s=settle_s,
            on_change=on_change,
            max_files=max_files,
            max_bytes=max_bytes,
            stretches=stretches,
        ),
    )


class BucketListing:
    """A bucket, or the part of it below a prefix that ends in `/`."""

    def __init__(self, objects: Objects, prefix: str, pattern: Pattern) -> None:
        self._objects = objects
        self._prefix = prefix
        self._matcher = pattern.matcher()

    @property
    def url(self) -> str:
        return f"{self._objects.url}/{self._prefix}"

    def files(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[Found]:
        return (one for one in self.entries(skip, after=after, until=until) if self.wanted(one.path, skip))

    def entries(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[Found]:
        behind = self._prefix + after if after else None
        cut = len(self._prefix)
        try:
            for key, size, etag, modified_at in self._objects.list_foreign(skip, self._prefix, after=behind):
                path = key[cut:]
                if until is not None and path > until:
                    return
                yield Found(path, size, modified_at, etag)
        except ObjectError as error:
            raise SourceUnavailable(f"cannot list {self.url}: {error.message}") from error

    def wanted(self, path: str, skip: Skip) -> bool:
        if listing.is_left_alone(path) or not self._matcher.matches(path):
            return False
        wrong = listing.fault(path)
        if wrong:
            skip(path, wrong)
        return not wrong

    def look(self, paths: Sequence[str]) -> list[Found | None]:
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(paths) or 1)) as pool:
            return list(pool.map(self._look, paths))

    def _look(self, path: str) -> Found | None:
        try:
            return _found(path, self._objects.head(self._prefix + path))
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
        except ObjectMissing as gone:
            raise FileNotFoundError(gone.message) from gone
        return cast(BinaryIO, io.BufferedReader(_Buffered(self._objects, key, size), 1 << 20))


class _Buffered(RangedFile):
    """A ranged file that Python can buffer."""

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def _found(path: str, info: Info) -> Found:
    return Found(path, info.size, info.modified_at, info.etag)
