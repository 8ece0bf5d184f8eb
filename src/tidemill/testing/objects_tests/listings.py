"""Test keys and listings.

A key is either stored exactly as given or refused. No key refers to a path outside the root. A listing is
sorted by key. It can start after a given key and stop at a limit.
"""

import contextlib
import random
from collections.abc import Callable
from itertools import islice

import pytest

from tidemill.errors import BadKey, ObjectError, UsageError
from tidemill.objects import Objects, Put
from tidemill.testing.objects_tests.bodies import ObjectTests, fill, keys, nonce
from tidemill.testing.threads import Racer

STRANGE = [
    *(
        "a=1/b=2",
        "with space",
        " lead",
        "trail ",
        "it's",
        'say "x"',
        "100%",
        "%2e%2e/x",
        "%2F",
        "a%00b",
        "a+b&c;d",
    ),
    *(
        "#frag?query=1",
        "[x]{y}|^`<>",
        "~user/$HOME/*",
        "...",
        "..a/b..",
        ".hidden",
        "-rf",
        "é",
        "e\u0301",
        "日本語",
    ),
    *(
        "😀/🏳️‍🌈",
        "\u202eright-to-left",
        "\u00a0nbsp",
        "CON",
        "aux.txt",
        "a" * 255,
        "é" * 127,
        "/".join(["d" * 99] * 9),
    ),
    *("x/.tidemill/y", ".tidemill2", "tidemill-probe/x"),
]
HOSTILE = [
    *("", "/", "/etc/passwd", "a/", "a//b", "//a", ".", "..", "../x", "a/../../x", "a/..", "a/./b", "./a"),
    *("a\0b", "\0", "a\nb", "a\tb", "a\x7fb", "\x1b[31m", "a\\b", "..\\x", "\ud800", "a" * 256, "é" * 128),
    *("/".join(["d" * 200] * 5), ".tidemill", ".tidemill/scratch/x", ".tidemill/locks/00"),
]


class NameTests(ObjectTests):
    """Test that all backends accept the same keys."""

    @pytest.mark.rule("STO-12")
    def test_strange_keys_are_returned_unchanged(self, objects: Objects) -> None:
        for key in STRANGE:
            assert objects.put(key, key.encode()).key == key
        assert keys(objects) == sorted(STRANGE)
        for key in STRANGE:
            body, info = objects.get(key)
            assert body.decode() == key == info.key
            assert objects.head(key).size == len(body)
            assert objects.put_if_absent(key, mark := nonce(), mark) is Put.OTHER
            assert objects.get_range(key, 0, 1) == body[:1]
        objects.delete_many(STRANGE[::2])
        assert keys(objects) == sorted(STRANGE[1::2])
        for key in STRANGE[1::2]:
            objects.delete(key)
        assert keys(objects) == []

    @pytest.mark.rule("STO-12")
    @pytest.mark.parametrize("key", HOSTILE, ids=ascii)
    def test_hostile_keys_are_refused_by_every_method(self, objects: Objects, key: str) -> None:
        objects.put("kept", b"x")
        mark = nonce()
        for ask in (
            lambda: objects.put(key, b"x"),
            lambda: objects.put_if_absent(key, mark, mark),
            lambda: objects.put_if_match(key, b"x", "etag"),
            lambda: objects.get(key),
            lambda: objects.get_range(key, 0, 1),
            lambda: objects.get_ranges(key, []),
            lambda: objects.head(key),
            lambda: objects.delete(key),
            lambda: objects.delete_many(["kept-not", key]),
        ):
            with pytest.raises(BadKey):
                ask()
        assert keys(objects) == ["kept"]

    @pytest.mark.parametrize(
        "prefix", ["/", "/x", "a//", "../", "a/../b", "x\0", "a\\", ".tidemill/", "\ud800"]
    )
    def test_hostile_prefixes_are_refused(self, objects: Objects, prefix: str) -> None:
        objects.put("a", b"")
        with pytest.raises(BadKey):
            objects.list(prefix)

    def test_an_object_with_the_name_of_a_folder_is_stored_or_refused(self, objects: Objects) -> None:
        objects.put("a/b", b"inside")
        objects.put("c", b"object")
        mark = nonce()
        expected = {"a/b": b"inside", "c": b"object"}
        puts: dict[str, Callable[[], object]] = {
            "a": lambda: objects.put("a", b"folder"),
            "c/d": lambda: objects.put("c/d", b"below"),
            "c/d/e": lambda: objects.put_if_absent("c/d/e", mark, mark),
        }
        for key, put in puts.items():
            with contextlib.suppress(ObjectError):
                put()
                expected[key] = objects.get(key)[0]
        assert keys(objects) == sorted(expected)
        for key, body in expected.items():
            assert objects.get(key)[0] == body


AWKWARD = sorted(
    [
        *("a-", "a-b", "a-c/d", "a.b", "a/b", "a/b-c", "a/b.c", "a/c/d", "a/c-d/e", "a0", "aa/b", "a!"),
        *("a b", "a b c/d", "Z", "_", "b", "b%2Fc", "b+c", "b=1/c=2/d", "b=1-/x", "b'c", 'b"c', "~"),
        *("é", "ê/x", "日本/語", "😀", "z/😀"),
    ]
)
"""Names that sort differently by key and by folder, and others that are hard for servers."""


class ListingTests(ObjectTests):
    """Test that listings are in the order of the key bytes."""

    @pytest.mark.rule("STO-12")
    def test_listing_is_in_the_order_of_key_bytes(self, objects: Objects) -> None:
        fill(objects, AWKWARD)
        listed = keys(objects)
        assert listed == AWKWARD
        assert [key.encode() for key in listed] == sorted(key.encode() for key in listed)

    @pytest.mark.rule("STO-12")
    def test_listing_starts_after_any_key_existing_or_not(self, objects: Objects) -> None:
        fill(objects, AWKWARD)
        between = [
            "",
            "a",
            "a/",
            "a/b",
            "a/c",
            "a/c/",
            "a/c/zz",
            "a//x",
            "b=1",
            "b=1/",
            "b/../c",
            "ê/",
            "z",
            "￿",
        ]
        for after in [*AWKWARD, *between]:
            assert keys(objects, after=after) == [key for key in AWKWARD if key > after], after

    @pytest.mark.rule("STO-12")
    def test_a_prefix_is_characters_not_folders(self, objects: Objects) -> None:
        fill(objects, AWKWARD)
        for prefix in (
            "a",
            "a/",
            "a/b",
            "a/c/",
            "a-",
            "b=1",
            "b=1/c",
            "b=1/c=2/",
            "é",
            "ê/",
            "日",
            "no",
            "no/x",
            "a b",
        ):
            want = [key for key in AWKWARD if key.startswith(prefix)]
            assert keys(objects, prefix) == want, prefix
            for after in ("a-b", "a/b", "a/c", "b", "zzz"):
                assert keys(objects, prefix, after=after) == [key for key in want if key > after], (
                    prefix,
                    after,
                )

    @pytest.mark.rule("STO-12")
    def test_listing_continues_after_a_page(self, objects: Objects) -> None:
        names = sorted(
            [*(f"many/{n:05d}" for n in range(1100)), *(f"wide/{n:03d}/x" for n in range(50)), "z"]
        )
        fill(objects, names)
        assert keys(objects) == names
        assert keys(objects, "many/") == names[:1100]
        assert keys(objects, "many/", after="many/00998", limit=5) == names[999:1004]
        assert keys(objects, after="many/01098") == names[1099:]
        walked: list[str] = []
        while page := keys(objects, after=walked[-1] if walked else None, limit=400):
            walked += page
        assert walked == names
        objects.delete_many(iter(names[:1120]))
        assert keys(objects) == names[1120:]

    def test_listing_stops_at_its_limit(self, objects: Objects) -> None:
        fill(objects, [f"k/{n}" for n in range(9)])
        assert keys(objects, limit=0) == []
        assert keys(objects, limit=3) == ["k/0", "k/1", "k/2"]
        assert keys(objects, limit=99) == [f"k/{n}" for n in range(9)]
        assert [info.key for info in islice(objects.list("k/"), 2)] == ["k/0", "k/1"]
        assert keys(objects, "nothing/") == keys(objects, after="zzz") == []
        with pytest.raises(UsageError):
            objects.list(limit=-1)

    def test_an_empty_root_lists_nothing(self, objects: Objects) -> None:
        assert keys(objects) == []
        objects.put("x/y/z", b"")
        objects.delete("x/y/z")
        assert keys(objects) == []

    def test_unchanged_objects_are_listed_while_others_change(self, objects: Objects) -> None:
        stay = [f"s/{n:03d}/stays" for n in range(30)]
        fill(objects, stay)

        def churn() -> None:
            chance = random.Random(4)
            for _ in range(40):
                key = f"s/{chance.randrange(30):03d}/{chance.choice(['a', 'zz', 'stays-not'])}"
                objects.put(key, b"x")
                objects.delete(key)

        racer = Racer(churn)
        racer.start()
        while racer.is_alive():
            listed = keys(objects, "s/")
            assert [key for key in listed if key.endswith("/stays")] == stay
            assert listed == sorted(listed)
        racer.outcome()

    @pytest.mark.rule("STO-12")
    def test_random_trees_are_listed_like_sorted_strings(self, objects: Objects) -> None:
        chance = random.Random(5)
        names: set[str] = set()
        while len(names) < 120:
            key = "/".join(
                "".join(chance.choices("a-. 0=é", k=chance.randint(1, 2)))
                for _ in range(chance.randint(1, 3))
            )
            parts = key.split("/")
            inside = {"/".join(parts[:n]) for n in range(1, len(parts))}
            if (
                "." in parts
                or ".." in parts
                or names & inside
                or any(name.startswith(key + "/") for name in names)
            ):
                continue
            names.add(key)
        want = sorted(names)
        fill(objects, want)
        assert keys(objects) == want
        for after in chance.sample(want, 25):
            assert keys(objects, after=after) == [key for key in want if key > after], after
