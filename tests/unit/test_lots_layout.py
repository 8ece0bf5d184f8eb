"""Manifests and the names of things in object storage."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import BadName, ManifestUnreadable
from tidemill.lots import layout, manifest
from tidemill.lots.manifest import FORMAT, InputLot, Manifest, ManifestState, StoredObject
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15)
HOSTILE = [
    "a=b",
    "a/b",
    "..",
    ".",
    "...",
    "with blank",
    "quo\"te's",
    "büro",
    "日本",
    "100%",
    "a%2Fb",
    "\n",
    "\0",
    "x\\y",
]


def example(**changes):
    values = {
        "state": ManifestState.COMPLETE,
        "dataset": "orders",
        "version": "1",
        "lot": "20230101PT5M050",
        "attempt": "t-1",
        "inputs": [InputLot(dataset="raw", version="1", lot="20230101PT5M050", generation=0)],
        "objects": [StoredObject(uri="data/x.parquet", size=10, rows=3, etag="e", partition={"day": None})],
        "schema_fingerprint": "f",
        "created_at": "2023-01-01T04:15:00Z",
    }
    return Manifest(**{**values, **changes})


@pytest.mark.rule("LOT-25")
def test_a_manifest_carries_everything_and_round_trips():
    manifest_ = example(comment="hand made")
    assert manifest.decode(manifest.encode(manifest_)) == manifest_
    assert (manifest_.rows, manifest_.size) == (3, 10)
    described = manifest.schema()["$defs"]["Manifest"]["properties"]
    for field in (
        "state",
        "comment",
        "dataset",
        "version",
        "lot",
        "generation",
        "attempt",
        "inputs",
        "objects",
    ):
        assert field in described
    assert {"schema_fingerprint", "created_at"} <= described.keys()


@pytest.mark.rule("LOT-25")
def test_fields_of_a_later_release_are_ignored_and_a_later_format_is_refused():
    body = manifest.encode(example()).replace(b'{\n  "attempt"', b'{\n  "hue": "blue",\n  "attempt"')
    assert b"hue" in body
    assert manifest.decode(body) == example()
    newer = manifest.encode(example()).replace(b"{\n", f'{{\n  "format": {FORMAT + 1},\n'.encode(), 1)
    with pytest.raises(ManifestUnreadable, match="upgrade"):
        manifest.decode(newer)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"state": "blue"}'])
def test_an_object_that_is_not_a_manifest_is_refused_with_its_name(body):
    with pytest.raises(ManifestUnreadable, match=r"lots/x\.json"):
        manifest.decode(body, "lots/x.json")


@pytest.mark.rule("LOT-15", "LOT-21")
def test_the_state_is_in_the_name():
    for state in ManifestState:
        key = layout.manifest_key("orders", "1", "20230101", state, 2, "t-1")
        assert layout.parse_key(key)["state"] == state


@pytest.mark.rule("LOT-22", "LOT-23", "LOT-24")
def test_the_names_are_those_of_the_layout():
    assert layout.arc_key("p", "1", "clean", "20230101", "running") == (
        "arcs/project=p/version=1/arc=clean/lot=20230101/running.arc"
    )
    assert layout.manifest_key("d", "1", "20230101", ManifestState.PARTIAL, 3, "t") == (
        "datasets/name=d/version=1/lot=20230101/state=partial/gen=000003/attempt=t/manifest.json"
    )
    assert layout.manifest_key("d", "1", "20230101", ManifestState.COMPLETE, 0, "t", root=True).endswith(
        "/attempt=t/manifest-root.json"
    )
    assert layout.manifest_key("d", "1", "20230101", ManifestState.COMPLETE, 0, "t", part="a/b").endswith(
        "/attempt=t/part=a%2Fb/manifest.json"
    )
    assert layout.projected_manifest_key("d", "1", "20230101", ManifestState.EMPTY) == (
        "datasets/name=d/version=1/lot=20230101/state=empty/manifest.json"
    )
    assert layout.data_prefix("d", "1", "20230101", "t") == "data/name=d/version=1/lot=20230101/attempt=t/"


@pytest.mark.rule("LOT-17")
@given(NAMES, NAMES)
def test_two_attempts_never_share_a_folder_or_a_manifest(a, b):
    data = [layout.data_prefix("d", "1", "20230101", attempt) for attempt in (a, b)]
    keys = [layout.manifest_key("d", "1", "20230101", ManifestState.PARTIAL, 0, x) for x in (a, b)]
    if a == b:
        assert data[0] == data[1]
    else:
        assert not data[0].startswith(data[1])
        assert keys[0] != keys[1]


@given(NAMES, NAMES, NAMES)
def test_names_round_trip_through_a_key(dataset, version, attempt):
    segments = layout.parse_key(
        layout.manifest_key(dataset, version, "20230101", ManifestState.EMPTY, 0, attempt)
    )
    assert (segments["name"], segments["version"], segments["attempt"]) == (dataset, version, attempt)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_keys_that_object_storage_takes(name):
    objects = MemoryObjects(FakeClock())
    key = layout.manifest_key(name, name, "20230101", ManifestState.EMPTY, 0, name)
    objects.put(key, b"x")
    assert [info.key for info in objects.list("datasets/")] == [key]


def test_empty_and_endless_names_are_refused():
    for name in ("", "x" * 201, "é" * 40):
        with pytest.raises(BadName):
            layout.quote(name)
    with pytest.raises(BadName):
        layout.arc_key("p", "1", "a", "20230101", "blue")


@pytest.mark.parametrize(
    "damage",
    [
        {"generation": -1},
        {"objects": [{"uri": "u", "size": -1}]},
        {"objects": [{"uri": "u", "rows": -1}]},
        {"parts": ["a", "b"], "within": [[]]},
        {"within": [[[0, 1]], [[2, 3]]]},
        {"within": [[[3, 2]]]},
        {"within": [[[0, 65_536]]]},
        {"checks": {"not_null": -1}},
    ],
    ids=repr,
)
def test_a_manifest_with_impossible_numbers_is_refused(damage: dict[str, object]) -> None:
    good = {"state": "complete", "dataset": "d", "version": "1", "lot": "l", "attempt": "a"}
    assert manifest.decode(json.dumps(good).encode()).rows == 0
    with pytest.raises(ManifestUnreadable, match="m is not a manifest"):
        manifest.decode(json.dumps(good | damage).encode(), "m")
