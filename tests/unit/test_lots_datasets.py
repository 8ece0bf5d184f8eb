"""Declarations of datasets: an equal one changes nothing, a different one is refused with the differences."""

import msgspec
import pytest

from tests.unit.lots_stage import FIVE_MINUTES, Stage
from tidemill.errors import BadDataset, BadLotId, BadName, DatasetChanged, DatasetUnknown
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.keys import DatasetId

ORDERS = DatasetRow(name="orders", schema="id BIGINT, day DATE", unit=FIVE_MINUTES)


def test_an_equal_declaration_is_a_no_op_and_blanks_in_a_schema_mean_nothing():
    stage = Stage()
    first = stage.run(datasets.declare, stage.lots, ORDERS)
    again = DatasetRow(name="orders", schema="id  BIGINT,\n day DATE", unit=FIVE_MINUTES)
    assert stage.run(datasets.declare, stage.lots, again) == first
    assert stage.writes == 0
    assert stage.run(datasets.read, stage.lots, first.id) == first


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (DatasetRow(name="orders", schema=ORDERS.schema), "lots was PT5M, now one per append"),
        (DatasetRow(name="orders", schema="id INT", unit=FIVE_MINUTES), "schema was 'id BIGINT, day DATE'"),
        (
            DatasetRow(name="orders", schema=ORDERS.schema, unit=FIVE_MINUTES, kind=Kind.CHANGES),
            "kind was rows, now changes",
        ),
        (
            DatasetRow(
                name="orders",
                schema=ORDERS.schema,
                unit=FIVE_MINUTES,
                kind=Kind.KEYED,
                key=("id",),
                deletes=True,
            ),
            "key was none, now id",
        ),
    ],
)
def test_a_different_declaration_is_refused_with_the_differences(new, message):
    stage = Stage()
    stage.run(datasets.declare, stage.lots, ORDERS)
    with pytest.raises(DatasetChanged, match=message):
        stage.run(datasets.declare, stage.lots, new)
    assert stage.run(datasets.read, stage.lots, ORDERS.id).unit == FIVE_MINUTES


@pytest.mark.rule("LOT-34")
def test_the_columns_before_each_change_are_stored_under_their_revision():
    stage = Stage()
    schemas = ["id BIGINT, day DATE", "id BIGINT, day DATE, n INT", "id BIGINT, day DATE, n BIGINT"]

    def evolve(stored, new):
        return msgspec.structs.replace(stored, schema=new.schema, fingerprint=new.fingerprint)

    for revision, schema in enumerate(schemas):
        new = msgspec.structs.replace(ORDERS, schema=schema, fingerprint=datasets.fingerprint(schema))
        row = stage.run(datasets.declare, stage.lots, new, evolve)
        assert (row.schema, row.revision) == (schema, revision)
    earlier = stage.run(lambda tx: tx.range(*stage.lots.columns.under(*ORDERS.id.parts)))
    assert [row.value.decode() for row in earlier] == schemas[:2]


def test_another_version_is_another_dataset():
    stage = Stage()
    stage.run(datasets.declare, stage.lots, ORDERS)
    stage.run(datasets.declare, stage.lots, DatasetRow(name="orders", version="2", schema="id INT"))
    names = [row.id for row in stage.run(datasets.listed, stage.lots)]
    assert names == [DatasetId("orders", "1"), DatasetId("orders", "2")]
    assert [row.id for row in stage.run(datasets.listed, stage.lots, names[0])] == names[1:]


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": Kind.KEYED, "deletes": True},
        {"kind": Kind.KEYED, "key": ("id",)},
        {"kind": Kind.ROWS, "key": ("id",)},
        {"kind": Kind.ROWS, "deletes": True},
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(fields):
    with pytest.raises(BadDataset):
        DatasetRow(name="orders", **fields)


def test_invalid_names_and_undeclared_datasets_are_refused():
    with pytest.raises(BadName):
        DatasetRow(name="")
    stage = Stage()
    with pytest.raises(DatasetUnknown):
        stage.run(datasets.read, stage.lots, DatasetId("nothing"))


def test_strange_names_are_kept_apart():
    stage = Stage()
    names = ["a/b", "a=b", "a b", "ä", "a'b", 'a"b', "a\x00b"]
    for name in names:
        stage.add(stage.dataset(name), "A00000000000000001", manifest=name)
    for name in names:
        assert [row.manifest for row in stage.rows_of(DatasetId(name))] == [name]


def test_a_lot_of_another_unit_is_refused():
    with pytest.raises(BadLotId, match="an interval of PT5M"):
        ORDERS.parse_lot("20230101PT1H001")
    with pytest.raises(BadLotId, match="an interval of PT5M"):
        ORDERS.parse_lot("A00000000000000001")
    with pytest.raises(BadLotId, match="the id of an append"):
        DatasetRow(name="orders").parse_lot("20230101PT5M001")
    assert str(ORDERS.parse_lot("20230101PT5M001")) == "20230101PT5M001"
