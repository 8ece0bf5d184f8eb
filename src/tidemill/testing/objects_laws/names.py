"""Test keys: each is returned unchanged or refused, and none leaves the root."""

import contextlib
from collections.abc import Callable

import pytest

from tidemill.errors import BadKey, ObjectError
from tidemill.objects import Objects, Put
from tidemill.testing.objects_laws.laws import ObjectLaws, keys, nonce

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


class NameLaws(ObjectLaws):
    """A key is a key on every backend or on none."""

    @pytest.mark.rule("STO-12")
    def test_strange_keys_come_back_as_they_were(self, objects: Objects) -> None:
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

    def test_an_object_that_is_a_folder_too_is_kept_or_refused_whole(self, objects: Objects) -> None:
        objects.put("a/b", b"inside")
        objects.put("c", b"object")
        mark = nonce()
        kept = {"a/b": b"inside", "c": b"object"}
        puts: dict[str, Callable[[], object]] = {
            "a": lambda: objects.put("a", b"folder"),
            "c/d": lambda: objects.put("c/d", b"below"),
            "c/d/e": lambda: objects.put_if_absent("c/d/e", mark, mark),
        }
        for key, put in puts.items():
            with contextlib.suppress(ObjectError):
                put()
                kept[key] = objects.get(key)[0]
        assert keys(objects) == sorted(kept)
        for key, body in kept.items():
            assert objects.get(key)[0] == body
