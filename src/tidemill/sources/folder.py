"""A folder as a source: `folder("landing/orders/*.json")`.

Names of files are followed where they are links, folders are not (they may lead in a circle). A file that
cannot be opened is left alone and told of: it is taken when it can be. The folder itself need not be there
yet; while it is missing it is empty, so a disk that was not mounted loses nothing.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from tidemill.errors import BadSource, SourceUnavailable
from tidemill.objects.walk import Entry, walk
from tidemill.sources import listing, patterns
from tidemill.sources.declarations import DEFAULT_POLICY, Policy
from tidemill.sources.listing import Found, Skip
from tidemill.sources.patterns import Pattern
from tidemill.spark.formats import Format, Reading, format_of

SETTLE_S = 2.0


class FolderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which files of which folder, how to read them, and when to take them."""

    root: str
    pattern: Pattern
    reading: Reading
    policy: Policy

    def below(self, base: Path) -> "FolderSpec":
        """With its folder taken from `base` on where it is relative."""
        return msgspec.structs.replace(self, root=str(base / Path(self.root).expanduser()))

    def listing(self) -> "FolderListing":
        return FolderListing(Path(self.root), self.pattern)


def folder(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - what users call it
    settle_s: float = SETTLE_S,
    on_change: str = "warn",
    max_files: int = DEFAULT_POLICY.max_files,
    max_bytes: int = DEFAULT_POLICY.max_bytes,
    stretches: int = 1,
    **options: object,
) -> FolderSpec:
    """Files that others put into a folder.

    >>> folder("landing/orders/*.json").reading.format
    <Format.JSON: 'json'>

    Args:
        path: a folder, or a pattern for paths (`tidemill.sources.patterns`).
        format: json (an object per line), csv, parquet or text; by the ending unless given.
        settle_s: a file is taken when it has not changed for so long.
        on_change: what becomes of a file that changes after it was taken: `warn` (once) or `take` (again).
        max_files: of one lot.
        max_bytes: of one lot, unless a single file is larger.
        stretches: into how many the listing is cut, for nodes to share; worth it from some 10,000 files.
        options: of the format, see `tidemill.spark.formats.Reading`.
    """
    text = os.fspath(path)
    if not text or "\0" in text:
        raise BadSource(f"the folder {text!r}", hint="name a folder, or a pattern for files in it")
    root, pattern = patterns.split(text)
    if not pattern:
        above, _, last = root.rpartition("/")
        if format_of(last) is not None and not root.endswith("/"):
            root, pattern = (above + "/" if above or root.startswith("/") else ""), patterns.literal(last)
        else:
            pattern = "*"
    return FolderSpec(
        root=root or ".",
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


def reading_of(pattern: str, name: str | None, options: dict[str, object]) -> Reading:
    """How to read what a pattern matches."""
    known = [form.value for form in Format]
    if name is not None and name not in known:
        raise BadSource(f"the format {name!r}", hint=f"one of {', '.join(known)}")
    forms = {Format(name)} if name is not None else {format_of(one) for one in patterns.expanded(pattern)}
    form = forms.pop() if len(forms) == 1 else None
    if form is None:
        raise BadSource(
            f"the format of {pattern!r} cannot be told by its ending", hint="give format='json', for example"
        )
    fields = {field for field in Reading.__struct_fields__ if field != "format"}
    strange = sorted(set(options) - fields)
    if strange:
        raise BadSource(f"the option {strange[0]!r}", hint=f"one of {', '.join(sorted(fields))}")
    if form is Format.CSV and ".tsv" in PurePosixPath(pattern).suffixes:
        options = {"separator": "\t", **options}
    try:
        return msgspec.convert({"format": form, **options}, Reading)
    except msgspec.ValidationError as error:
        raise BadSource(f"an option of {form}: {error}", hint="see its type in the reference") from None


class FolderListing:
    """A folder of this machine, or one that all machines share under the same path."""

    def __init__(self, root: Path, pattern: Pattern) -> None:
        self._root = Path(os.path.abspath(root))  # noqa: PTH100 - a link as the root stays what it is called
        self._matcher = pattern.matcher()

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def files(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[Found]:
        """Files by path. Folders are read when they are reached, one per level in memory."""

        def entries(below: str) -> Iterator[Entry[os.DirEntry[str]]]:
            return self._entries(below, skip)

        for path, entry in walk(entries, "", after or None):
            if until is not None and path > until:
                return
            if wrong := listing.fault(path):
                skip(path.encode(errors="backslashreplace").decode(), wrong)
                continue
            try:
                found = entry.stat()
            except OSError:
                continue  # deleted while we listed, or a link that leads nowhere
            yield _found(path, found)

    def entries(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[Found]:
        """The files: folders that can hold none are not entered, and names are looked at before files are."""
        return self.files(skip, after=after, until=until)

    def wanted(self, path: str, skip: Skip) -> bool:
        return True

    def _entries(self, below: str, skip: Skip) -> Iterator[Entry[os.DirEntry[str]]]:
        try:
            inside = os.scandir(self._root / below)
        except (FileNotFoundError, NotADirectoryError):
            if below:
                return  # deleted while we listed
            if self._root.exists():
                raise SourceUnavailable(f"{self._root} is no folder") from None
            return
        except OSError as error:
            if not below:
                raise SourceUnavailable(f"cannot list {self._root}: {error.strerror}") from None
            skip(below, f"the folder cannot be listed: {error.strerror}")
            return
        with inside:
            for entry in inside:
                path = below + entry.name
                if listing.is_left_alone(entry.name):
                    continue
                with contextlib.suppress(OSError):  # deleted while we listed
                    if entry.is_dir(follow_symlinks=False):
                        if self._matcher.enters(path):
                            yield Entry(entry.name, None)
                    elif self._matcher.matches(path) and entry.is_file():
                        yield Entry(entry.name, entry)
                    elif entry.is_symlink() and entry.is_dir() and self._matcher.enters(path):
                        skip(path, "a link to a folder is not followed")

    def look(self, paths: Sequence[str]) -> list[Found | None]:
        return [self._look(path) for path in paths]

    def _look(self, path: str) -> Found | None:
        try:
            found = (self._root / path).stat()
        except OSError:
            return None
        return _found(path, found) if stat.S_ISREG(found.st_mode) else None

    def can_read(self, path: str) -> bool:
        return os.access(self._root / path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)

    def uri(self, path: str) -> str:
        return f"file://{self._root / path}"

    def read_options(self) -> dict[str, str]:
        return {}

    def open(self, path: str) -> BinaryIO:
        return (self._root / path).open("rb")


def _found(path: str, found: os.stat_result) -> Found:
    # Not the inode: a folder that is restored or moved to another disk has the same files as before.
    version = f"{found.st_size:x}-{found.st_mtime_ns:x}"
    return Found(path, found.st_size, found.st_mtime_ns / 1e9, version)
