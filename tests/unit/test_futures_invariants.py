"""The scan of invariants finds what is planted: a check that could not fail would be worth nothing."""

from collections.abc import Callable

import msgspec
import pytest

from tests.futures_invariants import judge, scan_invariants
from tests.futures_mirror import Mirror
from tests.unit.futures_stage import Stage
from tidemill.futures.protocol import limits, rows
from tidemill.futures.protocol.rows import AnyRow, Claimed, Realized, Unclaimed
from tidemill.store import Tx


class Scene(Stage):
    """A few futures in different states."""

    def __init__(self) -> None:
        super().__init__()
        self.w = self.worker("w")
        self.here(limits.set_limit, "q", running=5)
        self.free = self.submit(key="k")
        self.up = self.submit()
        self.down = self.submit(self.up)
        self.claimed = self.submit(queue="q")
        self.claim_one(self.w, self.claimed)
        self.made = self.submit()
        self.make(self.w, self.made, kind="segment")

    def rewrite(self, future: bytes, **changes: object) -> Callable[[Tx], None]:
        row = msgspec.structs.replace(self.row(future), **changes)
        return lambda tx: tx.set(self.keys.future[future], rows.encode(row))

    def tally(self, future: bytes, **changes: object) -> Callable[[Tx], None]:
        return self.rewrite(future, tally=msgspec.structs.replace(self.row(future).tally, **changes))


def ready_key(scene: Scene, future: bytes) -> bytes:
    return next(
        key
        for key in scene.all_rows()
        if key.startswith(scene.keys.ready.prefix) and future == scene.keys.ready.unpack(key)[-1]
    )


def in_the_pool_too(scene: Scene) -> Callable[[Tx], None]:
    place = ready_key(scene, scene.free)
    parts = [*scene.keys.ready.unpack(place)[:-1], scene.claimed]
    return lambda tx: tx.set(scene.keys.ready[tuple(parts)], b"")


def in_no_index(scene: Scene) -> Callable[[Tx], None]:
    place = ready_key(scene, scene.free)
    return lambda tx: tx.clear(place)


def a_copy_too_many(scene: Scene) -> Callable[[Tx], None]:
    row = scene.row(scene.made)
    assert isinstance(row, Realized)
    return lambda tx: tx.set(scene.keys.copy[scene.free, "w"], rows.encode(row.result))


PLANTED: dict[str, tuple[str, Callable[[Scene], Callable[[Tx], None]]]] = {
    "unclaimed and in no index": ("FUT-15", in_no_index),
    "claimed and still in the pool": ("FUT-16", in_the_pool_too),
    "claimed and not owned": ("FUT-16", lambda s: lambda tx: tx.clear(s.keys.own["w", s.claimed])),
    "owned by another": ("FUT-16", lambda s: lambda tx: tx.set(s.keys.own["x", s.claimed], b"")),
    "a count of waits that is wrong": ("waits_on", lambda s: s.rewrite(s.down, waits_on=2)),
    "served and told nobody": ("FUT-15", lambda s: lambda tx: tx.set(s.keys.dep[s.up, s.down], b"s")),
    "a dep row that is gone": ("hang on", lambda s: lambda tx: tx.clear(s.keys.dep[s.up, s.down])),
    "dependents that are not known of": ("dependents", lambda s: s.tally(s.up, dependents=False)),
    "attempts spent and not failed": ("FUT-8", lambda s: s.tally(s.free, exceptions=9)),
    "poison in the pool": ("FUT-53", lambda s: s.tally(s.free, crashes=3)),
    "a copy without a result": ("copies", a_copy_too_many),
    "a result without its copy": ("latest result", lambda s: lambda tx: tx.clear(s.keys.copy[s.made, "w"])),
    "a count of running that is wrong": ("FUT-57", lambda s: lambda tx: tx.add(s.keys.running["q"], 1)),
    "a spec without a row": ("is gone", lambda s: lambda tx: tx.clear(s.keys.future[s.free])),
    "a key that leads elsewhere": ("idempotency", lambda s: lambda tx: tx.set(s.keys.key["k"], s.up)),
    "a lane that is not listed": ("directory", lambda s: lambda tx: tx.clear_range(*s.keys.lane.all())),
    "set aside and not": ("stranded", lambda s: lambda tx: tx.set(s.keys.stranded[s.free], b"")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_wrong_is_found(name: str) -> None:
    scene = Scene()
    word, plant = PLANTED[name]
    assert scene.store.run(lambda tx: scan_invariants(tx, scene.keys)) == []
    scene.store.run(plant(scene))
    problems = scene.store.run(lambda tx: scan_invariants(tx, scene.keys))
    assert any(word in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (
            Unclaimed(ready_at=1),
            Realized(result=rows.Result(1, 1, 1, rows.Location("inline")), at=1),
            "no edge",
        ),
        (
            Claimed(tally=rows.AttemptCounts(epoch=2), holder="w", node_epoch=1, claimed_at=1),
            Unclaimed(tally=rows.AttemptCounts(epoch=2), ready_at=1),
            "FUT-13",
        ),
        (
            Claimed(tally=rows.AttemptCounts(epoch=2), holder="w", node_epoch=1, claimed_at=1),
            Unclaimed(tally=rows.AttemptCounts(epoch=1), ready_at=1),
            "fell",
        ),
        (
            Claimed(tally=rows.AttemptCounts(epoch=2), holder="w", node_epoch=1, claimed_at=1),
            Claimed(tally=rows.AttemptCounts(epoch=3), holder="x", node_epoch=1, claimed_at=1),
            "one claim to another",
        ),
        (Unclaimed(ready_at=1), Claimed(holder="w", node_epoch=1, claimed_at=1), "one epoch"),
        (rows.Cancelled(at=1), Unclaimed(ready_at=1), "no edge"),
    ],
)
def test_a_step_that_no_edge_makes_is_found(old: AnyRow, new: AnyRow, word: str) -> None:
    scene = Stage()
    mirror = Mirror(scene.keys)
    key = scene.keys.future[b"\x01" * 16]
    mirror.apply([(key, rows.encode(old))])
    assert mirror.steps == []
    mirror.apply([(key, rows.encode(new))])
    problems = judge(mirror, [])
    assert any(word in problem for problem in problems), problems
