"""Tools for testing what is built on Tidemill, and backends written for it.

The conformance suites need pytest and hypothesis, which nothing else here does: they are imported when they
are asked for, and not before.
"""

import importlib
from typing import TYPE_CHECKING

from tidemill.testing.fake_clock import FakeClock, ShiftedClock

if TYPE_CHECKING:
    from tidemill.testing.heap_conformance import HeapConformance
    from tidemill.testing.objects_conformance import LostAnswerConformance, ObjectsConformance
    from tidemill.testing.store_conformance import StoreConformance

_SUITES = {
    "HeapConformance": "tidemill.testing.heap_conformance",
    "LostAnswerConformance": "tidemill.testing.objects_conformance",
    "ObjectsConformance": "tidemill.testing.objects_conformance",
    "StoreConformance": "tidemill.testing.store_conformance",
}

__all__ = [
    "FakeClock",
    "HeapConformance",
    "LostAnswerConformance",
    "ObjectsConformance",
    "ShiftedClock",
    "StoreConformance",
]


def __getattr__(name: str) -> object:
    if name in _SUITES:
        return getattr(importlib.import_module(_SUITES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
