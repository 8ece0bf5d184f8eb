"""Conformance tests for object storage, for authors of backends.

    class TestMyObjects(ObjectsConformance):
        @pytest.fixture
        def objects(self, objects_url):
            return open_objects(objects_url, clock=SYSTEM)

        @pytest.fixture
        def objects_url(self, my_server):
            return f"my://{my_server.new_bucket()}"

`objects` is an empty root, a new one for each test. `objects_url` is the URL with which another process opens
the same root; without a URL, the tests with several processes are skipped. Set `etags_differ = False` if an
etag is a digest of the body. The `rule` marks name the rules of docs/rules/store.md.

The other processes run `tidemill.testing.objects_writer` and open the storage by its URL. They get the URL in
an environment variable, because all users of a machine can see a command line.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from tidemill.objects import Objects
from tidemill.testing.objects_tests.bodies import BodyTests, ConditionTests, ObjectTests
from tidemill.testing.objects_tests.listings import ListingTests, NameTests
from tidemill.testing.objects_writer import URL, whole
from tidemill.testing.threads import STUCK_S

KILLS = 4


class ObjectProcessTests(ObjectTests):
    """Test several processes: only one can create an object, and a killed one leaves no partial object."""

    @pytest.mark.rule("STO-12")
    def test_exactly_one_of_many_processes_creates_an_object(
        self, objects: Objects, objects_url: str | None
    ) -> None:
        count = 40
        children = [_child(objects_url, "race", str(count)) for _ in range(4)]
        try:
            for child in children:
                assert _line(child) == "ready"
            for child in children:
                _tell(child, "go")
            answers = [json.loads(_line(child)) for child in children]
        finally:
            for child in children:
                _end(child)
        for number in range(count):
            counts = Counter(each[number] for each in answers)
            assert counts == {"created": 1, "other": 3}, number
        owners = Counter(objects.get(f"race/{number}")[0].split(b":")[0] for number in range(count))
        assert owners == {
            str(child.pid).encode(): each.count("created")
            for child, each in zip(children, answers, strict=True)
            if "created" in each
        }

    @pytest.mark.rule("STO-12")
    def test_a_killed_writer_leaves_no_partial_object(
        self, objects: Objects, objects_url: str | None
    ) -> None:
        answered: set[str] = set()
        for number in range(KILLS):
            child = _child(objects_url, "write", str(number))
            try:
                for _ in range(5 + 7 * number):
                    answered.add(_line(child))
                os.kill(child.pid, signal.SIGKILL)
            finally:
                answered |= set(_end(child))
        stored = {info.key: info for info in objects.list()}
        assert answered <= set(stored)
        for key, info in stored.items():
            body = objects.get(key)[0]
            assert whole(body), f"{key} is incomplete: {info}"
            assert len(body) == info.size


def _child(url: str | None, *arguments: str) -> subprocess.Popen[str]:
    if url is None:
        pytest.skip("no other process can open this storage")
    return subprocess.Popen(
        [sys.executable, "-m", "tidemill.testing.objects_writer", *arguments],
        env={**os.environ, URL: url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline().rstrip("\n")
    assert line, f"the writer ended with {child.wait(STUCK_S)}"
    return line


def _tell(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdin is not None
    child.stdin.write(word + "\n")
    child.stdin.flush()


def _end(child: subprocess.Popen[str]) -> list[str]:
    """Kill a child process; return the complete lines that it printed and that were not read yet."""
    child.kill()
    out, _ = child.communicate(timeout=STUCK_S)
    return out.split("\n")[:-1]


class ObjectsConformance(BodyTests, ConditionTests, ListingTests, NameTests, ObjectProcessTests):
    """All conformance tests for object storage."""
