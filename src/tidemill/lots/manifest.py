"""Manifests: lists of the objects that lots consist of (LOT-7, LOT-15, LOT-25).

The manifest defines the lot: readers read the objects it lists and never list a folder. The manifest's name
contains its state, so a report does not have to read the manifest (LOT-21). Manifests are JSON, sorted and
indented for people to read; `schema()` is published with the docs. A reader accepts its own format version
and earlier ones, and ignores unknown fields. It refuses a newer version.
"""

from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec

from tidemill.errors import ManifestUnreadable

FORMAT = 2
"""The newest format that this release reads. Manifests that select some rows of their objects have format 2,
all others have format 1."""


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Grain: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=65_536)]
"""A row's identity puts it into one of 65,536 grains."""


class ManifestState(StrEnum):
    """The state of the data that a manifest lists."""

    COMPLETE = "complete"  # all data is stored
    PARTIAL = "partial"  # an attempt has stored the data, or intends to; it is not a lot yet
    EMPTY = "empty"  # the lot has no data
    REMOVED = "removed"  # the lot was deleted


class UriType(StrEnum):
    """What a URI identifies: one object, everything below a folder, or everything with this prefix."""

    IDENTIFIER = "identifier"
    PATH = "path"
    PREFIX = "prefix"


class StoredObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object of a lot."""

    uri: str
    type: UriType = UriType.IDENTIFIER
    size: Count = 0
    rows: Count | None = None
    format: str = "parquet"
    etag: str = ""
    partition: dict[str, str | None] = {}


class InputLot(msgspec.Struct, frozen=True, kw_only=True):
    """A lot that was read, in the generation that was current when the attempt opened."""

    dataset: str
    version: str
    lot: str
    generation: Count


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a lot or of one part of it, or the data that an attempt intends to write."""

    format: int = 1
    state: ManifestState
    dataset: str
    version: str
    lot: str
    generation: Count = 0
    attempt: str
    part: str = ""
    comment: str = ""
    inputs: list[InputLot] = []
    objects: list[StoredObject] = []
    parts: list[str] = []  # the keys of the parts' manifests, in a root manifest (LOT-8)
    # Which rows count (format 2). For each part, this lists ranges of grains, as first and last; an empty
    # list means all. A manifest without parts has one entry, for its own rows.
    within: list[list[tuple[Grain, Grain]]] = []
    schema_fingerprint: str = ""
    # The columns, if no dataset declares them: those of a view (Spark's JSON), or new ones (DDL).
    schema: str = ""
    checks: dict[str, Count] = {}
    digest: str = ""  # of the content; independent of files and layout
    created_at: str = ""  # ISO 8601, UTC

    def __post_init__(self) -> None:
        if self.within and len(self.within) != max(1, len(self.parts)):
            raise ValueError(f"{len(self.within)} entries in `within` for {len(self.parts)} parts")
        for first, last in chain.from_iterable(self.within):
            if first > last:
                raise ValueError(f"the range of grains {first} to {last} is empty")

    @property
    def rows(self) -> int:
        """The number of rows in the listed objects."""
        return sum(item.rows or 0 for item in self.objects)

    @property
    def size(self) -> int:
        """The total size of the listed objects, in bytes."""
        return sum(item.size for item in self.objects)


class _Head(msgspec.Struct):
    format: int = 0


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest for storage."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2) + b"\n"


def decode(body: bytes, name: str = "manifest") -> Manifest:
    """Decode a stored manifest; error messages mention `name`."""
    try:
        head = msgspec.json.decode(body, type=_Head)
        if head.format > FORMAT:
            raise ManifestUnreadable(
                f"{name} has format {head.format}; this release reads up to {FORMAT}", hint="upgrade Tidemill"
            )
        return msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestUnreadable(f"{name} is not a manifest: {error}") from error


def schema() -> dict[str, Any]:
    """Return the JSON schema of manifests."""
    return msgspec.json.schema(Manifest)
