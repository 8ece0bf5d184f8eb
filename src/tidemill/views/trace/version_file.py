"""Version files: store a version in parts, so that a task reads only its share.

    head        a line of JSON: the format, and the size and checksum of the directory
    directory   JSON: name, step, code, the step of each trace, and a row for each section
    sections    the pieces of run files, compressed

A section has the pieces of one part of hash space. There are 1, 2, 4, … 256 parts, so many that each section
has about `SECTION_RUNS` pieces. The first section has the pieces that are in several parts: every task reads
it. A task of one range reads the head and the directory with one request, and with another one the sections
of its range, which are next to each other.

`put_if_absent` writes the file under a unique name, which is also its nonce.

Format 1 has all pieces as JSON. For a large group, each task took hundreds of milliseconds to decode it. The
groups of earlier releases keep it, so that the earlier release can still continue them.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tidemill import crash
from tidemill.errors import BadKey, ObjectConflict, ObjectMissing, TraceCorrupt, TraceFormat, TraceMissing
from tidemill.objects.key import check_keys
from tidemill.objects.port import Objects, Put
from tidemill.views.trace.hash_space import ALL, GRAINS, SLICES, HashRange
from tidemill.views.trace.run_table import (
    COLUMNS,
    FILE,
    HIGH,
    LOW,
    TRACE,
    Numbers,
    RunTable,
)
from tidemill.views.trace.version import FORMAT, TraceVersion

SECTION_RUNS = 512
"""About how many pieces a section has."""

FIRST_BYTES = 64 * 1024
"""How much of a file a task reads first: the head, the directory, and all of most files."""

_CODEC = "zstd"
_ROW_BYTES = COLUMNS * 8
_MOST_NAME_BYTES = 1024


def write_version(objects: Objects, key: str, version: TraceVersion) -> None:
    """Write a version file under a new key, which contains the attempt that writes it."""
    crash.point("views.trace.before_version")
    put = objects.put_if_absent(key, encode_version(version, key), nonce=json.dumps(key).encode())
    if put is Put.OTHER:
        raise ObjectConflict(f"{objects.url} already has a version file {key!r} with different content")
    crash.point("views.trace.after_version")


def read_version(objects: Objects, key: str, within: HashRange = ALL) -> TraceVersion:
    """Read a version file, or only the pieces in a range; errors name the file."""
    try:
        if within == ALL:
            return decode_version(objects.get(key)[0], key)
        return _read_share(objects, key, within)
    except ObjectMissing as error:
        raise TraceMissing(f"{objects.url} has no version file {key!r}") from error


def _read_share(objects: Objects, key: str, within: HashRange) -> TraceVersion:
    start = objects.get_range(key, 0, FIRST_BYTES)
    with _damage_of(key):
        head = _head(start, key)
    if head.format == 1:
        version = decode_version(objects.get(key)[0], key)
        return replace(version, runs=version.runs.within(*within.grains))
    if head.end > len(start):
        start += objects.get_range(key, len(start), head.end - len(start))
    with _damage_of(key):
        directory = _directory(start, head)
    wanted = [section for section in directory.sections if section.overlaps(within)]
    missing = [section for section in wanted if section.end > len(start)]
    fetched = objects.get_ranges(key, [(section.start, section.length) for section in missing])
    bodies = dict(zip(missing, fetched, strict=True))
    with _damage_of(key):
        parts = [bodies.get(section, start[section.start : section.end]) for section in wanted]
        version = _version(directory, wanted, parts)
    return replace(version, runs=version.runs.within(*within.grains))


def decode_version(body: bytes, name: str) -> TraceVersion:
    """Decode a version file."""
    with _damage_of(name):
        head = _head(body, name)
        if head.format == 1:
            return _decode_format_1(body, head)
        directory = _directory(body, head)
        if len(body) != max((section.end for section in directory.sections), default=head.end):
            raise ValueError("it has another size than its directory says")
        bodies = [body[section.start : section.end] for section in directory.sections]
        return _version(directory, directory.sections, bodies)


def encode_version(version: TraceVersion, name: str) -> bytes:
    """Encode a version file."""
    if version.format == 1:
        return _encode_format_1(version, name)
    table = version.runs
    sections, bodies = [], []
    for first, last, rows in _sections(table.numbers):
        files, numbers = _local_files(table.files, rows)
        raw = _shuffled(numbers) + msgspec.json.encode(files)
        packed = pa.compress(raw, codec=_CODEC, asbytes=True)
        sections.append((first, last, len(packed), len(raw), len(numbers), zlib.crc32(packed)))
        bodies.append(packed)
    fields = {
        "name": name,
        "step": version.step,
        "code": version.code,
        "steps": dict(sorted(version.steps.items())),
        "traces": table.traces,
        "sections": sections,
    }
    directory = _json(fields)
    head = {"format": version.format, "directory": len(directory), "crc": zlib.crc32(directory)}
    return b"".join([_json(head), b"\n", directory, *bodies])


class _Head(NamedTuple):
    """The first line: the format, a checksum, and where the directory starts and ends."""

    format: int
    crc: int
    start: int
    end: int


class _Section(NamedTuple):
    """A section: its slices of hash space, and its place in the file.

    Args:
        first: the first slice; 0 in the section of pieces that are in several parts.
        last: the last slice.
        start: its first byte in the file.
        length: how many bytes it has.
        raw: how many bytes it has when it is decompressed.
        pieces: how many pieces it has.
        crc: the checksum of its bytes.
    """

    first: int
    last: int
    start: int
    length: int
    raw: int
    pieces: int
    crc: int

    @property
    def end(self) -> int:
        return self.start + self.length

    def overlaps(self, within: HashRange) -> bool:
        return self.first <= within.last and self.last >= within.first


class _Directory(NamedTuple):
    """What a file says about its sections, and the fields of the version."""

    step: int
    code: str
    steps: dict[str, int | None]
    traces: tuple[str, ...]
    sections: list[_Section]
    format: int


def _head(body: bytes, name: str) -> _Head:
    first, newline, _ = body.partition(b"\n")
    if not newline:
        raise ValueError("it has no second line")
    fields = json.loads(first)
    form, crc = int(fields["format"]), int(fields["crc"])
    if form > FORMAT:
        raise TraceFormat(f"version file {name!r} has format {form}; this release reads up to {FORMAT}")
    if form < 1:
        raise ValueError(f"its format is {form}")
    start = len(first) + 1
    return _Head(form, crc, start, len(body) if form == 1 else start + _natural(fields["directory"]))


def _directory(body: bytes, head: _Head) -> _Directory:
    fields = _checked(body[head.start : head.end], head.crc)
    at, sections = head.end, []
    for first, last, length, raw, pieces, crc in fields["sections"]:
        section = _Section(*map(_natural, (first, last, at, length, raw, pieces, crc)))
        most_raw = section.pieces * (_ROW_BYTES + _MOST_NAME_BYTES) + len("[]")
        if not section.first <= section.last < SLICES or section.raw > most_raw:
            raise ValueError(f"a section has impossible values: {section}")
        sections.append(section)
        at = section.end
    traces = fields["traces"]
    if not isinstance(traces, list) or not all(isinstance(name, str) for name in traces):
        raise ValueError("the name of a trace is not text")
    if sorted(set(traces)) != traces:
        raise ValueError("the names of traces are not sorted")
    step, code, steps = int(fields["step"]), str(fields["code"]), _steps(fields["steps"])
    return _Directory(step, code, steps, tuple(traces), sections, head.format)


def _version(directory: _Directory, sections: Sequence[_Section], bodies: Sequence[bytes]) -> TraceVersion:
    """Return the version with the pieces of these sections."""
    files: dict[str, int] = {}
    tables: list[Numbers] = []
    for section, body in zip(sections, bodies, strict=True):
        numbers, names = _decode_section(section, body, len(directory.traces))
        known = np.array([files.setdefault(name, len(files)) for name in names], np.int64)
        numbers[:, FILE] = known[numbers[:, FILE]]
        tables.append(numbers)
    rows = np.concatenate(tables) if tables else np.empty((0, COLUMNS), np.int64)
    rows = rows[np.argsort(rows[:, TRACE], kind="stable")]
    table = RunTable(directory.traces, tuple(files), rows)
    return TraceVersion(directory.step, directory.code, directory.steps, table, directory.format)


# --- sections


def _sections(numbers: Numbers) -> list[tuple[int, int, Numbers]]:
    """Divide pieces into sections: first those in several parts of hash space, then those of each part."""
    parts = 1
    while parts < SLICES and len(numbers) > SECTION_RUNS * parts:
        parts *= 2
    grains = GRAINS // parts
    low, high = numbers[:, LOW] // grains, numbers[:, HIGH] // grains
    part = np.where(low == high, low + 1, 0).astype(np.int16)
    order = np.argsort(part, kind="stable")
    bounds, numbers = np.searchsorted(part[order], np.arange(parts + 2)), numbers[order]
    slices = SLICES // parts
    sections = []
    for at, (start, end) in enumerate(pairwise(bounds.tolist())):
        if start < end:
            first, last = ((at - 1) * slices, at * slices - 1) if at else (0, SLICES - 1)
            sections.append((first, last, numbers[start:end]))
    return sections


def _local_files(files: Sequence[str], numbers: Numbers) -> tuple[list[str], Numbers]:
    """Return the files of a section's pieces, and the pieces with indexes into them."""
    used, local = np.unique(numbers[:, FILE], return_inverse=True)
    numbers = numbers.copy()
    numbers[:, FILE] = local
    return [files[at] for at in used.tolist()], numbers


def _shuffled(numbers: Numbers) -> bytes:
    """Return the columns: of each, all lowest bytes, then all next ones, and so on (see `byte_shuffle`)."""
    octets = np.ascontiguousarray(numbers.T.astype("<i8")).view(np.uint8)
    return octets.reshape(COLUMNS, -1, 8).transpose(0, 2, 1).tobytes()


def _unshuffled(raw: bytes, count: int) -> Numbers:
    octets = np.frombuffer(raw, np.uint8, count * _ROW_BYTES).reshape(COLUMNS, 8, count)
    columns = np.ascontiguousarray(octets.transpose(0, 2, 1)).view("<i8").reshape(COLUMNS, count)
    return np.array(columns.T, np.int64, order="C")


def _decode_section(section: _Section, body: bytes, traces: int) -> tuple[Numbers, list[str]]:
    if len(body) != section.length or zlib.crc32(body) != section.crc:
        raise ValueError("a section does not match its checksum")
    raw = pa.decompress(body, decompressed_size=section.raw, codec=_CODEC, asbytes=True)
    numbers = _unshuffled(raw, section.pieces)
    names = _names(json.loads(raw[section.pieces * _ROW_BYTES :]))
    _check_pieces(numbers, traces, len(names))
    return numbers, names


def _check_pieces(numbers: Numbers, traces: int, files: int) -> None:
    trace, file, low, high, offset, length, head, rows = numbers.T
    valid = (trace >= 0) & (trace < traces) & (file >= 0) & (file < files)
    valid &= (low >= 0) & (low <= high) & (high < GRAINS)
    valid &= (offset >= 0) & (head > 0) & (head <= length) & (rows >= 0)
    if not valid.all():
        raise ValueError(f"a piece has impossible values: {numbers[~valid][0].tolist()}")


# --- format 1


def _encode_format_1(version: TraceVersion, name: str) -> bytes:
    files = sorted(version.files())
    number = {file: at for at, file in enumerate(files)}
    traces = {
        trace: [[number[entry.file], *entry[1:]] for entry in entries]
        for trace, entries in sorted(version.traces.items())
    }
    fields = {"name": name, "step": version.step, "code": version.code}
    body = _json({**fields, "steps": dict(sorted(version.steps.items())), "files": files, "traces": traces})
    return _json({"format": 1, "crc": zlib.crc32(body)}) + b"\n" + body


def _decode_format_1(body: bytes, head: _Head) -> TraceVersion:
    fields = _checked(body[head.start :], head.crc)
    files = _names(fields["files"])
    traces = sorted(fields["traces"])
    rows = [(at, *entry) for at, trace in enumerate(traces) for entry in fields["traces"][trace]]
    if not all(type(number) is int for row in rows for number in row):
        raise ValueError("an entry has a value that is not an integer")
    numbers = np.array(rows, np.int64).reshape(-1, COLUMNS)
    _check_pieces(numbers, len(traces), len(files))
    table = RunTable(traces, files, numbers)
    return TraceVersion(int(fields["step"]), str(fields["code"]), _steps(fields["steps"]), table, 1)


# --- JSON


_DAMAGE = (
    BadKey,
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
    OSError,
)


@contextmanager
def _damage_of(name: str) -> Iterator[None]:
    """Report anything that a damaged file causes as `TraceCorrupt`."""
    try:
        yield
    except _DAMAGE as error:
        raise TraceCorrupt(f"version file {name!r} is damaged: {error!r:.300}") from error


def _checked(body: bytes, crc: int) -> Any:
    if zlib.crc32(body) != crc:
        raise ValueError("its content does not match its checksum")
    return json.loads(body)


def _names(names: Any) -> list[str]:
    if not isinstance(names, list):
        raise ValueError("the names of files are not a list")  # noqa: TRY004 - one kind of damage
    if not all(type(name) is str for name in names):
        raise ValueError("the name of a file is not text")
    check_keys(names)
    return names


def _steps(steps: Any) -> dict[str, int | None]:
    if not all(step is None or type(step) is int for step in steps.values()):
        raise ValueError("a step is not an integer")
    return dict(steps)


def _natural(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r:.50} is not a natural number")
    return number


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
