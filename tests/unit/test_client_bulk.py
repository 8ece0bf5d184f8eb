"""Futures that are entered together leave the same rows as those entered one by one."""

from tests.unit.futures_stage import Stage
from tidemill.futures.protocol import bulk, rows, submit
from tidemill.futures.protocol.rows import Blob, Needs, Spec
from tidemill.store import Space


def spec(number: int, **more: object) -> Spec:
    fields = {"name": "f", "code": b"c", "args": Blob(b"a"), **more}
    return Spec(id=number.to_bytes(16, "big"), **fields)  # type: ignore[arg-type]


BATCH = [
    spec(1),
    spec(2),
    spec(0x0102, priority=3, queue="q"),
    spec(4, needs=Needs(cpu=2.0, named=("spark",))),
    spec(5, inputs=((1).to_bytes(16, "big"),)),
    spec(6, key="once"),
    spec(7, key="once"),
    spec(8, deadline_at=99),
    spec(9, near=(1).to_bytes(16, "big")),
    spec(10, priority=3, queue="q"),
    *(spec(number) for number in range(20, 60)),
]


def test_a_batch_leaves_the_same_rows_and_ids_as_its_members_one_by_one() -> None:
    together, alone = Stage(), Stage()
    ids = together.run(bulk.submit_many, together.keys, BATCH)
    assert ids == alone.run(submit.submit, alone.keys, BATCH)
    assert ids[6] == ids[5]
    assert together.all_rows() == alone.all_rows()
    assert len(together.all_rows()) > 3 * len(BATCH)


def test_whoever_waits_for_work_is_told_of_a_batch() -> None:
    stage = Stage()
    with stage.store.watch([stage.keys.bell]) as bell:
        stage.run(bulk.submit_many, stage.keys, BATCH)
        assert bell.wait(0)


def test_a_plain_future_hangs_on_nothing_but_itself() -> None:
    plain = [item.id for item in BATCH if bulk.is_plain(item)]
    assert (5).to_bytes(16, "big") not in plain
    assert len(plain) == len(BATCH) - 5
    space = Space("c", "spec")
    stage = Stage()
    stage.run(bulk.submit_many, stage.keys, BATCH)
    stored = {
        space.unpack(key)[0]: value for key, value in stage.all_rows().items() if key.startswith(space.prefix)
    }
    assert rows.decode_spec(stored[BATCH[0].id]).submitted_at > 0
