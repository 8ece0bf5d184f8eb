"""Rows of every kind that earlier releases stored are still read, and would be written as they are.

`tests/formats/rows-1.json` holds rows that the tests of the release before the new structure wrote, one for
each kind and form. The frozen home (`tests/integration/test_formats.py`) shows that whole homes still open.
It lacks rows that exist only for a moment, or that need a broker, a push client or several nodes.
"""

import base64
import json
from pathlib import Path

import pytest

from tests.formats import store_rows
from tidemill.store.keys import unpack

FOLDER = Path(store_rows.__file__).parent


def stored_rows() -> list[tuple[str, bytes, bytes]]:
    """Return the recorded rows: cluster, key and value."""
    recorded = json.loads((FOLDER / "rows-1.json").read_text())
    return [
        (row["cluster"], base64.b64decode(row["key"]), base64.b64decode(row["value"])) for row in recorded
    ]


def test_every_recorded_row_is_read_and_would_be_written_as_it_is() -> None:
    for cluster, key, value in stored_rows():
        store_rows.decoded(key, value, cluster)


def test_every_kind_of_row_has_an_example() -> None:
    in_home = set(json.loads((FOLDER / "home-1.json").read_text())["rows"])
    recorded = {str(unpack(key)[1]) for _, key, _ in stored_rows()}
    assert {name for name, _ in store_rows.SPACES} == in_home | recorded


def test_a_row_with_a_renamed_field_is_noticed() -> None:
    """A field with a new name decodes as its default, so only writing the row again shows the difference."""
    cluster, key, value = next(row for row in stored_rows() if b"\xa5epoch" in row[2])
    with pytest.raises(ValueError, match=r"written as|cannot be read"):
        store_rows.decoded(key, value.replace(b"\xa5epoch", b"\xa5epoxh"), cluster)
