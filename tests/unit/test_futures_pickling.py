import collections
import dataclasses
import decimal
import pickle
import sys
import types
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.futures_values import arrays, arrow, plain, same
from tidemill.errors import CodeNotLoadable, CopyGone, UsageError
from tidemill.futures.values import layout, pickling
from tidemill.futures.values.pickling import BYTEARRAY, BYTES, VIEW, Dumped, Handle, dump, load, pack, unpack

LARGE = 1_000_000


class Future(Handle):
    def __init__(self, number: int) -> None:
        self.id = bytes([number]) * 16


def ways(value: object) -> list[Any]:
    """A value by every way that it can take."""
    dumped = dump(value)
    image = memoryview(layout.joined(layout.plan(dumped))).toreadonly()
    return [
        load(dumped.stream, dumped.parts, python=dumped.python),
        unpack(pack(dumped)),
        layout.load(image, lambda head: None, subject="it"),
    ]


@pytest.mark.slow
@given(plain | arrays() | arrow() | st.lists(arrays() | arrow(), max_size=3))
@settings(deadline=None, max_examples=150)
def test_every_value_comes_back_as_it_was(value: object) -> None:
    assert all(same(value, back) for back in ways(value))


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2], ">M8[s]"),
        np.array(5, ">m8[D]"),
        np.zeros((0, 3), ">M8[Y]"),
        np.zeros(2, [("at", ">M8[us]"), ("n", "<i4")]),
        np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(6).reshape(2, 3).astype("M8[s]")),
    ],
    ids=str,
)
def test_arrays_that_numpy_would_change_come_back_as_they_were(array: Any) -> None:
    assert all(same(array, back) for back in ways(array))
    assert all(back.strides == array.strides for back in ways(array) if array.flags.f_contiguous)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(LARGE),
        np.asfortranarray(np.ones((500, 400))),
        np.zeros(LARGE, [("a", "i4"), ("b", "f8")]),
        np.arange(LARGE).astype("datetime64[s]"),
    ],
    ids=["integers", "fortran", "records", "times"],
)
@pytest.mark.rule("FUT-29")
def test_an_array_is_neither_copied_nor_put_into_the_stream(array: Any) -> None:
    dumped = dump({"deep": [array]})
    assert len(dumped.stream) < 1_000
    (part,) = dumped.parts
    assert part.kind == VIEW
    back = load(dumped.stream, dumped.parts)["deep"][0]
    assert back.ctypes.data == array.ctypes.data, "the very same memory"
    assert not back.flags.writeable
    assert not back.flags.owndata
    assert same(back, array)


@pytest.mark.rule("FUT-29")
def test_an_arrow_table_is_neither_copied_nor_put_into_the_stream() -> None:
    table = pa.table({"n": pa.array(range(LARGE // 10)), "s": pa.array(["ab"] * (LARGE // 10))})
    dumped = dump(table)
    assert len(dumped.stream) < 2_000
    back = load(dumped.stream, dumped.parts)
    assert back.equals(table)
    for name in ("n", "s"):
        here = [buffer.address for buffer in back[name].chunk(0).buffers() if buffer is not None]
        there = [buffer.address for buffer in table[name].chunk(0).buffers() if buffer is not None]
        assert here == there, "the very same memory"


@pytest.mark.parametrize("size", [64 * 1024, LARGE])
def test_large_bytes_are_parts_at_any_depth_and_the_rest_of_the_stream_is_right(size: int) -> None:
    body, array = b"x" * size, bytearray(b"y" * size)
    value = [1, {"a": (body, array, "text" * size)}, body, {"b": array}, 2**70, b"small"]
    dumped = dump(value)
    assert [part.kind for part in dumped.parts] == [BYTES, BYTEARRAY]
    assert len(dumped.stream) < 5 * size
    back = load(dumped.stream, dumped.parts)
    assert back == value
    assert back[1]["a"][0] is back[2], "one object stays one"
    assert back[1]["a"][1] is back[3]["b"]
    back[3]["b"][0] = 0  # a bytearray is the reader's own
    assert array[0] == ord("y")


def test_bytes_and_arrays_keep_their_order() -> None:
    value = [np.full(9, 1), b"2" * LARGE, np.full(9, 3), bytearray(b"4" * LARGE), b"2" * LARGE, np.full(9, 5)]
    assert all(same(value, back) for back in ways(value))


class OddFile(bytearray):
    """A bytearray of somebody's own class, which pickle takes apart in another way."""


def test_a_subclass_of_bytes_stays_one() -> None:
    value = OddFile(b"z" * LARGE)
    for back in ways(value):
        assert type(back) is OddFile
        assert back == value


def test_pickle_says_large_bytes_in_the_way_that_we_rewrite() -> None:
    """If a Python says it otherwise, values stay right and only get slower: this tells that it happened."""
    assert len(dump([b"x" * LARGE]).stream) < 100
    assert len(dump([bytearray(LARGE)]).stream) < 100


def test_a_slice_of_a_large_arrow_value_is_small() -> None:
    table = pa.table({"n": pa.array(range(LARGE)), "s": pa.array([str(n) for n in range(LARGE)])})
    cut = table.slice(1000, 10)
    for value in (cut, cut.to_batches()[0], cut["s"], cut["s"].chunk(0)):
        dumped = dump([value])
        assert dumped.size < 10_000
        assert same(load(dumped.stream, dumped.parts)[0], value)


def test_small_arrays_of_results_are_read_only_like_large_ones() -> None:
    for back in ways(np.arange(3)):
        assert not back.flags.writeable


def test_a_lambda_and_a_class_of_no_module_go_by_value() -> None:
    @dataclasses.dataclass
    class Point:
        x: int

    factor = 3
    for back in ways((lambda n: n * factor, Point)):
        function, point = back
        assert function(2) == 6
        assert point(4).x == 4


def test_a_function_of_a_module_goes_by_reference() -> None:
    dumped = dump(collections.Counter)
    assert len(dumped.stream) < 100
    assert dumped.python == ""
    assert ways(collections.Counter) == [collections.Counter] * 3


@pytest.mark.rule("FUT-22")
def test_code_by_value_is_for_one_version_of_python() -> None:
    dumped = dump(lambda: 1)
    assert dumped.python == pickling.PYTHON
    with pytest.raises(CodeNotLoadable, match=r"for Python 2\.7") as caught:
        load(dumped.stream, dumped.parts, python="2.7", subject="the function")
    assert "one Python version" in caught.value.hint
    assert dump([1, decimal.Decimal(1), np.arange(3), int, type(None)]).python == "", (
        "plain values are for any"
    )


def test_handles_become_inputs_at_any_depth_and_arrive_as_values() -> None:
    @dataclasses.dataclass
    class Job:
        source: object
        more: list[object]

    pair = collections.namedtuple("pair", "x y")
    value = {
        "list": [Future(1), [Future(2)]],
        "tuple": (Future(1), pair(Future(3), 0)),
        "dict": {"k": {"deep": Future(4)}},
        "job": Job(Future(5), [Future(6)]),
        "set": types.SimpleNamespace(it=Future(2)),
    }
    dumped = dump(value, handles=True)
    assert set(dumped.inputs) == {bytes([n]) * 16 for n in range(1, 7)}
    assert len(dumped.inputs) == 6, "each once"
    back = load(
        dumped.stream, dumped.parts, python=dumped.python, resolve=lambda future_id: f"result {future_id[0]}"
    )
    assert back["list"] == ["result 1", ["result 2"]]
    assert back["tuple"] == ("result 1", ("result 3", 0))
    assert back["dict"] == {"k": {"deep": "result 4"}}
    assert (back["job"].source, back["job"].more) == ("result 5", ["result 6"])
    assert back["set"].it == "result 2"


def test_a_handle_outside_arguments_is_a_value_like_any_other() -> None:
    handle = Future(7)
    back = ways([handle])[0][0]
    assert type(back) is Future
    assert back.id == handle.id
    assert dump([handle]).inputs == ()


def test_arguments_with_handles_are_not_loaded_without_their_results() -> None:
    dumped = dump([Future(1)], handles=True)
    with pytest.raises(UsageError, match="contain futures"):
        load(dumped.stream, dumped.parts)

    def gone(future_id: bytes) -> object:
        raise CopyGone("it is gone")

    with pytest.raises(CopyGone):  # not taken for trouble with the code
        load(dumped.stream, dumped.parts, resolve=gone)


def test_loading_within_loading_keeps_its_own_results() -> None:
    inner = pack(dump([Future(2)], handles=True))
    outer = dump([Future(1), Future(3)], handles=True)

    def resolve(future_id: bytes) -> object:
        return unpack(inner, resolve=lambda _: "inner") if future_id[0] == 1 else "outer"

    assert load(outer.stream, outer.parts, resolve=resolve) == [["inner"], "outer"]


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("vanishing")
    exec("def f(): return 1\nclass C: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "vanishing", module)
    return module


@pytest.mark.rule("FUT-22")
def test_a_missing_module_is_named(vanishing: types.ModuleType) -> None:
    content = pack(dump([vanishing.C()]))
    del sys.modules["vanishing"]
    with pytest.raises(CodeNotLoadable, match="an argument needs the module 'vanishing'") as caught:
        unpack(content, subject="an argument")
    assert caught.value.module == "vanishing"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.rule("FUT-22")
def test_a_module_without_the_name_is_told_apart(vanishing: types.ModuleType) -> None:
    content = pack(dump(vanishing.f))
    del vanishing.f
    with pytest.raises(CodeNotLoadable, match=r"is missing from.*f") as caught:
        unpack(content, subject="the function")
    assert caught.value.module == ""


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _raise, (self.error,)


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyError("k"), RecursionError("deep")])
def test_whatever_loading_raises_is_one_typed_error(error: BaseException) -> None:
    dumped = dump(Raises(error))
    with pytest.raises(CodeNotLoadable, match=type(error).__name__):
        load(dumped.stream, dumped.parts)


def test_a_lack_of_memory_stays_one() -> None:
    dumped = dump(Raises(MemoryError()))
    with pytest.raises(MemoryError):
        load(dumped.stream, dumped.parts)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\x94\xc4", pack(dump([1, 2]))[:-3], pack(dump([1, 2])) + b"x"]
)
def test_bytes_that_are_no_value_are_a_typed_error(content: bytes) -> None:
    with pytest.raises(CodeNotLoadable):
        unpack(content)


def test_scalars_need_no_pickler_of_ours() -> None:
    for value in (None, True, 3, 2.5, "x"):
        assert dump(value) == Dumped(pickle.dumps(value, 5))
