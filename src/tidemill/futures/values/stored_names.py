"""Names in stored pickles: map the old names of moved modules, functions and classes to the current ones.

A pickle refers to a function or class by module and name. Stored futures, arguments, results and exceptions
contain such names. If you move or rename code that a pickle may refer to, add an entry here with the stored
name and the current one. New pickles contain the new name. Keep an entry as long as a stored future may
contain the old name.
"""

import io
import pickle
from collections.abc import Iterable
from typing import Any

MODULES: dict[str, str] = {
    "tidemill.futures.actor_handle": "tidemill.futures.actors.handle",
    "tidemill.futures.client": "tidemill.futures.client.client",
    "tidemill.futures.handle": "tidemill.futures.client.future",
    "tidemill.futures.lineage": "tidemill.futures.client.lineage",
    "tidemill.futures.pickling": "tidemill.futures.values.pickling",
    "tidemill.futures.putting": "tidemill.futures.client.value_placement",
    "tidemill.futures.reducers": "tidemill.futures.values.reducers",
    "tidemill.futures.rows": "tidemill.futures.protocol.rows",
    "tidemill.futures.states": "tidemill.futures.protocol.states",
    "tidemill.runner.making": "tidemill.runner.part_maker",
}
"""Stored module -> current module."""

NAMES: dict[tuple[str, str], tuple[str, str]] = {}
"""Stored (module, name) -> current (module, name), for a single function or class."""


def current_name(module: str, name: str) -> tuple[str, str]:
    """Return the current module and name of a function or class in a pickle."""
    return NAMES.get((module, name), (MODULES.get(module, module), name))


class StoredUnpickler(pickle.Unpickler):
    """Loads pickles, including those that refer to functions and classes by earlier names."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return super().find_class(*current_name(module_name, global_name))


def load(stream: bytes | memoryview, buffers: Iterable[object]) -> Any:
    """Load a pickle. The caller has checked its signature."""
    return StoredUnpickler(io.BytesIO(stream), buffers=buffers).load()
