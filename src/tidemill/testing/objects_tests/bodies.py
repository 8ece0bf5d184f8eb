"""The base class for tests of object storage, and tests of writing, reading and deleting objects.

If several writers try the same conditional write, only one succeeds. This
holds for creating an object, and for replacing one, which requires its current etag.
"""

import hashlib
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import pytest

from tidemill.errors import ObjectConflict, ObjectMissing, UsageError
from tidemill.objects import Objects, Put, try_conditions
from tidemill.testing.threads import Racer, together

_numbers = itertools.count()


class ObjectTests:
    """The base class, with the fixture `objects` (an empty root) and settings that differ by backend."""

    etags_differ: ClassVar[bool] = True
    """False if the backend's etag is a digest of the body, so that equal bytes always have the same etag."""

    race_width: ClassVar[int] = 8
    """How many threads race for one object."""
    race_rounds: ClassVar[int] = 12
    """How many objects the threads race for, one after the other."""

    @pytest.fixture
    def objects(self) -> Objects:
        """Return a fresh, empty root. Each backend overrides this."""
        raise pytest.UsageError(f"{type(self).__name__} has no fixture `objects`")

    @pytest.fixture
    def objects_url(self) -> str | None:
        """Return the URL, with secrets, for other processes; None if other processes cannot open the root."""
        return None


def nonce() -> bytes:
    """Return a nonce that is unique in this test run."""
    return b"nonce-%012d" % next(_numbers)


def keys(
    objects: Objects, prefix: str = "", *, after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the keys of a listing."""
    return [info.key for info in objects.list(prefix, after=after, limit=limit)]


def fill(objects: Objects, names: list[str]) -> None:
    """Write an object for each name, with the name as body. Several threads write at the same time."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: objects.put(name, name.encode()), names))


MB = 1024 * 1024


class BodyTests(ObjectTests):
    """Test that reads return what was written."""

    @pytest.mark.rule("STO-12")
    @pytest.mark.parametrize("body", [b"", b"\x00", b"plain", bytes(range(256)) * 300], ids=len)
    def test_a_body_is_read_as_it_was_written(self, objects: Objects, body: bytes) -> None:
        objects.put("a/b", body)
        assert objects.get("a/b")[0] == body

    def test_buffers_are_bodies_too(self, objects: Objects) -> None:
        bodies: dict[str, bytearray | memoryview] = {
            "x": bytearray(b"xyz"),
            "v": memoryview(b"-view-")[1:5],
            "w": memoryview(b"abcdefgh").cast("H"),
        }
        for key, body in bodies.items():
            assert objects.put(key, body).size == len(bytes(body))
            assert objects.get(key)[0] == bytes(body)
        mark = nonce()
        assert objects.put_if_absent("m", memoryview(mark), mark) is Put.CREATED
        assert objects.put_if_absent("m", bytearray(mark), mark) is Put.MINE

    def test_a_put_replaces(self, objects: Objects) -> None:
        objects.put("k", b"long and old")
        objects.put("k", b"new")
        assert objects.get("k")[0] == b"new"
        assert keys(objects) == ["k"]

    def test_put_get_head_and_list_return_the_same_info(self, objects: Objects) -> None:
        put = objects.put("a/k", b"12345")
        head = objects.head("a/k")
        assert put[:3] == head[:3] == ("a/k", 5, head.etag)
        assert head.etag
        assert objects.get("a/k")[1] == head
        [listed] = objects.list()
        assert listed[:3] == head[:3]
        assert abs(listed.modified_at - head.modified_at) <= 1  # listings may drop the fraction
        assert abs(put.modified_at - head.modified_at) < 3600

    def test_an_etag_changes_with_the_bytes(self, objects: Objects) -> None:
        first = objects.put("k", b"one").etag
        assert objects.put("k", b"two").etag != first

    def test_an_etag_changes_with_each_write_where_it_is_no_digest(self, objects: Objects) -> None:
        if not self.etags_differ:
            pytest.skip("etags of this provider are digests of the body")
        etags: set[str] = set()
        for _ in range(25):
            etags.add(objects.put("k", b"same").etag)
            objects.delete("k")
            mark = b"nonce-of-one-writer"
            objects.put_if_absent("k", mark, mark)
            etags.add(objects.head("k").etag)
        assert len(etags) == 50

    @pytest.mark.rule("STO-12")
    def test_a_missing_object_raises_object_missing(self, objects: Objects) -> None:
        objects.put("there/x", b"x")
        for key in ("nothing", "there", "there/y", "there/x/y"):
            for ask in (
                objects.get,
                objects.head,
                lambda key: objects.get_range(key, 0, 1),
                lambda key: objects.get_ranges(key, [(0, 1), (9_000_000, 1)]),
            ):
                with pytest.raises(ObjectMissing) as caught:
                    ask(key)
                assert key in str(caught.value)

    @pytest.mark.rule("STO-12")
    def test_deleting_is_permanent_and_may_be_repeated(self, objects: Objects) -> None:
        for key in ("d/a", "d/ab", "d/e/f", "x"):
            objects.put(key, b"")
        objects.delete("d/a")
        objects.delete("d/a")
        objects.delete("d")
        objects.delete("d/ab/c")
        assert keys(objects) == ["d/ab", "d/e/f", "x"]
        objects.delete_many(["d/e/f", "never", "d/ab", "d/e/f"])
        objects.delete_many([])
        assert keys(objects) == ["x"]
        objects.put("d", b"a folder no more")
        assert keys(objects) == ["d", "x"]

    @pytest.mark.rule("STO-12")
    def test_a_range_ends_where_the_object_does(self, objects: Objects) -> None:
        body = bytes(range(100))
        objects.put("r", body)
        objects.put("empty", b"")
        assert objects.get_range("r", 0, 1) == b"\x00"
        assert objects.get_range("r", 10, 20) == body[10:30]
        assert objects.get_range("r", 0, 100) == body
        assert objects.get_range("r", 90, 1000) == body[90:]
        assert objects.get_range("r", 100, 5) == b""
        assert objects.get_range("r", 10_000, 5) == b""
        assert objects.get_range("empty", 0, 5) == b""

    @pytest.mark.rule("STO-12")
    def test_ranges_are_returned_in_the_requested_order(self, objects: Objects) -> None:
        body = random.Random(1).randbytes(3 * MB)
        objects.put("r", body)
        ranges = [(50, 10), (0, 5), (52, 4), (2 * MB, 70), (3 * MB - 1, 9), (3 * MB, 1), (9 * MB, 1), (0, 5)]
        assert objects.get_ranges("r", ranges) == [body[start : start + length] for start, length in ranges]
        assert objects.get_ranges("r", [(5 * MB, 2), (4 * MB, 1)]) == [b"", b""]
        assert objects.get_ranges("r", []) == []

    @pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, 0), (3, -1)])
    def test_invalid_ranges_are_refused(self, objects: Objects, start: int, length: int) -> None:
        objects.put("r", b"0123456789")
        with pytest.raises(UsageError):
            objects.get_range("r", start, length)
        with pytest.raises(UsageError):
            objects.get_ranges("r", [(0, 1), (start, length)])

    @pytest.mark.rule("STO-12")
    def test_bodies_may_be_large(self, objects: Objects) -> None:
        mark = nonce()
        body = random.Random(2).randbytes(10 * MB) + mark
        assert objects.put_if_absent("big/once", body, mark) is Put.CREATED
        assert objects.put_if_absent("big/once", body, mark) is Put.MINE
        objects.put("big/parts", body * 2)
        for key, want in {"big/once": body, "big/parts": body * 2}.items():
            stored, info = objects.get(key)
            assert hashlib.sha256(stored).digest() == hashlib.sha256(want).digest()
            assert info.size == len(want)
        assert objects.get_range("big/parts", 10 * MB - 3, 40) == (body * 2)[10 * MB - 3 : 10 * MB + 37]

    def test_readers_see_one_body_or_the_other(self, objects: Objects) -> None:
        bodies = {bytes([n]) * size for n, size in ((1, 300_000), (2, 100_000), (3, 200_000))}
        objects.put("k", next(iter(bodies)))
        all_written = threading.Event()

        def read() -> int:
            reads = 0
            while not all_written.is_set() or not reads:
                body, info = objects.get("k")
                assert body in bodies
                assert info.size == len(body)
                reads += 1
            return reads

        reader = Racer(read)
        reader.start()
        try:
            for _ in range(10):
                for body in bodies:
                    objects.put("k", body)
        finally:
            all_written.set()
        assert reader.outcome()

    def test_a_folder_that_empties_and_fills_loses_nothing(self, objects: Objects) -> None:
        def churn(name: str) -> None:
            for _ in range(25):
                objects.put(f"deep/er/{name}", b"x")
                objects.delete(f"deep/er/{name}")
            objects.put(f"deep/er/{name}", name.encode())

        together(*(partial(churn, f"n{n}") for n in range(4)))
        assert keys(objects) == [f"deep/er/n{n}" for n in range(4)]
        assert objects.get("deep/er/n2")[0] == b"n2"


class ConditionTests(ObjectTests):
    """Test that only one writer creates an object, and that a writer replaces only what it has read."""

    @pytest.mark.rule("STO-12")
    def test_put_if_absent_says_created_mine_or_other(self, objects: Objects) -> None:
        nonce_a, nonce_b = nonce(), nonce()
        body_a, body_b = b'{"by": "' + nonce_a + b'"}', b'{"by": "' + nonce_b + b'"}'
        assert len(body_a) == len(body_b)
        assert objects.put_if_absent("k", body_a, nonce_a) is Put.CREATED
        assert objects.put_if_absent("k", body_a, nonce_a) is Put.MINE
        assert objects.put_if_absent("k", body_b, nonce_b) is Put.OTHER
        assert objects.put_if_absent("k", body_b + b" ", nonce_b) is Put.OTHER
        assert objects.put_if_absent("k", body_a, nonce_a) is Put.MINE
        assert objects.get("k")[0] == body_a

    def test_a_deleted_object_can_be_created_again(self, objects: Objects) -> None:
        first, second = nonce(), nonce()
        assert objects.put_if_absent("a/k", first, first) is Put.CREATED
        objects.delete("a/k")
        assert objects.put_if_absent("a/k", second, second) is Put.CREATED
        assert objects.put_if_absent("a/k", first, first) is Put.OTHER

    @pytest.mark.rule("STO-12")
    def test_a_body_without_its_nonce_is_refused(self, objects: Objects) -> None:
        for body, mark in ((b"without", b"nonce-000001"), (b"short", b"short"), (b"", b"")):
            with pytest.raises(UsageError, match="nonce"):
                objects.put_if_absent("k", body, mark)
        assert keys(objects) == []

    @pytest.mark.rule("STO-12")
    def test_exactly_one_of_many_threads_creates_an_object(self, objects: Objects) -> None:
        for number in range(self.race_rounds):
            key = f"race/{number}"
            marks = [nonce() for _ in range(self.race_width)]
            answers = together(*(partial(objects.put_if_absent, key, mark, mark) for mark in marks))
            assert sorted(answer.value for answer in answers) == ["created"] + ["other"] * (
                self.race_width - 1
            )
            assert objects.get(key)[0] == marks[answers.index(Put.CREATED)]

    @pytest.mark.rule("STO-12")
    def test_if_match_replaces_only_what_was_seen(self, objects: Objects) -> None:
        first = objects.put("k", b"first")
        second = objects.put_if_match("k", b"second", first.etag)
        assert second[:2] == ("k", 6)
        assert objects.head("k").etag == second.etag
        for etag in (first.etag, '"00000000000000000000000000000000"', "nonsense"):
            with pytest.raises(ObjectConflict):
                objects.put_if_match("k", b"third", etag)
        assert objects.get("k")[0] == b"second"
        [listed] = objects.list()
        objects.put_if_match("k", b"third", listed.etag)
        assert objects.get("k")[0] == b"third"

    def test_if_match_never_creates(self, objects: Objects) -> None:
        etag = objects.put("k", b"x").etag
        objects.delete("k")
        for key in ("k", "never/was"):
            with pytest.raises(ObjectConflict):
                objects.put_if_match(key, b"y", etag)
            with pytest.raises(ObjectMissing):
                objects.get(key)
        assert keys(objects) == []

    def test_if_match_needs_an_etag(self, objects: Objects) -> None:
        objects.put("k", b"x")
        with pytest.raises(UsageError):
            objects.put_if_match("k", b"y", "")

    @pytest.mark.rule("STO-12")
    def test_no_increment_is_lost_under_if_match(self, objects: Objects) -> None:
        objects.put("n", b"0 start")

        def add(writer: int) -> None:
            for turn in range(10):
                while True:
                    body, info = objects.get("n")
                    new = b"%d by %d in turn %d" % (int(body.split()[0]) + 1, writer, turn)
                    try:
                        objects.put_if_match("n", new, info.etag)
                    except ObjectConflict:
                        continue
                    break

        together(*(partial(add, writer) for writer in range(4)))
        assert objects.get("n")[0].split()[0] == b"40"

    def test_if_match_does_not_overwrite_an_unseen_put(self, objects: Objects) -> None:
        for turn in range(20):
            etag = objects.put("k", b"old %d" % turn).etag
            put, swap = b"put %d" % turn, b"swap %d" % turn

            def swaps(etag: str = etag, swap: bytes = swap) -> bool:
                try:
                    objects.put_if_match("k", swap, etag)
                except ObjectConflict:
                    return False
                return True

            together(lambda put=put: bool(objects.put("k", put)), swaps)  # type: ignore[misc]
            assert objects.get("k")[0] == put  # the put came first, so that the swap failed, or it came last

    @pytest.mark.rule("STO-13")
    def test_the_probe_succeeds_and_leaves_no_objects(self, objects: Objects) -> None:
        assert try_conditions(objects, random.Random(3)).if_match is objects.supports_if_match
        assert keys(objects) == []
