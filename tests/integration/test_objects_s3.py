"""The probe and bad input against real S3 servers: one that decides conditions, two that ignore them."""

import contextlib
import random
import traceback

import pytest

from tests.servers.s3 import S3Server
from tidemill.clock import SYSTEM
from tidemill.errors import ConditionsIgnored, ObjectUnavailable
from tidemill.objects import Probed, open_objects, probe_bucket
from tidemill.testing.fake_clock import FakeClock

WRONG = "wr0ngS3cret"


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


def url(server: S3Server, bucket: str, *, secret: str = "") -> str:
    credentials = f"{server.access_key}:{secret or server.secret_key}"
    return f"s3://{credentials}@{bucket}/root?endpoint={server.endpoint}&region={server.region}"


@pytest.mark.rule("STO-13")
def test_a_bucket_that_honours_conditions_is_taken_and_left_as_it_was(
    s3_server: S3Server, bucket: str
) -> None:
    where = url(s3_server, bucket)
    probed = probe_bucket(where, clock=SYSTEM)
    assert probed == Probed(if_match=True, flat=False)
    objects = open_objects(where, clock=SYSTEM)
    assert objects.supports_if_match
    assert list(objects.list()) == []
    assert probe_bucket("memory://", clock=SYSTEM) is None


@pytest.mark.rule("STO-13", "STO-14")
def test_a_bucket_that_ignores_conditions_is_refused(careless_s3: S3Server) -> None:
    where = url(careless_s3, careless_s3.new_bucket())
    with pytest.raises(ConditionsIgnored, match="If-None-Match") as caught:
        open_objects(where, clock=SYSTEM, chance=random.Random(1))
    assert "conditional writes" in caught.value.hint
    assert f":{careless_s3.secret_key}@" not in "".join(traceback.format_exception(caught.value))
    assert list(open_objects(where, clock=SYSTEM, probe=False).list()) == []


@pytest.mark.rule("STO-14")
def test_wrong_credentials_are_reported_without_showing_them(s3_server: S3Server, bucket: str) -> None:
    where = url(s3_server, bucket, secret=WRONG)
    with pytest.raises(ObjectUnavailable, match="HTTP 403") as caught:
        open_objects(where, clock=SYSTEM)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__context__)
    assert WRONG not in shown
    assert "credentials" in caught.value.hint


def test_a_missing_bucket_is_an_error(s3_server: S3Server) -> None:
    objects = open_objects(url(s3_server, "no-such-bucket"), clock=FakeClock(), probe=False)
    with pytest.raises(ObjectUnavailable, match="NoSuchBucket"):
        objects.get("k")
    with pytest.raises(ObjectUnavailable, match="NoSuchBucket"):
        list(objects.list())


def test_a_killed_server_still_has_what_it_confirmed(s3_server: S3Server, bucket: str) -> None:
    clock = FakeClock()
    objects = open_objects(url(s3_server, bucket), clock=clock, probe=False)
    objects.put("kept", b"before")
    s3_server.kill()
    try:
        with pytest.raises(ObjectUnavailable, match="Connect"):
            objects.get("kept")
    finally:
        s3_server.start()
    again = open_objects(url(s3_server, bucket), clock=SYSTEM, probe=False)
    body = b""
    for _ in range(10):  # it answers before it has found all its data again
        with contextlib.suppress(ObjectUnavailable):
            body = again.get("kept")[0]
            break
    assert body == b"before"
    again.delete("kept")
