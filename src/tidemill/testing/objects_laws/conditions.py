"""Test conditional writes: one writer creates an object, and a replacement needs the current etag."""

import random
from functools import partial

import pytest

from tidemill.errors import ObjectConflict, ObjectMissing, UsageError
from tidemill.objects import Objects, Put, try_conditions
from tidemill.testing.objects_laws.laws import ObjectLaws, keys, nonce
from tidemill.testing.threads import together


class ConditionLaws(ObjectLaws):
    """Test that one writer creates an object, and that a writer replaces only what it has read."""

    @pytest.mark.rule("STO-12")
    def test_put_if_absent_says_created_mine_or_other(self, objects: Objects) -> None:
        ours, theirs = nonce(), nonce()
        mine, other = b'{"by": "' + ours + b'"}', b'{"by": "' + theirs + b'"}'
        assert len(mine) == len(other)
        assert objects.put_if_absent("k", mine, ours) is Put.CREATED
        assert objects.put_if_absent("k", mine, ours) is Put.MINE
        assert objects.put_if_absent("k", other, theirs) is Put.OTHER
        assert objects.put_if_absent("k", other + b" ", theirs) is Put.OTHER
        assert objects.put_if_absent("k", mine, ours) is Put.MINE
        assert objects.get("k")[0] == mine

    def test_what_was_deleted_can_be_created(self, objects: Objects) -> None:
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
    def test_of_many_threads_exactly_one_creates(self, objects: Objects) -> None:
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

        def add(who: int) -> None:
            for turn in range(10):
                while True:
                    body, info = objects.get("n")
                    new = b"%d by %d in turn %d" % (int(body.split()[0]) + 1, who, turn)
                    try:
                        objects.put_if_match("n", new, info.etag)
                    except ObjectConflict:
                        continue
                    break

        together(*(partial(add, who) for who in range(4)))
        assert objects.get("n")[0].split()[0] == b"40"

    def test_a_plain_put_is_not_overwritten_by_who_has_not_seen_it(self, objects: Objects) -> None:
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
            assert objects.get("k")[0] == put  # it came first and broke the condition, or it came last

    @pytest.mark.rule("STO-13")
    def test_the_probe_is_content_and_leaves_nothing(self, objects: Objects) -> None:
        assert try_conditions(objects, random.Random(3)).if_match is objects.supports_if_match
        assert keys(objects) == []
