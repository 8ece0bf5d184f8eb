import dataclasses
import functools
import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidemill.errors import CannotSerialize, CodeNotLoadable, UsageError
from tidemill.futures.values import calls, pickling
from tidemill.futures.values.call_digests import call_digest
from tidemill.futures.values.pickling import Handle
from tidemill.testing.threads import STUCK_S

LOCK = threading.Lock()


class Future(Handle):
    def __init__(self, number: int) -> None:
        self.id = bytes([number]) * 16


@dataclasses.dataclass
class Job:
    name: str
    pool: object = None


class Slotted:
    __slots__ = ("conn",)

    def __init__(self, conn: object) -> None:
        self.conn = conn


class Called:
    def __call__(self) -> None:
        pass


class Angry:
    def __getstate__(self) -> object:
        raise ZeroDivisionError("not today\nnor tomorrow")


def scale(values: Any, by: int = 2) -> Any:
    return [by * value for value in values]


@pytest.mark.rule("FUT-19")
def test_a_function_and_its_arguments_come_back_and_can_be_called() -> None:
    offset = 10
    for function in (scale, lambda values, by=2: [by * value + offset for value in values]):
        code = calls.load_code(calls.dump_code(function))
        stored = calls.dump_args(([1, Future(1)],), {"by": Future(2)})
        assert set(stored.inputs) == {b"\x01" * 16, b"\x02" * 16}
        args, kwargs = calls.load_args(stored.content, lambda future_id: 100 * future_id[0])
        assert code(*args, **kwargs) == function([1, 100], by=200)


def test_a_function_goes_by_reference_and_a_lambda_by_value() -> None:
    assert len(calls.dump_code(scale)) < 150
    assert b"co_code" not in calls.dump_code(scale)
    assert len(calls.dump_code(lambda: None)) > 300
    assert calls.load_code(calls.dump_code(scale)) is scale


@pytest.mark.parametrize(
    ("args", "kwargs", "where"),
    [
        ((1, LOCK), {}, "argument 2 is a _thread.lock"),
        ((), {"conn": LOCK}, "argument 'conn' is a _thread.lock"),
        ((Job("a", {"x": [0, LOCK]}),), {}, "argument 1.pool['x'][1] is a _thread.lock"),
        ((), {"job": [Job("a"), Job("b", LOCK)]}, "argument 'job'[1].pool is a _thread.lock"),
        ((Slotted(LOCK),), {}, "argument 1.conn is a _thread.lock"),
        ((functools.partial(scale, by=LOCK),), {}, "argument 1.keywords['by'] is a _thread.lock"),
        (({"n": (n for n in "ab")},), {}, "argument 1['n'] is a generator"),
        ((lambda: LOCK,), {}, "argument 1's global 'LOCK' is a _thread.lock"),
        ((Angry(),), {}, "argument 1 is a tests.unit.test_futures_calls.Angry"),
    ],
)
def test_an_argument_that_cannot_be_stored_is_named(args: Any, kwargs: Any, where: str) -> None:
    with pytest.raises(CannotSerialize) as caught:
        calls.dump_args(args, kwargs)
    assert caught.value.message.startswith(where)
    assert "which cannot be stored" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_function_that_cannot_be_stored_says_why() -> None:
    with socket.socket() as line:

        def ask(question: str, *, default: object = LOCK) -> object:
            return line.send(question.encode())

        with pytest.raises(
            CannotSerialize, match=r"ask's (variable 'line' of the enclosing|default 'default')"
        ):
            calls.dump_code(ask)
    with pytest.raises(CannotSerialize, match=r"the result\.pool is a _thread\.lock"):
        calls.dump_value(Job("x", LOCK))


def test_values_that_hold_themselves_are_looked_into_without_end() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert calls.dump_args((ring,), {}).inputs == ()
    ring.append(LOCK)
    with pytest.raises(CannotSerialize, match=r"_thread\.lock"):
        calls.dump_args((ring,), {})
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CannotSerialize, match="recursion"):
        calls.dump_args((deep,), {})


@pytest.mark.parametrize("wrong", [3, "print", None, scale([1])])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="not a function") as caught:
        calls.dump_code(wrong)
    assert "submit(function" in caught.value.hint
    with pytest.raises(CodeNotLoadable, match="not a function"):
        calls.load_code(pickling.pack(pickling.dump(wrong)))


def test_functions_have_names_for_people() -> None:
    assert calls.name_of(scale) == "tests.unit.test_futures_calls.scale"
    assert calls.name_of(functools.partial(scale, by=3)) == "tests.unit.test_futures_calls.scale"
    assert calls.name_of(print) == "print"
    assert calls.name_of(Called()) == "tests.unit.test_futures_calls.Called"
    assert "<lambda>" in calls.name_of(lambda: 1)


SCRIPT = """
import dataclasses, enum, functools
from tidemill.futures.values.call_digests import call_digest

OFFSET = {"a": 1, "b": {"x", "y", "z"}}

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2) + len(OFFSET)

@dataclasses.dataclass
class Point:
    x: int
    def next(self):
        return Point(self.x + 1)
    @property
    def double(self):
        return 2 * self.x
    @classmethod
    def origin(cls):
        return cls(0)

class Colour(enum.Enum):
    RED = 1

text = "".join(["a", "bc"])
for function, args, kwargs in [
    (fib, (3,), {}),
    (lambda x: x in {"p", "q", "r", "s"}, ({"a", "b", "c", "d"}, frozenset("abcdef")), {}),
    (functools.partial(fib, 3), ([Point(1), Point.origin()],), {"z": Colour.RED, "a": "abc", "t": text}),
    (Point(3).next, (), {}),
    (max, (b"x" * 100_000, {"k": [1.5, None]}), {}),
]:
    first = call_digest(function, args, kwargs)
    assert first == call_digest(function, args, dict(reversed(kwargs.items())))
    print(first.hex())
"""


def test_a_call_has_the_same_digest_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    runs = [
        subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=STUCK_S,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0].split())) == 5


def test_different_calls_have_different_digests() -> None:
    first, second = 1, 2
    digests = [
        call_digest(function, args, kwargs)
        for function, args, kwargs in [
            (scale, (), {}),
            (scale, (1,), {}),
            (scale, (1.0,), {}),
            (scale, ("1",), {}),
            (scale, (b"1",), {}),
            (scale, ([1],), {}),
            (scale, ((1,),), {}),
            (scale, ({1},), {}),
            (scale, (frozenset({1}),), {}),
            (scale, (), {"by": 1}),
            (scale, (Future(1),), {}),
            (scale, (Future(2),), {}),
            (scale, (np.arange(3),), {}),
            (scale, (np.arange(3.0),), {}),
            (lambda: first, (), {}),
            (lambda: second, (), {}),
            (lambda: 3, (), {}),
            (lambda: 4, (), {}),
            (lambda x=1: x, (), {}),
            (lambda x=2: x, (), {}),
            (len, ([],), {}),
        ]
    ]
    assert len(set(digests)) == len(digests)


def test_values_that_hold_themselves_have_a_digest() -> None:
    ring: list[object] = [1]
    ring.append(ring)
    assert call_digest(len, (ring,), {}) == call_digest(len, (ring,), {})
