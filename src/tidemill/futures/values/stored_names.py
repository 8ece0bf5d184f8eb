"""Modules and names in stored pickles that have moved since the pickle was written.

A pickle refers to a function or class by module and name. Stored futures, arguments, results and exceptions
keep those names. Code that such a pickle may refer to needs an entry here when it moves or is renamed: the
name as stored, and where it is now. New pickles contain the new name. An entry stays as long as a stored
future may contain the old name.
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
"""Stored module -> the module that has its names now."""

NAMES: dict[tuple[str, str], tuple[str, str]] = {}
"""Stored (module, name) -> (module, name) now, for a single function or class that moved or was renamed."""


def current_name(module: str, name: str) -> tuple[str, str]:
    """Where a function or class is now that a pickle calls `module`, `name`."""
    return NAMES.get((module, name), (MODULES.get(module, module), name))


class StoredUnpickler(pickle.Unpickler):
    """Loads a pickle, and finds functions and classes that have moved since it was written."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return super().find_class(*current_name(module_name, global_name))


def load(stream: bytes | memoryview, buffers: Iterable[object]) -> Any:
    """The value of a pickle. The caller has checked its signature."""
    return StoredUnpickler(io.BytesIO(stream), buffers=buffers).load()
