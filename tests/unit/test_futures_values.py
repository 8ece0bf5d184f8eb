import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.futures_bomb import Bomb, exploded
from tests.unit.futures_values import arrays, arrow, plain, same
from tidemill.clock import SYSTEM
from tidemill.errors import (
    BadSignature,
    CannotSerialize,
    CodeNotLoadable,
    CopyCorrupt,
    CopyGone,
    FetchFailed,
    SegmentsFull,
    UsageError,
)
from tidemill.futures.protocol.rows import Location, Result
from tidemill.futures.values import layout, pickling
from tidemill.futures.values.result_storage import INLINE_BYTES, ResultStorage
from tidemill.futures.values.segment_writer import LEDGER, QUOTA, ByteCounters
from tidemill.futures.values.segments import Segments
from tidemill.futures.values.signatures import ClusterKey, Signer
from tidemill.objects import Objects, open_objects

SIGNER = Signer(ClusterKey(bytes(32)))
ID = b"i" * 16
LARGE = np.arange(50_000)


@pytest.fixture
def objects() -> Objects:
    return open_objects("memory://", clock=SYSTEM)


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Segments]:
    with Segments.open("boot", quota_bytes=10**8, root=tmp_path / "root") as segments:
        yield segments


@pytest.fixture
def values(segments: Segments, objects: Objects) -> ResultStorage:
    return ResultStorage(
        SIGNER, node="n", node_epoch=3, address="", writer=segments.writer(), objects=objects
    )


def replace(result: Result, **changes: Any) -> Result:
    return msgspec.structs.replace(result, **changes)


def at(result: Result, **changes: Any) -> Result:
    return replace(result, location=msgspec.structs.replace(result.location, **changes))


@pytest.mark.rule("FUT-28", "FUT-29")
def test_a_result_says_where_it_is_how_large_and_whose(values: ResultStorage, segments: Segments) -> None:
    small = values.store([1, "two"], ID, 7)
    assert small.location == Location("inline")
    assert small.version == 7
    large = values.store(LARGE, ID, 8)
    place = large.location
    assert (place.kind, place.node, place.node_epoch) == ("segment", "n", 3)
    assert large.head == b""
    assert large.size == segments.used_bytes > LARGE.nbytes
    durable = values.store(LARGE, ID, 9, durable=True)
    assert durable.location == Location("object", f"futures/results/{ID.hex()}/9")
    assert values.store([1, "two"], ID, 7, durable=True) == small, "the row is durable"


@given(value=plain | arrays() | arrow(), large=st.booleans(), durable=st.booleans())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_value_comes_back_from_everywhere(
    values: ResultStorage, value: object, large: bool, durable: bool
) -> None:
    value = [value, LARGE] if large else value
    result = values.store(value, ID, 1, durable=durable)
    if large:
        assert result.location.kind == ("object" if durable else "segment")
    assert same(values.load(result, ID), value)
    if result.location.kind == "segment":
        copy = values.clone(result, ID)
        assert copy.location.name != result.location.name
        assert same(values.load(copy, ID), value)


def test_just_up_to_the_limit_it_is_in_the_row(values: ResultStorage) -> None:
    def kind(size: int) -> str:
        return values.store("x" * size, ID, 1).location.kind

    assert kind(INLINE_BYTES - 100) == "inline"
    assert kind(INLINE_BYTES + 100) == "segment"
    assert len(values.store("x" * (INLINE_BYTES - 100), ID, 1).head) < INLINE_BYTES + 100


def test_a_value_of_many_objects_and_no_buffers_is_a_segment_too(values: ResultStorage) -> None:
    value = {str(n): [n, None] for n in range(20_000)}
    result = values.store(value, ID, 1)
    assert result.location.kind == "segment"
    assert values.load(result, ID) == value


def test_a_client_without_segments_stores_objects(objects: Objects, values: ResultStorage) -> None:
    client = ResultStorage(SIGNER, objects=objects)
    result = client.store(LARGE, ID, 0)
    assert result.location.kind == "object"
    assert (values.load(result, ID) == LARGE).all()
    client.delete_object(result)
    client.delete_object(result)
    with pytest.raises(CopyGone):
        values.load(result, ID)
    client.delete_object(values.store(1, ID, 0))


def test_with_nowhere_to_go_it_is_told_what_to_do(objects: Objects) -> None:
    nowhere = ResultStorage(SIGNER)
    with pytest.raises(CannotSerialize, match="no storage for it") as caught:
        nowhere.store(LARGE, ID, 0)
    assert "durable" in caught.value.hint
    with pytest.raises(FetchFailed, match="object storage"):
        nowhere.load(ResultStorage(SIGNER, objects=objects).store(LARGE, ID, 0), ID)
    with pytest.raises(UsageError):
        nowhere.clone(ResultStorage(SIGNER, objects=objects).store(LARGE, ID, 0), ID)
    inline = nowhere.store(1, ID, 0)
    assert nowhere.clone(inline, ID) is inline
    for kind, error in (("actor", UsageError), ("freed", CopyGone)):
        with pytest.raises(error):
            nowhere.load(Result(0, 0, 0, Location(kind)), ID)


def test_a_node_that_is_full_stores_objects_if_there_are_any(segments: Segments, objects: Objects) -> None:
    ByteCounters(segments.folder / LEDGER).write(QUOTA, 100_000)
    with pytest.raises(SegmentsFull):
        ResultStorage(SIGNER, writer=segments.writer()).store(LARGE, ID, 1)
    full = ResultStorage(SIGNER, writer=segments.writer(), objects=objects)
    result = full.store(LARGE, ID, 1)
    assert result.location.kind == "object"
    assert segments.used_bytes == 0


def test_a_result_that_cannot_be_stored_says_why(values: ResultStorage, segments: Segments) -> None:
    with pytest.raises(CannotSerialize, match=r"the result\['gen'\] is a generator"):
        values.store({"gen": (n for n in "ab"), "large": LARGE}, ID, 1)
    assert segments.used_bytes == 0


def test_a_result_that_is_gone_is_told_from_one_that_cannot_be_reached(
    values: ResultStorage, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = values.store(LARGE, ID, 1)
    assert segments.delete(result.location.name)
    with pytest.raises(CopyGone):
        values.load(result, ID)
    with pytest.raises(FetchFailed, match="does not serve results"):
        values.load(at(result, host="another host"), ID)


@pytest.mark.rule("FUT-59")
@pytest.mark.parametrize("kind", ["inline", "segment", "object"])
def test_a_forged_result_is_never_unpickled(values: ResultStorage, segments: Segments, kind: str) -> None:
    bomb = Bomb("result", 0 if kind == "inline" else 100_000)
    forger = ResultStorage(Signer(ClusterKey.new()), writer=segments.writer(), objects=values._objects)
    forged = forger.store(Bomb("forged", len(bomb.padding)), b"k" * 16, 1, durable=kind == "object")
    assert forged.location.kind == kind
    genuine = values.store(bomb, ID, 1, durable=kind == "object")
    other = values.store(bomb, b"j" * 16, 2, durable=kind == "object")
    for result, future_id in [
        (forged, b"k" * 16),
        (forged, ID),
        (replace(forged, signature=genuine.signature), ID),
        (replace(genuine, signature=b""), ID),
        (genuine, b"j" * 16),
        (replace(genuine, version=2), ID),
        (replace(other, signature=genuine.signature), ID),
        (other, ID),
    ]:
        with pytest.raises(BadSignature):
            values.load(result, future_id)
        if kind == "segment":
            used = segments.used_bytes
            with pytest.raises(BadSignature):
                values.clone(result, future_id)
            assert segments.used_bytes == used
    assert exploded == []
    values.load(genuine, ID)
    assert [exploded.pop()] == ["result"], "a genuine one is, so that this would tell"


def test_a_result_put_in_the_place_of_another_is_refused(values: ResultStorage) -> None:
    first, second = values.store(LARGE, ID, 1), values.store(LARGE * 2, ID, 2)
    with pytest.raises(BadSignature):
        values.load(at(first, name=second.location.name), ID)
    row = values.store([1], ID, 3)
    with pytest.raises(BadSignature):
        values.load(replace(first, location=Location("inline"), head=row.head), ID)
    with pytest.raises((BadSignature, CopyCorrupt)):
        values.load(replace(row, location=first.location, size=first.size), ID)


SIZES = struct.Struct("<8sIIQQ32s")


def spoil(kind: str, body: bytearray) -> bytearray:
    magic, form, flags, head, total, digest = SIZES.unpack_from(body)
    match kind:
        case "cut":
            return body[:-1]
        case "cut to the head":
            return body[:64]
        case "almost nothing":
            return body[:10]
        case "empty":
            return bytearray()
        case "longer":
            return body + b"x"
        case "magic":
            magic = b"something"[:8]
        case "format":
            form = 99
        case "head larger than all":
            head = 2**63
        case "head shorter":
            head -= 1
        case "total":
            total += 1
        case "head changed":
            body[70] ^= 1
        case "stream changed":
            body[64 + head + (-head % 64) + 5] ^= 1
        case "zeros":
            return bytearray(len(body))
    SIZES.pack_into(body, 0, magic, form, flags, head, total, digest)
    return body


@pytest.mark.parametrize(
    "kind",
    [
        *("cut", "cut to the head", "almost nothing", "empty", "longer", "magic", "format", "zeros"),
        *("head larger than all", "head shorter", "total", "head changed", "stream changed"),
    ],
)
@pytest.mark.parametrize("place", ["segment", "object"])
def test_a_copy_that_was_damaged_is_told_and_not_unpickled(
    values: ResultStorage, segments: Segments, objects: Objects, place: str, kind: str
) -> None:
    result = values.store(Bomb("damaged", 100_000), ID, 1, durable=place == "object")
    if place == "object":
        objects.put(result.location.name, spoil(kind, bytearray(objects.get(result.location.name)[0])))
    else:
        path = segments.folder / result.location.name.partition("/")[2]
        body = spoil(kind, bytearray(path.read_bytes()))
        path.unlink()
        path.write_bytes(body)
    with pytest.raises(CopyCorrupt):
        values.load(result, ID)
    assert exploded == []


def test_data_that_was_damaged_in_object_storage_is_told(values: ResultStorage, objects: Objects) -> None:
    result = values.store(LARGE, ID, 1, durable=True)
    body = bytearray(objects.get(result.location.name)[0])
    body[-1] ^= 1
    objects.put(result.location.name, body)
    with pytest.raises(CopyCorrupt):
        values.load(result, ID)


def test_a_head_that_lies_about_what_follows_is_told() -> None:
    dumped = pickling.dump(LARGE)
    image = layout.joined(layout.plan(dumped))
    head = msgspec.msgpack.decode(layout.read_head(memoryview(image)), type=layout.LayoutHead)
    assert head.sizes == (LARGE.nbytes,)
    lying = layout.plan(pickling.Dumped(dumped.stream, (pickling.PicklePart(0, memoryview(bytes(10))),)))
    with pytest.raises(CopyCorrupt):
        layout.load(memoryview(layout.joined(lying) + b"x"), lambda head: None, subject="it")


@pytest.mark.rule("FUT-22")
def test_a_result_that_this_process_cannot_load_is_told(
    values: ResultStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for padding in (b"", bytes(100_000)):
        result = values.store((lambda: 1, padding), ID, 1)
        assert values.load(result, ID)[0]() == 1
        with monkeypatch.context() as patch:
            patch.setattr(pickling, "PYTHON", "3.99")
            with pytest.raises(CodeNotLoadable, match=r"this is Python 3\.99"):
                values.load(result, ID)


def test_values_stay_when_their_segment_is_deleted_and_go_with_their_last_user(
    values: ResultStorage, segments: Segments
) -> None:
    result = values.store([LARGE, LARGE + 1], ID, 1)
    first, second = values.load(result, ID)
    segments.delete(result.location.name)

    def mapped() -> bool:
        return str(segments.folder) in Path("/proc/self/maps").read_text()

    assert (first == LARGE).all()
    del first
    assert mapped()
    assert int(second[-1]) == int(LARGE[-1]) + 1
    del second
    assert not mapped()


def test_hundreds_of_results_need_no_descriptors(values: ResultStorage) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    held = [values.load(values.store(LARGE[:3_000], ID, n), ID) for n in range(300)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    assert len(held) == 300
