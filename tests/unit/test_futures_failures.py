import sys
import types
from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest

from tests.unit.futures_bomb import Bomb, exploded
from tidemill.errors import BadSignature
from tidemill.futures import pickling, rows
from tidemill.futures.failures import MOST_PICKLED_BYTES, dump_failure, load_exception
from tidemill.futures.rows import Failure
from tidemill.futures.signing import ClusterKey, Signer

SIGNER = Signer(ClusterKey(bytes(32)))


def fail(error: BaseException, **more: Any) -> Failure:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - as a worker does
        failure = dump_failure(caught, SIGNER, **more)
    return rows.decode_failure(rows.encode(failure))


class NeedsTwo(Exception):
    """Pickles well, and cannot be unpickled: pickle calls it with `args`, which is one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


class HoldsGenerator(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.rest = (n for n in "abc")


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class LeavesWhenPickled(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit(3)


class LeavesWhenUnpickled(Exception):
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class Impostor(Exception):
    def __reduce__(self) -> Any:
        return str, ("I am no exception",)


class Stubborn(Exception):
    def add_note(self, note: str) -> NoReturn:
        raise RuntimeError("no notes")


def test_an_exception_comes_back_with_its_remote_traceback() -> None:
    failure = fail(ValueError("not a number", 3), node="n1", at=7)
    assert (failure.kind, failure.type, failure.node, failure.at) == ("exception", "ValueError", "n1", 7)
    assert failure.message == "('not a number', 3)"
    assert "in fail\n    raise error" in failure.traceback
    error = load_exception(failure, SIGNER)
    assert type(error) is ValueError
    assert error.args == ("not a number", 3)
    (note,) = error.__notes__
    assert note.startswith("remote traceback on n1:\nTraceback (most recent call last)")
    assert "raise error" in note


def test_the_causes_of_an_exception_are_in_the_text() -> None:
    try:
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError as cause:
            raise KeyError("k") from cause
    except KeyError as caught:
        failure = dump_failure(caught, SIGNER)
    assert "ZeroDivisionError: division by zero" in failure.traceback
    assert "direct cause" in failure.traceback
    assert failure.message == "'k'"


@pytest.mark.parametrize(
    "error",
    [
        NeedsTwo("a", "b"),
        HoldsGenerator("holds"),
        LeavesWhenPickled("leaves"),
        LeavesWhenUnpickled("leaves later"),
        Impostor("is none"),
        ValueError("x" * 2 * MOST_PICKLED_BYTES),
        ValueError(np.arange(100_000)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_that_cannot_be_pickled_is_told_in_words(error: Exception) -> None:
    failure = fail(error)
    assert failure.pickled == failure.signature == b""
    assert type(error).__name__ in failure.type
    assert failure.message
    assert "raise error" in failure.traceback
    assert load_exception(failure, SIGNER) is None


def test_an_exception_without_a_text_is_told_by_its_type() -> None:
    failure = fail(NoText())
    assert failure.type.endswith("NoText")
    assert "RuntimeError" in failure.message
    assert type(load_exception(failure, SIGNER)) is NoText


def test_an_exception_that_takes_no_notes_comes_back_all_the_same() -> None:
    assert type(load_exception(fail(Stubborn("x")), SIGNER)) is Stubborn


def test_text_that_cannot_be_stored_is_escaped_and_long_text_shortened() -> None:
    failure = fail(ValueError("half a character \ud800 " + "x" * 100_000))
    assert "\\ud800" in failure.message
    assert "characters left out" in failure.message
    assert len(failure.message) < 5_000
    assert len(failure.traceback) < 13_000
    assert len(rows.encode(failure)) < 48_000


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), GeneratorExit()])
def test_what_is_no_plain_exception_is_kept_as_well(error: BaseException) -> None:
    assert type(load_exception(fail(error), SIGNER)) is type(error)


def test_an_exception_of_a_module_that_the_client_lacks_is_told_in_words() -> None:
    module = types.ModuleType("vanishing")
    exec("class Odd(Exception): pass", module.__dict__)
    sys.modules["vanishing"] = module
    try:
        failure = fail(module.Odd("here"))
        assert type(load_exception(failure, SIGNER)) is module.Odd
    finally:
        del sys.modules["vanishing"]
    assert load_exception(failure, SIGNER) is None
    assert (failure.type, failure.message) == ("vanishing.Odd", "here")


@pytest.mark.rule("FUT-59")
def test_a_forged_exception_is_never_unpickled() -> None:
    bomb = pickling.pack(pickling.dump(Bomb("exception")))
    good = fail(ValueError("x"))
    for signature in (b"", good.signature, Signer(ClusterKey.new()).sign("exception", bomb)):
        forged = msgspec.structs.replace(good, pickled=bomb, signature=signature)
        with pytest.raises(BadSignature):
            load_exception(forged, SIGNER)
    assert exploded == []
