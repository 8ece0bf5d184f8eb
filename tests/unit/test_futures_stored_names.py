"""Names in stored pickles keep resolving after the code has moved."""

import importlib
import pickle

import pytest

from tidemill.futures.values import pickling, stored_names


@pytest.mark.parametrize("stored", sorted(stored_names.MODULES))
def test_a_stored_module_is_found_where_it_is_now(stored: str) -> None:
    importlib.import_module(stored_names.MODULES[stored])


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tidemill.futures.actor_handle", "Method"),
        ("tidemill.futures.actor_handle", "_arrived"),
        ("tidemill.futures.client", "client_of"),
        ("tidemill.futures.handle", "_arrived"),
        ("tidemill.futures.home", "_arrived"),
        ("tidemill.futures.pickling", "_result_of"),
        ("tidemill.futures.putting", "clone_here"),
        ("tidemill.futures.reducers", "_array"),
        ("tidemill.futures.reducers", "_sliced"),
        ("tidemill.futures.rows", "Failure"),
        ("tidemill.publish.parts", "PartTask"),
        ("tidemill.publish.parts", "SinkWritten"),
        ("tidemill.runner.making", "make_part"),
    ],
)
def test_what_stored_futures_name_can_be_loaded(module: str, name: str) -> None:
    stream = pickle.PROTO + b"\x05" + _text(module) + _text(name) + pickle.STACK_GLOBAL + pickle.STOP
    value = pickling.load(stream)
    assert (value.__module__, value.__qualname__) == stored_names.current_name(module, name)


def _text(text: str) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()
