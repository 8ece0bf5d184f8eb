"""Object storage against its contract: memory, files, and a real S3 server. GCS and Azure were not run."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.conformance.lost_answers import Lossy, LossyProxy, LostAnswerConformance
from tests.servers.s3 import S3Server
from tidemill.clock import SYSTEM
from tidemill.errors import ObjectError
from tidemill.objects import Objects, Probed, open_objects, probe_bucket
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import ObjectsConformance
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.objects_tests.bodies import fill, keys

_roots = itertools.count()


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    """One bucket for all: the server takes seconds to make room for a new one."""
    return s3_server.new_bucket()


@pytest.fixture(scope="module")
def probed(s3_server: S3Server, bucket: str) -> Probed | None:
    """What the probe finds, asked once."""
    return probe_bucket(s3_url(s3_server, bucket), clock=SYSTEM)


@pytest.fixture
def place(bucket: str) -> str:
    """A bucket and a prefix that no other test has."""
    return f"{bucket}/some/root-{next(_roots)}"


def s3_url(server: S3Server, place: str, *, endpoint: str = "", options: str = "") -> str:
    return (
        f"s3://{server.access_key}:{server.secret_key}@{place}"
        f"?endpoint={endpoint or server.endpoint}&region={server.region}{options}"
    )


class TestMemoryObjects(ObjectsConformance):
    @pytest.fixture
    def objects(self) -> Objects:
        return MemoryObjects(SYSTEM)


class TestLocalObjects(ObjectsConformance):
    @pytest.fixture
    def objects_url(self, tmp_path: Path) -> str:
        return str(tmp_path / "not yet" / "root")

    @pytest.fixture
    def objects(self, objects_url: str) -> Objects:
        return open_objects(objects_url, clock=SYSTEM, chance=random.Random(1))


class TestS3Objects(ObjectsConformance):
    etags_differ = False
    race_width, race_rounds = 4, 2  # this server lets the third contender wait for a second

    @pytest.fixture
    def objects_url(self, s3_server: S3Server, place: str) -> str:
        return s3_url(s3_server, place)

    @pytest.fixture
    def objects(self, objects_url: str, probed: Probed) -> Objects:
        return open_objects(objects_url, clock=SYSTEM, chance=random.Random(1), probed=probed)


class TestS3LostAnswers(LostAnswerConformance):
    @pytest.fixture
    def lossy(self, s3_server: S3Server, place: str, probed: Probed) -> Iterator[Lossy]:
        direct = open_objects(s3_url(s3_server, place), clock=SYSTEM, probed=probed)
        with LossyProxy("127.0.0.1", s3_server.port) as proxy:
            # On a fake clock a call makes all its tries, however long the server takes to answer.
            through, impatient = (
                open_objects(
                    s3_url(s3_server, place, endpoint=proxy.endpoint, options=options),
                    clock=FakeClock(),
                    probed=probed,
                )
                for options in ("", "&timeout_s=4")
            )
            yield Lossy(through, impatient, direct, proxy)


class TestFlatListing:
    """Listing by the provider's own order. The server lists by folders, so the names here sort the same."""

    names: ClassVar[list[str]] = sorted(
        [*(f"many/{n:05d}" for n in range(1100)), "a", "b=1/c", "b=2/c/d", "z/é", "é"]
    )

    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, s3_server: S3Server, bucket: str, probed: Probed) -> str:
        place = f"{bucket}/flat"
        fill(open_objects(s3_url(s3_server, place), clock=SYSTEM, probed=probed), cls.names)
        return place

    @pytest.mark.rule("STO-12")
    def test_pages_prefixes_and_places_to_begin(
        self, s3_server: S3Server, filled: str, probed: Probed
    ) -> None:
        url = s3_url(s3_server, filled, options="&listing=flat")
        objects = open_objects(url, clock=SYSTEM, probed=probed)
        assert keys(objects) == self.names
        for prefix in ("many/", "many/00", "many/010", "b", "b=2", "z/", "é", "m", "nothing/", "y"):
            want = [name for name in self.names if name.startswith(prefix)]
            assert keys(objects, prefix) == want, prefix
            assert keys(objects, prefix, after=want[0] if want else "b") == want[1:], prefix
        for after in ("", "a", "b=1/c", "many/00999", "many/01099", "z/é", "é", "😀"):
            assert keys(objects, after=after) == [name for name in self.names if name > after], after
        assert keys(objects, "many/", after="many/00500", limit=2) == ["many/00501", "many/00502"]

    def test_a_listing_continues_after_the_last_page_when_a_response_is_lost(
        self, s3_server: S3Server, filled: str, probed: Probed
    ) -> None:
        with LossyProxy("127.0.0.1", s3_server.port) as proxy:
            url = s3_url(s3_server, filled, endpoint=proxy.endpoint, options="&listing=flat")
            objects = open_objects(url, clock=FakeClock(), probed=probed)
            # A thread asks for the second page as soon as the first is there: count requests, don't race it.
            proxy.lose("answer", b"GET ", times=2, passing=1)
            listed = [info.key for info in objects.list("many/")]
            assert proxy.pending == 0
        assert listed == self.names[3:1103]

    def test_a_server_that_lists_by_folders_is_found_out(self, s3_server: S3Server, place: str) -> None:
        objects = open_objects(s3_url(s3_server, place, options="&listing=flat"), clock=SYSTEM, probe=False)
        fill(objects, ["a-1", "a/1"])
        with pytest.raises(ObjectError, match="does not list its objects in key order") as caught:
            keys(objects)
        assert "listing=folders" in caught.value.hint
        assert keys(open_objects(s3_url(s3_server, place), clock=SYSTEM)) == ["a-1", "a/1"]
