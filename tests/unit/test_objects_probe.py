"""The probe, on storages that each have one fault."""

import random
import threading
from collections.abc import Iterator

import pytest

from tidemill.clock import SYSTEM
from tidemill.errors import ConditionsIgnored, ObjectUnavailable, UsageError
from tidemill.objects import Body, ObjectInfo, Probed, try_conditions
from tidemill.objects.memory import MemoryObjects
from tidemill.testing.objects_tests.bodies import keys
from tidemill.testing.threads import STUCK_S


class IgnoresCreate(MemoryObjects):
    def _create(self, key: str, body: Body) -> bool:
        self._put(key, body)
        return True


class LiesAboutCreate(MemoryObjects):
    """Answers that it exists, and overwrites."""

    def _create(self, key: str, body: Body) -> bool:
        try:
            return super()._create(key, body)
        finally:
            self._put(key, body)


class IgnoresMatch(MemoryObjects):
    def _put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo:
        return self._put(key, body)


class Racy(MemoryObjects):
    """Looks, waits until another looks too, then acts: right one after the other, wrong at once."""

    def __init__(self) -> None:
        super().__init__(SYSTEM)
        self.meeting = threading.Barrier(2)

    def meet(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.meeting.wait(STUCK_S)


class RacyCreate(Racy):
    def _create(self, key: str, body: Body) -> bool:
        absent = key not in self._bodies
        self.meet()
        if absent:
            self._put(key, body)
        return absent


class RacyMatch(Racy):
    def _put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo:
        current = self._head(key).etag
        self.meet()
        return super()._put_if_match(key, body, self._head(key).etag if current == etag else etag)


class LacksMatch(MemoryObjects):
    def _put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo:
        raise UsageError("not implemented")


class ListsByFolder(MemoryObjects):
    def _list(self, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        infos = sorted(super()._list(prefix, None), key=lambda info: info.key.split("/"))
        return (info for info in infos if after is None or info.key.split("/") > after.split("/"))


class FailsToRead(MemoryObjects):
    def _get(self, key: str) -> tuple[bytes, ObjectInfo]:
        raise ObjectUnavailable("no answer")


@pytest.mark.rule("STO-13")
@pytest.mark.parametrize(
    "objects",
    [IgnoresCreate(SYSTEM), LiesAboutCreate(SYSTEM), IgnoresMatch(SYSTEM), RacyCreate(), RacyMatch()],
    ids=lambda objects: type(objects).__name__,
)
def test_storage_that_ignores_a_condition_is_refused(objects: MemoryObjects) -> None:
    with pytest.raises(ConditionsIgnored) as caught:
        try_conditions(objects, random.Random(1))
    assert caught.value.hint
    assert keys(objects) == []


@pytest.mark.rule("STO-13")
def test_storage_that_reports_a_missing_feature_is_accepted() -> None:
    assert try_conditions(MemoryObjects(SYSTEM), random.Random(1)) == Probed(if_match=True, flat=True)
    assert try_conditions(LacksMatch(SYSTEM), random.Random(1)) == Probed(if_match=False, flat=True)
    assert try_conditions(ListsByFolder(SYSTEM), random.Random(1)) == Probed(if_match=True, flat=False)


def test_a_probe_that_cannot_finish_cleans_up() -> None:
    objects = FailsToRead(SYSTEM)
    with pytest.raises(ObjectUnavailable):
        try_conditions(objects, random.Random(1))
    assert keys(objects) == []
