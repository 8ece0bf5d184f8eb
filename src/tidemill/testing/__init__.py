"""Tools for testing code that uses Tidemill, and for testing new backends.

The conformance tests need pytest and hypothesis, and the comparison of views needs Spark. These parts are
imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

from tidemill.testing.fake_clock import FakeClock, ShiftedClock

if TYPE_CHECKING:
    from tidemill.testing.objects_conformance import ObjectsConformance
    from tidemill.testing.store_conformance import StoreConformance
    from tidemill.testing.view_equality import assert_equal_to_spark
    from tidemill.views.certify.judge import Case, Judge, MaintainedView, Verdict
    from tidemill.views.certify.table_contents import Step

_SUITES = {
    "Case": "tidemill.views.certify.judge",
    "MaintainedView": "tidemill.views.certify.judge",
    "Judge": "tidemill.views.certify.judge",
    "ObjectsConformance": "tidemill.testing.objects_conformance",
    "Step": "tidemill.views.certify.table_contents",
    "StoreConformance": "tidemill.testing.store_conformance",
    "Verdict": "tidemill.views.certify.judge",
    "assert_equal_to_spark": "tidemill.testing.view_equality",
}

__all__ = [
    "Case",
    "FakeClock",
    "Judge",
    "MaintainedView",
    "ObjectsConformance",
    "ShiftedClock",
    "Step",
    "StoreConformance",
    "Verdict",
    "assert_equal_to_spark",
]


def __getattr__(name: str) -> object:
    if name in _SUITES:
        return getattr(importlib.import_module(_SUITES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
