"""Tests of the store, one group per file; `tidemill.testing.StoreConformance` collects them."""

import pytest

GROUPS = ("isolation", "lifecycle", "limits", "maps", "model", "takes", "versions", "watches")

# Before they are imported, so that an assertion that fails shows its values, as in any test.
pytest.register_assert_rewrite(*(f"{__name__}.{group}" for group in GROUPS))
