"""How a lot is split, and when two parts do the same work."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arcs import parts
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.parts import part_input, part_key, split
from tidemill.errors import BadArc, BadName
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot, StoredObject
from tidemill.publish.parts import PartSink

ORDERS, OTHERS = DatasetId("orders"), DatasetId("others")
SPEC = ArcSpec(
    pipeline="shop", name="clean", reads=(ORDERS,), sinks=(PartSink(dataset=DatasetId("sink")),), code="v1"
)
LOT = "A00000000000000001"
INPUT = InputLot(dataset="orders", version="1", lot=LOT, generation=0)


def item(name: str, size: int, **partition: str | None) -> StoredObject:
    return StoredObject(uri=name, size=size, partition=partition)


def test_objects_of_one_partition_stay_together_and_parts_are_of_about_equal_size():
    objects = [
        item(f"{day}/{n}", size, day=day)
        for day, size in zip("abcdef", (50, 40, 30, 20, 10, 10), strict=True)
        for n in "01"
    ]
    parts = split([part_input(ORDERS, objects)], 2)
    assert [part.size for part in parts] == [160, 160]
    days = [{item.partition["day"] for item in part.inputs[0].objects} for part in parts]
    assert days[0] | days[1] == set("abcdef")
    assert not days[0] & days[1]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None, "c", "", "d", "e", "f"]), st.integers(0, 1000)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_every_object_is_in_one_part_and_no_part_is_empty(rows, most, chance):
    objects = [item(f"o{n}", size, day=day) for n, (day, size) in enumerate(rows)]
    parts = split([part_input(ORDERS, objects)], most)
    shuffled = list(objects)
    chance.shuffle(shuffled)
    assert split([part_input(ORDERS, shuffled)], most) == parts
    placed = [item.uri for part in parts for item in part.inputs[0].objects]
    assert sorted(placed) == sorted(item.uri for item in objects)
    days = {day for day, _ in rows}
    assert len(parts) == min(most, len(days))
    assert len({part.name for part in parts}) == len(parts)
    for day in days:
        assert (
            sum(any(item.partition["day"] == day for item in part.inputs[0].objects) for part in parts) == 1
        )
    largest = max(sum(size for other, size in rows if other == day) for day in days)
    sizes = [part.size for part in parts]
    assert max(sizes) <= sum(sizes) / len(parts) + largest


def test_a_lot_without_partitions_is_one_part_and_so_are_several_inputs():
    plain = part_input(ORDERS, [item("a", 1), item("b", 2)])
    parted = part_input(OTHERS, [item("c", 1, day="1"), item("d", 2, day="2")])
    assert len(split([plain], 8)) == 1
    assert len(split([parted], 8)) == 2
    assert len(split([parted], 1)) == 1
    (both,) = split([plain, parted], 8)
    assert both.inputs == (plain, parted)
    assert len(split([part_input(ORDERS, [])], 8)) == 1


@pytest.mark.rule("LOT-18")
def test_a_part_is_the_same_work_only_if_everything_that_decides_its_result_is_equal():
    (part,) = split([part_input(ORDERS, [item("a", 1)])], 8)
    (moved,) = split([part_input(ORDERS, [item("b", 1)])], 8)  # another layout of the same generation
    base = (SPEC, LOT, 0, (INPUT,), part.name)
    variants = [
        (msgspec.structs.replace(SPEC, name="other"), LOT, 0, (INPUT,), part.name),
        (msgspec.structs.replace(SPEC, pipeline="other"), LOT, 0, (INPUT,), part.name),
        (SPEC, "A00000000000000002", 0, (INPUT,), part.name),
        (SPEC, LOT, 1, (INPUT,), part.name),
        (SPEC, LOT, 0, (msgspec.structs.replace(INPUT, generation=1),), part.name),
        (SPEC, LOT, 0, (msgspec.structs.replace(INPUT, dataset="x"),), part.name),
        (msgspec.structs.replace(SPEC, code="v2"), LOT, 0, (INPUT,), part.name),
        (SPEC, LOT, 0, (INPUT,), moved.name),
    ]
    assert part_key(*base) == part_key(*base)
    assert len({part_key(*arguments) for arguments in [base, *variants]}) == len(variants) + 1
    (task,) = parts.tasks(SPEC, LOT, 0, (INPUT,), (part,))
    assert (task.key, task.code, task.sinks, task.inputs) == (part_key(*base), "v1", SPEC.sinks, part.inputs)


@pytest.mark.parametrize(
    "changes",
    [
        {"reads": ()},
        {"reads": (ORDERS, ORDERS)},
        {"sinks": ()},
        {"sinks": SPEC.sinks * 2},
        {"sinks": (PartSink(dataset=ORDERS),)},
        {"parts": 0},
        {"parts": 101},
        {"max_concurrent": 0},
        {"retries": -1},
        {"name": ""},
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(changes):
    with pytest.raises((BadArc, BadName)) as refused:
        msgspec.structs.replace(SPEC, **changes)
    assert refused.value.hint
