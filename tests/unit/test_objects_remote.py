"""Requests to a provider, and the meaning of its errors; an HTTP server returns prepared responses."""

import os
import random
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from tidemill.errors import (
    BadKey,
    ObjectConflict,
    ObjectMissing,
    ObjectsFull,
    ObjectUnavailable,
    TidemillError,
    UsageError,
)
from tidemill.objects import Objects, Put, open_objects
from tidemill.objects.remote import before, join_ranges
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.threads import STUCK_S

SECRET = "pLanT3dS3cr3t"
NONCE = b"nonce-of-this-writer"
WHEN = "Wed, 18 Nov 2026 10:00:00 GMT"


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


class Answer(NamedTuple):
    status: int
    code: str = ""
    headers: tuple[tuple[str, str], ...] = (("ETag", '"e1"'),)
    body: bytes = b""


class Provider:
    """An HTTP server that gives its answers in turn, the last one for ever, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answers: list[Answer] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                provider.asked.append(Request(self.command, self.path, headers))
                answer = provider.answers[0] if len(provider.answers) == 1 else provider.answers.pop(0)
                body = f"<Error><Code>{answer.code}</Code></Error>".encode() if answer.code else answer.body
                self.send_response(answer.status)
                for name, value in (("Last-Modified", WHEN), *answer.headers):
                    self.send_header(name, value)
                self.send_header("Content-Length", f"{len(body)}")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815 - http.server's names

            def log_message(self, *args: object) -> None:  # type: ignore[override]
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(
        target=provider.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def opened(endpoint: str, clock: FakeClock, kind: str = "s3", options: str = "") -> Objects:
    url = {
        "s3": f"s3://key:{SECRET}@bucket/root?endpoint={endpoint}&region=us-east-1",
        "gs": f"gs://bucket/root?endpoint={endpoint}&bearer_token={SECRET}",
        "az": f"az://box/root?endpoint={endpoint}&account=acc&sas_key=sv%3D2026%26sig%3D{SECRET}",
    }[kind]
    return open_objects(url + options, clock=clock, chance=random.Random(1), probe=False)


def test_a_request_to_a_busy_provider_is_retried_later(provider: Provider, clock: FakeClock) -> None:
    provider.answers = [Answer(503, "SlowDown"), Answer(500, "InternalError"), Answer(429), Answer(200)]
    began = clock.monotonic()
    assert opened(provider.endpoint, clock).put("k", b"x").etag == '"e1"'
    assert [(request.method, request.path) for request in provider.asked] == [("PUT", "/bucket/root/k")] * 4
    assert 0.1 < clock.monotonic() - began < 1


def test_asking_again_has_an_end(provider: Provider, clock: FakeClock) -> None:
    provider.answers = [Answer(503, "SlowDown")]
    with pytest.raises(ObjectUnavailable, match=r"put 'k' .*HTTP 503, SlowDown"):
        opened(provider.endpoint, clock).put("k", b"x")
    assert len(provider.asked) == 8


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "SignatureDoesNotMatch", ObjectUnavailable),
        (401, "", ObjectUnavailable),
        (400, "InvalidArgument", ObjectUnavailable),
        (404, "NoSuchBucket", ObjectUnavailable),
        (404, "NoSuchKey", ObjectMissing),
        (507, "XMinioStorageFull", ObjectsFull),
        (501, "NotImplemented", UsageError),
    ],
)
def test_a_refusal_is_raised_at_once(
    provider: Provider, clock: FakeClock, status: int, code: str, error: type[TidemillError]
) -> None:
    provider.answers = [Answer(status, code)]
    with pytest.raises(error) as caught:
        opened(provider.endpoint, clock).get("k")
    assert f"HTTP {status}" in caught.value.message
    assert code in caught.value.message
    assert len(provider.asked) == 1


def test_a_signature_of_a_wrong_time_names_the_clock(provider: Provider, clock: FakeClock) -> None:
    provider.answers = [Answer(403, "RequestTimeTooSkewed")]
    with pytest.raises(ObjectUnavailable, match="the clock of this machine is wrong") as raised:
        opened(provider.endpoint, clock).get("k")
    assert "set the clock" in raised.value.hint
    assert len(provider.asked) == 1


def test_a_race_that_s3_leaves_undecided_is_run_again(provider: Provider, clock: FakeClock) -> None:
    race = Answer(409, "ConditionalRequestConflict")
    provider.answers = [race, race, Answer(200)]
    assert opened(provider.endpoint, clock).put_if_absent("k", NONCE, NONCE) is Put.CREATED
    assert {request.headers["if-none-match"] for request in provider.asked} == {"*"}
    provider.answers = [race, Answer(200)]
    assert opened(provider.endpoint, clock).put_if_match("k", NONCE, '"e0"').etag == '"e1"'
    assert provider.asked[-1].headers["if-match"] == '"e0"'


def test_a_create_after_a_500_that_had_landed_is_mine(provider: Provider, clock: FakeClock) -> None:
    stored = Answer(200, body=NONCE)
    provider.answers = [Answer(500), Answer(412, "PreconditionFailed"), stored, stored]
    assert opened(provider.endpoint, clock).put_if_absent("k", NONCE, NONCE) is Put.MINE
    assert [request.method for request in provider.asked] == ["PUT", "PUT", "HEAD", "GET"]


def test_a_conflict_at_the_first_try_is_a_conflict_without_looking(
    provider: Provider, clock: FakeClock
) -> None:
    provider.answers = [Answer(412, "PreconditionFailed")]
    with pytest.raises(ObjectConflict):
        opened(provider.endpoint, clock).put_if_match("k", NONCE, '"e0"')
    assert [request.method for request in provider.asked] == ["PUT"]
    provider.answers = [Answer(500), Answer(412, "PreconditionFailed"), Answer(200, body=b"somebody else's")]
    with pytest.raises(ObjectConflict):
        opened(provider.endpoint, clock).put_if_match("k", NONCE, '"e0"')


def test_an_unreadable_object_is_an_error(provider: Provider, clock: FakeClock) -> None:
    provider.answers = [Answer(412, "PreconditionFailed"), Answer(404)] * 5
    with pytest.raises(ObjectConflict, match="cannot be read"):
        opened(provider.endpoint, clock).put_if_absent("k", NONCE, NONCE)


def test_the_generation_of_an_etag_is_read_from_google(provider: Provider, clock: FakeClock) -> None:
    generation = (("ETag", '"e1"'), ("x-goog-generation", "17"))
    provider.answers = [Answer(200, headers=generation)]
    objects = opened(provider.endpoint, clock, "gs")
    objects.put_if_match("k", NONCE, '"e1"')
    assert [request.method for request in provider.asked] == ["HEAD", "PUT"]
    assert provider.asked[1].headers["x-goog-if-generation-match"] == "17"
    assert provider.asked[1].headers["authorization"] == f"Bearer {SECRET}"
    with pytest.raises(ObjectConflict):
        objects.put_if_match("k", NONCE, '"e2"')
    assert len(provider.asked) == 3  # the etag was old: nothing was sent
    objects.put_if_absent("k", NONCE, NONCE)
    assert provider.asked[-1].headers["x-goog-if-generation-match"] == "0"
    provider.answers = [Answer(404)]
    objects.delete_many(["a", "b"])  # Google has an error for what is not there
    with pytest.raises(ObjectConflict):
        objects.put_if_match("gone", NONCE, '"e1"')


def test_requests_to_azure_have_the_http_headers(provider: Provider, clock: FakeClock) -> None:
    provider.answers = [Answer(201)]
    objects = opened(provider.endpoint, clock, "az")
    objects.put_if_match("k", NONCE, '"e1"')
    assert provider.asked[0].path.startswith("/box/root/k?")
    assert provider.asked[0].headers["if-match"] == '"e1"'
    objects.put_if_absent("k", NONCE, NONCE)
    assert provider.asked[1].headers["if-none-match"] == "*"


def listing(*keys: str) -> Answer:
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-15T09:01:53.000Z</LastModified>"
        f'<ETag>"x"</ETag><Size>1</Size></Contents>'
        for key in keys
    )
    return Answer(200, headers=(), body=f"<ListBucketResult>{contents}</ListBucketResult>".encode())


@pytest.mark.parametrize("how", ["flat", "folders"])
def test_foreign_names_that_are_not_keys_are_skipped_or_reported(
    provider: Provider, clock: FakeClock, how: str
) -> None:
    objects = opened(provider.endpoint, clock, options=f"&listing={how}")
    provider.answers = [listing("root/a", "root/b\\c", "root/d")]
    assert [info.key for info in objects.list()] == ["a", "d"]
    provider.answers = [listing("root/a", "root/b//c", "root/d")]
    with pytest.raises(BadKey) as caught:
        list(objects.list())
    assert "another prefix" in caught.value.hint


def prefixes(*folders: str) -> str:
    return "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)


@pytest.mark.parametrize("how", ["flat", "folders"])
def test_a_name_like_a_double_slash_spoils_its_own_folder_alone_where_others_write(
    provider: Provider, clock: FakeClock, how: str
) -> None:
    objects = opened(provider.endpoint, clock, options=f"&listing={how}")
    level = listing("root/a", "root/e")
    within = prefixes("root/b/", "root/d/").encode() + b"</ListBucketResult>"
    top = level._replace(body=level.body.replace(b"</ListBucketResult>", within))
    answers = [top, listing("root/b/x", "root/b//c"), listing("root/d/y")]
    provider.answers = answers if how == "folders" else [listing("root/a", "root/b//c"), *answers]
    skipped: list[str] = []
    listed = objects.list_foreign(lambda name, _: skipped.append(name))
    assert [info.key for info in listed] == ["a", "d/y", "e"]
    assert skipped == ["b/"]


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


CALLS: list[Callable[[Objects], object]] = [
    lambda objects: objects.put("k", b"x"),
    lambda objects: objects.put_if_absent("k", NONCE, NONCE),
    lambda objects: objects.put_if_match("k", NONCE, "e"),
    lambda objects: objects.get("k"),
    lambda objects: objects.get_ranges("k", [(0, 1)]),
    lambda objects: objects.head("k"),
    lambda objects: objects.delete("k"),
    lambda objects: objects.delete_many(["k", "l"]),
    lambda objects: list(objects.list("k/")),
]


@pytest.mark.slow
@pytest.mark.rule("STO-14")
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
@pytest.mark.parametrize("answer", ["refused", "denied", "echo"])
def test_a_secret_is_in_no_error_of_any_call(
    provider: Provider, clock: FakeClock, caplog: pytest.LogCaptureFixture, kind: str, answer: str
) -> None:
    caplog.set_level(0)
    provider.answers = [
        Answer(403, "AccessDenied") if answer == "denied" else Answer(400, body=SECRET.encode())
    ]
    objects = opened(closed_port() if answer == "refused" else provider.endpoint, clock, kind)
    shown = [repr(objects), objects.url]
    for call in CALLS:
        try:
            call(objects)
        except TidemillError as error:
            chain = [error, error.__cause__, error.__context__]
            shown += [repr(error), str(error), *map(repr, chain), *traceback.format_exception(error)]
    assert len(shown) > 6 * len(CALLS)  # every call failed
    assert SECRET not in "\n".join(shown + caplog.messages)


def test_a_provider_that_never_answers_costs_bounded_time(clock: FakeClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ObjectUnavailable, match="Timeout"):
            opened(endpoint, clock, options="&timeout_s=0.1").get("k")


FORKS = """
import os, random, signal, sys
from tidemill.errors import ObjectUnavailable
from tidemill.objects import open_objects
from tidemill.testing.fake_clock import FakeClock

objects = open_objects("s3://k:s@bucket?endpoint=" + sys.argv[1], clock=FakeClock(), probe=False)

def use(who):
    try:
        objects.get("k")
    except ObjectUnavailable as error:
        print(who, "forked" if "fork" in error.message else "asked", flush=True)

def fork(who):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        use(who)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

fork("child before")
use("parent")
fork("child after")
use("parent")
"""


def test_use_before_and_after_a_fork_is_an_error_not_a_hang() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, closed_port()],
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
        env=os.environ,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "child before asked",
        "parent asked",
        "child after forked",
        "parent asked",
    ]


def test_ranges_are_joined_when_they_are_near() -> None:
    assert join_ranges([(0, 1)]) == [(0, 1)]
    assert join_ranges([(10, 5), (0, 4), (12, 1)]) == [(0, 15)]
    assert join_ranges([(10_000_000, 5), (0, 4)]) == [(0, 4), (10_000_000, 10_000_005)]


@pytest.mark.parametrize("prefix", ["a", "lots/7", "lots/0", "x/!", "x/ ", "é", "x/\ue000", "a/]", "."])
def test_listing_begins_before_the_prefix_and_not_far_before(prefix: str) -> None:
    low = before(prefix)
    assert low < prefix
    assert low.startswith(prefix[:-1])
    assert before("") == before("a/") == ""
