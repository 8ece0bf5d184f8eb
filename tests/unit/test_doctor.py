"""`tidemill doctor` on a home with lots, views and state: it finds each kind of damage, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill as tm
from tests.formats import history, home
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.doctor import Finding, examine
from tidemill.views.steps import groups
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.trace.version_file import read_version


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tm.Pipeline]:
    home.unpack(tmp_path)
    with home.opened(tmp_path, None, history.STEPS) as pipeline:
        yield pipeline


def stored_groups(pipeline: tm.Pipeline) -> list[ViewGroup]:
    context = pipeline.context
    return context.store.run(lambda tx: groups.listed(tx, context.keys, pipeline.name))


def with_state(pipeline: tm.Pipeline) -> ViewGroup:
    return next(group for group in stored_groups(pipeline) if group.version)


def a_lot(pipeline: tm.Pipeline) -> tuple[str, list[str]]:
    """The manifest and the objects of a lot that was not replaced."""
    context = pipeline.context
    reader = ManifestReader(context.objects)
    for name in pipeline.datasets:
        rows = context.store.run(
            lambda tx, name=name: lots.listed(tx, context.keys.lots, DatasetId(name), "", 1000)
        )
        for row in rows:
            if row.manifest and reader.objects(row.manifest) and not reader.load(row.manifest).parts:
                return row.manifest, [item.uri for item in reader.objects(row.manifest)]
    raise AssertionError("the home has no such lot")


def place(tmp_path: Path, key: str) -> Path:
    return tmp_path / "home" / "objects" / key


def kinds(findings: tuple[Finding, ...]) -> set[tuple[str, str]]:
    return {(finding.kind, finding.key) for finding in findings}


def test_a_sound_home_has_no_problem(opened: tm.Pipeline) -> None:
    diagnosis = examine(opened, deep=True, repair=True)
    assert diagnosis.findings == ()
    assert diagnosis.ok
    assert diagnosis.lots > 10
    assert diagnosis.steps > 5
    assert diagnosis.objects > 50


def test_damaged_state_is_found_and_the_next_step_computes_it_again(
    opened: tm.Pipeline, tmp_path: Path
) -> None:
    group = with_state(opened)
    runs = sorted(read_version(opened.context.objects, group.version).files())
    file = place(tmp_path, runs[0])
    body = file.read_bytes()
    file.write_bytes(body[:-9] + bytes(255 - byte for byte in body[-9:-1]) + body[-1:])
    assert examine(opened).ok, "only a deep examination reads run files"
    diagnosis = examine(opened, deep=True)
    assert kinds(diagnosis.findings) == {("damaged-state", runs[0])}
    assert "doctor --repair" in diagnosis.findings[0].hint
    file.write_bytes(body[:-9])
    (finding,) = {each.message: each for each in examine(opened).findings}.values()
    assert "is cut short" in finding.message
    file.unlink()
    assert not examine(opened).ok
    assert with_state(opened) == group, "an examination changes nothing"
    repaired = examine(opened, repair=True)
    assert repaired.ok
    assert {finding.of for finding in repaired.findings} == {group.spec.name}
    (now,) = [each for each in stored_groups(opened) if each.spec.name == group.spec.name]
    assert (now.version, now.step, now.tables) == ("", group.step, group.tables)
    assert examine(opened).findings == ()


def test_a_damaged_version_file_is_found(opened: tm.Pipeline, tmp_path: Path) -> None:
    group = with_state(opened)
    file = place(tmp_path, group.version)
    file.write_bytes(file.read_bytes()[:-4])
    assert kinds(examine(opened).findings) == {("damaged-state", group.version)}
    file.unlink()
    assert kinds(examine(opened).findings) == {("damaged-state", group.version)}


@pytest.mark.parametrize("kind", ["missing-file", "wrong-size", "unreadable"])
def test_a_damaged_lot_is_found_and_cannot_be_repaired(
    opened: tm.Pipeline, tmp_path: Path, kind: str
) -> None:
    manifest, objects = a_lot(opened)
    key = manifest if kind == "unreadable" else objects[0]
    file = place(tmp_path, key)
    match kind:
        case "missing-file":
            file.unlink()
        case "wrong-size":
            file.write_bytes(file.read_bytes()[:-1])
        case _:
            file.write_bytes(b"{")
    diagnosis = examine(opened, repair=True)
    assert kinds(diagnosis.findings) == {(kind, key)}
    assert not diagnosis.ok
    assert "backup" in diagnosis.findings[0].hint
