"""The state of every manifest that is written is in its name, and is the state of what the manifest lists."""

import json
from typing import Any

import pytest

from tests.unit.arcs_stage import lapse, repair_projections
from tests.unit.life_stage import LifeStage
from tests.unit.test_publish_corrections import remove, replace
from tidemill.lots import layout, manifest, staging
from tidemill.lots.ids import LotId
from tidemill.lots.manifest import Manifest, ManifestState, UriType
from tidemill.lots.staging import Staged
from tidemill.publish.intervals import IntervalCloser
from tidemill.publish.projections import Projections
from tidemill.scope import ATTEMPT_LETTERS


class WrittenManifests:
    """Records every manifest that a stage stores."""

    def __init__(self, stage: LifeStage) -> None:
        self.bodies: dict[str, Manifest] = {}
        self._put = stage.objects.put
        stage.objects.put = self.put  # type: ignore[method-assign]

    def put(self, key: str, body: bytes, *args: Any, **options: Any) -> Any:
        if key.startswith("datasets/"):
            self.bodies[key] = manifest.decode(body, key)
        return self._put(key, body, *args, **options)

    def of(self, state: ManifestState) -> list[Manifest]:
        return [body for body in self.bodies.values() if body.state is state]


def live_through_everything(stage: LifeStage) -> None:
    """Write manifests in every way that the package knows: arcs, appends, intervals, corrections, cleaner."""
    spec, node = stage.clean(), stage.living()
    worker = stage.worker(node)
    lot, other = stage.append([1, 2], [3, 4]), stage.append([2])
    stage.parts.failing[3] = 1
    worker.work(spec, lot)  # a failed part
    worker.work(spec, lot)  # two parts: leaves and a root
    worker.work(spec, other)  # one part, and an empty sink
    empty = stage.append()
    worker.work(spec, empty)  # no parts
    closer = IntervalCloser(stage.scope(stage.living("closer")))
    first = stage.run(staging.begin, stage.lots, stage.clicks)
    uri = next(row.manifest for row in stage.rows_of(stage.orders) if row.lot == other)
    stage.run(staging.stage, stage.lots, stage.clicks, Staged(uri=uri, digest="d", rows=1, size=3))
    end = LotId.parse(first.lot).end
    stage.clock.advance(end.timestamp() - stage.clock.wall() + 300)
    assert closer.close_due() == 1  # with an append
    assert closer.close_due() == 1  # without one
    replace(stage, other, 7)
    remove(stage, other)
    lost = stage.node("lost")
    stage.parts.between = lambda task: lapse(stage)  # its node dies in the middle of a part
    with pytest.raises(BaseException, match="lease"):
        stage.worker(lost).work(stage.sum(), lot)
    stage.clock.advance(3600)
    stage.cleaner(stage.living("cleaner")).clean()
    repair_projections(stage, Projections(stage.scope(stage.living("p"))), spec)


@pytest.mark.rule("LOT-15", "LOT-21")
def test_the_name_of_every_manifest_that_is_written_has_the_state_of_its_content() -> None:
    stage = LifeStage(scan=False)
    written = WrittenManifests(stage)
    live_through_everything(stage)
    assert {state.value for state in ManifestState} == {"complete", "partial", "empty", "removed"}
    for key, body in written.bodies.items():
        names = layout.parse_key(key)
        assert names["state"] == body.state, key
        assert (names["name"], names["version"], names["lot"]) == (body.dataset, body.version, body.lot)
        if "attempt" in names:  # a projection has none
            assert names["attempt"].partition(".")[0] == body.attempt
            assert len(body.attempt) == ATTEMPT_LETTERS
            assert int(names["gen"]) == body.generation
            assert (names["file"] == "manifest-root.json") == bool(body.parts), key
    for body in written.of(ManifestState.COMPLETE):
        assert body.parts or body.objects
    assert written.of(ManifestState.EMPTY)
    for body in written.of(ManifestState.EMPTY):
        assert not body.parts
        assert body.objects == []
    for body in [*written.of(ManifestState.PARTIAL), *written.of(ManifestState.REMOVED)]:
        assert all(item.type is UriType.PREFIX for item in body.objects), "they name a folder, not a file"
    comments = {body.comment for body in written.of(ManifestState.PARTIAL)}
    assert {"intent", "ValueError: 3 is bad"} <= comments
    assert {body.comment.partition(" ")[0] for body in written.of(ManifestState.REMOVED)} == {"wrong", "its"}


@pytest.mark.rule("LOT-15")
def test_a_lot_has_the_state_of_its_manifest_and_is_never_partial() -> None:
    stage = LifeStage(scan=False)
    live_through_everything(stage)
    states = set()
    for dataset in stage.tables:
        for row in stage.rows_of(dataset):
            body = stage.manifests.load(row.manifest)
            names = layout.parse_key(row.manifest)
            assert row.state.value == names["state"] == body.state.value
            states.add(body.state)
            for part in body.parts:
                assert layout.parse_key(part)["state"] in ("complete", "empty")
    assert states == {ManifestState.COMPLETE, ManifestState.EMPTY, ManifestState.REMOVED}


@pytest.mark.rule("LOT-15")
@pytest.mark.parametrize("state", ["", "done", "Complete", None, 1])
def test_a_manifest_with_another_state_is_refused(state: object) -> None:
    example = Manifest(state=ManifestState.EMPTY, dataset="d", version="1", lot="20230101", attempt="t")
    fields = json.loads(manifest.encode(example))
    assert manifest.decode(json.dumps(fields).encode()) == example
    with pytest.raises(manifest.ManifestUnreadable):
        manifest.decode(json.dumps({**fields, "state": state}).encode())
    del fields["state"]
    with pytest.raises(manifest.ManifestUnreadable):
        manifest.decode(json.dumps(fields).encode())
