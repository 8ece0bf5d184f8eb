"""Tests of the store, one group per file; `tidemill.testing.StoreConformance` collects them."""

import pytest

GROUPS = ("isolation", "lifecycle", "limits", "maps", "model", "takes", "versions", "watches")

# pytest must know these modules before they are imported, so that failing assertions show their values.
pytest.register_assert_rewrite(*(f"{__name__}.{group}" for group in GROUPS))
