"""Manifests of attempts: what they refuse, and which parts an adopting node reuses."""

import msgspec
import pytest

from tests.unit.arcs_stage import ArcStage
from tidemill.errors import AttemptDamaged, LeaseLost, ManifestUnreadable, UsageError
from tidemill.lots import manifest
from tidemill.lots.manifest import ManifestState, StoredObject
from tidemill.publish.assembly import Assembler, tasks_of
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.manifests import attempt_in, data_start
from tidemill.publish.parts import PartFailed, PartSink, PartTask, SinkWritten

LOT = "A00000000000000001"


class Bench:
    """An attempt at two sinks, and parts of it."""

    def __init__(self) -> None:
        self.stage = stage = ArcStage()
        self.targets = (Target(stage.cleaned, LOT), Target(stage.odd, LOT))
        draft = Draft(id="t" * 26, author="arc", lot=LOT, targets=self.targets)
        self.hold = Hold(draft, 1, stage.living("n"))

    def task(self, part: str = "p") -> PartTask:
        sinks = tuple(PartSink(dataset=target.dataset) for target in self.targets)
        return PartTask(
            kind="arc",
            pipeline="shop",
            author="arc",
            code="v1",
            attempt=self.hold.draft.id,
            lot=LOT,
            part=part,
            key="k",
            sinks=sinks,
        )

    def written(self, target: Target, name: str = "x", rows: int = 2, **checks: int) -> SinkWritten:
        key = f"{data_start(target, self.hold.draft.id)}.1.1/{name}.json"
        info = self.stage.objects.put(key, b"[1, 2]")
        item = StoredObject(uri=key, size=info.size, rows=rows, format="json")
        return SinkWritten(dataset=target.dataset, objects=(item,), rows=rows, checks=checks)

    def made(self, part: str, *written: SinkWritten, hold: Hold | None = None, alone: bool = False):
        return self.stage.manifests.write_part(hold or self.hold, part, written, alone=alone, fingerprints={})


@pytest.mark.rule("LOT-8")
def test_counts_and_checks_of_the_parts_add_up_to_those_of_the_lot():
    bench = Bench()
    stage, (cleaned, odd) = bench.stage, bench.targets
    parts = [
        bench.made("p", bench.written(cleaned, "a", 2, bad=1, late=2), bench.written(odd, "a")),
        bench.made("q", bench.written(cleaned, "b", 3, bad=4)),  # nothing for the other sink
    ]
    rows = stage.manifests.finish(bench.hold, parts, {stage.cleaned: "f"})
    assert [(row.dataset, row.state, row.rows, row.size) for row in rows] == [
        (stage.cleaned, "complete", 5, 12),
        (stage.odd, "complete", 2, 6),
    ]
    root = stage.manifests.load(rows[0].manifest)
    assert (root.checks, root.schema_fingerprint, root.part) == ({"bad": 5, "late": 2}, "f", "")
    assert [leaf.part for leaf in stage.manifests.leaves(rows[0].manifest)] == ["p", "q"]
    assert len(stage.manifests.lot_objects(rows[0].manifest)) == 2
    assert parts[1].states == (ManifestState.COMPLETE, ManifestState.EMPTY)


def test_a_part_must_write_into_the_folder_of_its_attempt():
    bench = Bench()
    (cleaned, odd) = bench.targets
    good = bench.written(cleaned)
    strange = StoredObject(uri=data_start(cleaned, "s" * 26) + ".1.1/x.json", size=6, rows=2)
    for bad in (
        msgspec.structs.replace(good, objects=(strange,)),
        msgspec.structs.replace(good, dataset=odd.dataset),
        msgspec.structs.replace(good, dataset=bench.stage.orders, objects=()),
    ):
        with pytest.raises(UsageError):
            bench.made("p", bad)


@pytest.mark.rule("LOT-20")
def test_an_adopter_takes_over_parts_that_one_holder_made_for_every_sink_and_verifies_them():
    bench = Bench()
    manifests, (cleaned, odd) = bench.stage.manifests, bench.targets
    first = bench.made("p", bench.written(cleaned, "a"), bench.written(odd, "a"))
    half = bench.made("q", bench.written(cleaned, "b"), bench.written(odd, "b"))
    bench.stage.objects.delete(half.sinks[1].key)  # it died between two sinks
    manifests.write_failed_part(bench.hold, PartFailed(task=bench.task("r"), kind="E", message="m"))
    second = msgspec.structs.replace(bench.hold, epoch=2)
    again = bench.made("p", bench.written(cleaned, "c"), bench.written(odd, "c"), hold=second)
    adopter = msgspec.structs.replace(bench.hold, epoch=3)
    parts = manifests.finished_parts(adopter, ["p", "q", "r"])
    assert parts == {"p": again}  # of two holders that made it, the later one
    assert parts["p"] != first
    assert manifests.finished_parts(adopter, ["q", "r"]) == {}
    item = again.sinks[0].manifest.objects[0]
    bench.stage.objects.put(item.uri, b"[1]")
    with pytest.raises(AttemptDamaged):
        manifests.finished_parts(adopter, ["p", "q", "r"])


def test_the_only_part_of_a_lot_is_found_under_the_lots_own_name():
    bench = Bench()
    (cleaned, odd) = bench.targets
    part = bench.made("p", bench.written(cleaned), bench.written(odd), alone=True)
    assert "/part=" not in part.sinks[0].key
    adopter = msgspec.structs.replace(bench.hold, epoch=2)
    assert bench.stage.manifests.finished_parts(adopter, ["p"]) == {"p": part}
    assert bench.stage.manifests.finished_parts(adopter, ["p", "q"]) == {}  # split otherwise then


@pytest.mark.rule("LOT-18")
def test_a_part_is_never_reused_from_another_attempt():
    """Its objects may be deleted at any moment: the key of a task names its attempt as well."""
    bench = Bench()
    other = msgspec.structs.replace(bench.hold, draft=msgspec.structs.replace(bench.hold.draft, id="s" * 26))
    (own_task,), (other_task,) = (tasks_of(hold, [bench.task()]) for hold in (bench.hold, other))
    assert own_task.key != other_task.key
    assert (own_task.attempt, other_task.attempt) == ("t" * 26, "s" * 26)
    later = msgspec.structs.replace(bench.hold, epoch=2)
    assert tasks_of(later, [bench.task()]) == [own_task]  # an adopted one is the same


def test_a_port_that_ends_early_is_no_success():
    bench = Bench()
    stage = bench.stage

    class Quiet:
        def run(self, tasks):
            return iter(())

    work = Assembler(stage.scope(), Quiet())
    with pytest.raises(LeaseLost, match=r"while \d parts of attempt .* are unfinished"):
        work.assemble(bench.hold, [bench.task()])


def test_the_attempt_is_read_from_names_of_any_holder():
    bench = Bench()
    (cleaned, odd) = bench.targets
    part = bench.made("p=1/x", bench.written(cleaned), bench.written(odd))
    assert {attempt_in(sink.key) for sink in part.sinks} == {"t" * 26}
    adopter = msgspec.structs.replace(bench.hold, epoch=2)
    assert bench.stage.manifests.finished_parts(adopter, ["p=1/x", "y"]) == {"p=1/x": part}


def test_a_manifest_that_is_nested_too_deeply_is_unreadable() -> None:
    body = b'{"format": 1, "other": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    with pytest.raises(ManifestUnreadable, match="manifest"):
        manifest.decode(body)
