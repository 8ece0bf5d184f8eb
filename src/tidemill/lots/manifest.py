"""Manifests: what a lot consists of, object by object (LOT-7, LOT-15, LOT-25).

A lot *is* its manifest: readers read the objects it lists and never list a folder. The state is in the
manifest's name as well, so that a report needs no read (LOT-21). Bodies are JSON, sorted and indented for
people; `schema()` is published with the docs. A reader takes every format up to its own and ignores fields it
does not know; a newer format is refused.
"""

from enum import StrEnum
from typing import Any

import msgspec

from tidemill.errors import ManifestUnreadable

FORMAT = 2
"""What is read. Most manifests are of format 1; one that says which rows count is of format 2."""


class ManifestState(StrEnum):
    """What became of the data a manifest lists."""

    COMPLETE = "complete"  # all of it is there
    PARTIAL = "partial"  # what an attempt stored, or means to store, that is not (yet) a lot
    EMPTY = "empty"  # there was nothing, and that is an answer
    REMOVED = "removed"  # it was there and is deleted


class UriType(StrEnum):
    """What a uri stands for: one object, everything below a folder, or everything that begins with it."""

    IDENTIFIER = "identifier"
    PATH = "path"
    PREFIX = "prefix"


class StoredObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object of a lot."""

    uri: str
    type: UriType = UriType.IDENTIFIER
    size: int = 0
    rows: int | None = None
    format: str = "parquet"
    etag: str = ""
    partition: dict[str, str | None] = {}


class InputLot(msgspec.Struct, frozen=True, kw_only=True):
    """A lot that was read, with the generation that was current when the attempt opened."""

    dataset: str
    version: str
    lot: str
    generation: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bill of materials: of a lot, of one part of it, or of what an attempt means to write."""

    format: int = 1
    state: ManifestState
    dataset: str
    version: str
    lot: str
    generation: int = 0
    attempt: str
    part: str = ""
    comment: str = ""
    inputs: list[InputLot] = []
    objects: list[StoredObject] = []
    parts: list[str] = []  # keys of the parts' own manifests, in a root manifest (LOT-8)
    # Of each part in turn the grains of row identity (65,536 in all) whose rows count, as first and last;
    # none named: all. In a manifest without parts one entry: the grains that its rows lie in. Format 2.
    within: list[list[tuple[int, int]]] = []
    schema_fingerprint: str = ""
    schema: str = (
        ""  # the columns, where no dataset declared them: a view's (Spark's JSON), or new ones (DDL)
    )
    checks: dict[str, int] = {}
    digest: str = ""  # of the content, whatever the files
    created_at: str = ""  # ISO 8601, UTC

    @property
    def rows(self) -> int:
        """Rows of the objects listed here."""
        return sum(item.rows or 0 for item in self.objects)

    @property
    def size(self) -> int:
        """Bytes of the objects listed here."""
        return sum(item.size for item in self.objects)


class _Head(msgspec.Struct):
    format: int = 0


def encode(manifest: Manifest) -> bytes:
    """A manifest as stored."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2) + b"\n"


def decode(body: bytes, name: str = "manifest") -> Manifest:
    """A manifest from its stored bytes; `name` is where it was read, for the error."""
    try:
        head = msgspec.json.decode(body, type=_Head)
        if head.format > FORMAT:
            raise ManifestUnreadable(
                f"{name} has format {head.format}, this release reads up to {FORMAT}", hint="upgrade Tidemill"
            )
        return msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestUnreadable(f"{name} is not a manifest: {error}") from error


def schema() -> dict[str, Any]:
    """The JSON schema of a manifest."""
    return msgspec.json.schema(Manifest)
