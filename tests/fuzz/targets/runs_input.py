"""Damaged run files and version files: reading a trace gives its rows, or an error that names the file."""

import functools
import json
import random
import zlib
from typing import Any

from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import damaged, mutated_value
from tests.unit.test_views_traces import TraceHistory, content, numbered
from tidemill.errors import TraceError
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.run_file import _HEADER
from tidemill.views.trace.version_file import read_version, write_version

CASES = 150
RUN, VERSION = "runs/00000001", "versions/1"
KINDS = ("run", "run", "header", "version", "version values")


def generate(rng: random.Random) -> dict[str, Any]:
    return {"kind": rng.choice(KINDS), "seed": rng.randrange(2**40), "small": rng.random() < 0.8}


@functools.cache
def _stored(*, small: bool) -> tuple[dict[str, bytes], Any]:
    """Return the objects of a trace, and its rows."""
    objects = MemoryObjects(FakeClock())
    history = TraceHistory(objects)
    history.step(numbered(40 if small else 9_000, random.Random(2)))
    write_version(objects, VERSION, history.version)
    return {key: objects.get(key)[0] for key in (RUN, VERSION)}, content(history.trace())


def check(case: dict[str, Any]) -> None:
    rng = random.Random(case.get("seed", 0))
    bodies, rows = _stored(small=case.get("small", True))
    objects = MemoryObjects(FakeClock())
    for key, body in bodies.items():
        objects.put(key, body)
    kind = case.get("kind", "run")
    match kind:
        case "run":
            objects.put(RUN, damaged(rng, bodies[RUN]))
        case "header":
            objects.put(RUN, _with_header(rng, bodies[RUN]))
        case "version":
            objects.put(VERSION, damaged(rng, bodies[VERSION]))
        case "version values":
            objects.put(VERSION, _with_values(rng, bodies[VERSION]))
    history = TraceHistory(objects)
    try:
        history.versions.append(read_version(objects, VERSION))
        history.cache = Cache(objects, None)
        read = content(history.trace())
    except TraceError as error:
        check_refusal(error)
        return
    if kind in ("run", "version"):  # the checksums are right only if nothing was changed
        assert read == rows, "a damaged file gives other rows"


def _with_header(rng: random.Random, body: bytes) -> bytes:
    """Change the header of a run: its fields, or the directory of its batches with a matching checksum."""
    if rng.random() < 0.5:
        return damaged(rng, body[: _HEADER.size]) + body[_HEADER.size :]
    magic, form, count, schema_bytes, stores_hash, _ = _HEADER.unpack_from(body)
    size = count * 44 + schema_bytes
    rest = bytearray(body[_HEADER.size : _HEADER.size + size])
    changed = damaged(rng, bytes(rest))
    changed = (changed + bytes(size))[:size]
    head = _HEADER.pack(magic, form, count, schema_bytes, stores_hash, zlib.crc32(changed, stores_hash))
    return head + changed + body[_HEADER.size + size :]


def _with_values(rng: random.Random, body: bytes) -> bytes:
    """Change the values of a version file, with a matching checksum."""
    first, _, rest = body.partition(b"\n")
    head = json.loads(first)
    fields, sections = json.loads(rest[: head["directory"]]), rest[head["directory"] :]
    if rng.random() < 0.2:
        head = mutated_value(rng, head)
    changed = json.dumps(mutated_value(rng, fields)).encode(errors="replace")
    if isinstance(head, dict) and {"crc", "directory"} <= head.keys():
        head |= {"crc": zlib.crc32(changed), "directory": len(changed)}
    return json.dumps(head).encode(errors="replace") + b"\n" + changed + sections
