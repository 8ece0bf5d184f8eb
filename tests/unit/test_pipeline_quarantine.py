"""Quarantined records: listed, corrected, ingested once, and discarded."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemill as tm
from tidemill import crash
from tidemill.cli import main
from tidemill.crash import Crashed
from tidemill.errors import (
    AppendRefused,
    CorrectionRefused,
    LotUnknown,
    ObjectUnreadable,
    ProducerConflict,
    UsageError,
)
from tidemill.pipeline import pipeline_file, quarantine
from tidemill.sources.records import BAD

FILE = """
import tidemill as tm

shop = tm.Pipeline("shop", home="home")
people = shop.dataset("people", "id BIGINT, name STRING", key="id")
orders = shop.dataset("orders", "id BIGINT, tags MAP<STRING,INT>", checks=[tm.not_null("id", on_fail="drop")])
plain = shop.dataset("plain", "id BIGINT")
"""


class Shop:
    """A pipeline in a file with three quarantined people."""

    def __init__(self, folder: Path) -> None:
        (folder / "shop.py").write_text(FILE)
        self.target = f"{folder / 'shop.py'}:shop"
        self.pipeline = pipeline_file.find(self.target)
        people = self.pipeline["people"]
        assert isinstance(people, tm.Dataset)
        people.upsert([{"id": 1, "name": "a"}, {"name": "b"}, {"name": "c"}])
        self.lot = people.upsert([{"name": "d"}]).lot

    def rows(self, table: str = "people") -> int:
        return sum(lot.rows for lot in self.pipeline[table].lots())

    def names(self) -> list[Any]:
        return [record.record["name"] for record in quarantine.records(self.pipeline, "people")]

    def fixed(self, *ids: int) -> list[quarantine.QuarantinedRecord]:
        """Return the first records, corrected with these ids."""
        records = list(quarantine.records(self.pipeline, "people"))
        return [
            msgspec.structs.replace(record, record={**record.record, "id": number})
            for record, number in zip(records, ids, strict=False)
        ]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    with shop.pipeline:
        yield shop


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.rule("LOT-33")
def test_records_are_exported_corrected_and_ingested_by_command(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, path = ["-f", shop.target], tmp_path / "fix.jsonl"
    assert run(capsys, "quarantine", *target) == {"tables": {"people": 3}}
    shown = run(capsys, "quarantine", "show", "people", *target)
    assert [record["error"] for record in shown["records"]] == ["NULL in the key id"] * 3
    assert shown["records"][0]["record"] == {"id": None, "name": "b"}
    assert run(capsys, "quarantine", "export", "people", str(path), *target)["records"] == 3
    assert main(["quarantine", "export", "people", str(path), *target]) == 1  # it never overwrites a file
    lines = path.read_text().splitlines()
    fixed = [lines[place].replace('"id":null', f'"id":{number}') for place, number in ((0, 2), (2, 4))]
    path.write_text("\n\n".join(fixed))
    assert run(capsys, "quarantine", "ingest", "people", str(path), *target)["records"] == 2
    assert shop.rows() == 3
    assert shop.names() == ["c"]
    assert main(["quarantine", "ingest", "people", str(path), *target]) == 1
    assert "export again" in capsys.readouterr().err
    assert shop.rows() == 3
    (left,) = {record.lot for record in quarantine.records(shop.pipeline, "people")}
    assert run(capsys, "quarantine", "discard", "people", left, *target)["records"] == 1
    assert run(capsys, "quarantine", *target) == {"tables": {}}
    path.write_text("{}")
    assert main(["quarantine", "ingest", "people", str(path), *target]) == 2
    for arguments in ([], ["show", "people"]):
        assert main(["quarantine", *arguments, *target]) == 0


@pytest.mark.rule("LOT-36")
@pytest.mark.parametrize("point", ["append-commit.after", "correct-open.before", "commit.before"])
def test_an_interrupted_ingest_is_repeated_and_stores_each_record_once(shop: Shop, point: str) -> None:
    fixed = shop.fixed(2)
    with crash.armed(f"publish.{point}"), pytest.raises(Crashed):
        quarantine.ingest(shop.pipeline, "people", fixed)
    with pytest.raises(ProducerConflict):  # other rows are refused while the outcome is open
        quarantine.ingest(shop.pipeline, "people", shop.fixed(9))
    assert sum(quarantine.ingest(shop.pipeline, "people", fixed).values()) == 1
    assert shop.rows() == 2
    assert shop.names() == ["c", "d"]


def test_nothing_is_ingested_if_one_record_does_not_fit(shop: Shop) -> None:
    wrong = shop.fixed(2, 3, 4)
    wrong[2] = msgspec.structs.replace(wrong[2], record={"id": "four"})
    with pytest.raises(AppendRefused, match="column id expects BIGINT"):
        quarantine.ingest(shop.pipeline, "people", wrong)
    wrong[2] = msgspec.structs.replace(wrong[2], record="a text")
    with pytest.raises(AppendRefused, match="is not a JSON object"):
        quarantine.ingest(shop.pipeline, "people", wrong)
    assert (shop.rows(), len(shop.names())) == (1, 3)


def test_a_record_that_another_process_removed_does_not_come_back(shop: Shop) -> None:
    stale = next(row for row in quarantine._lot_rows(shop.pipeline, "people_quarantine") if row.rows == 2)
    quarantine.ingest(shop.pipeline, "people", shop.fixed(2))
    with pytest.raises(CorrectionRefused, match="at the same time"):
        quarantine._remove(shop.pipeline, "people_quarantine", stale, {1})
    assert shop.names() == ["c", "d"]


def test_rows_that_a_check_dropped_are_appended_without_tidemills_columns(shop: Shop) -> None:
    orders = shop.pipeline["orders"]
    assert isinstance(orders, tm.Dataset)
    orders.append([{"tags": {"a": 1}}])
    (record,) = quarantine.records(shop.pipeline, "orders_quarantine")
    assert record.check == "not_null(id)"
    fixed = msgspec.structs.replace(record, record={"id": 1, "tags": {"a": 1}})
    assert quarantine.ingest(shop.pipeline, "orders", [fixed]) == {record.lot: 1}
    assert shop.rows("orders") == 1
    assert quarantine.count(shop.pipeline) == {"people": 3}


def test_tables_without_a_quarantine_and_lots_without_records_are_refused(shop: Shop) -> None:
    with pytest.raises(UsageError, match="plain has no quarantine"):
        list(quarantine.records(shop.pipeline, "plain"))
    with pytest.raises(LotUnknown):
        quarantine.discard(shop.pipeline, "people", ["nothing"])
    assert list(quarantine.records(shop.pipeline, "orders")) == []


def test_records_that_a_file_of_records_cannot_hold_are_shown_and_exported_as_text(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [
        '{"id": 1, "name": "\\ud800"}',
        '{"id": NaN}',
        '{"id": 123456789012345678901234567890}',
        '{"id": ' + "[" * 700 + "]" * 700 + "}",
        "[1]",
        "",
    ]
    parsed = [quarantine._parsed(text) for text in texts]
    assert parsed == [texts[0], texts[1], {"id": 123456789012345678901234567890}, *texts[3:]]
    quarantined = pa.Table.from_pylist(
        [
            {"file": "f", "line": n, "record": text, "error": "bad", "check": None}
            for n, text in enumerate(texts)
        ],
        BAD,
    )
    lot = next(quarantine._lot_rows(shop.pipeline, "people_quarantine"))
    (item,) = shop.pipeline.context.manifests.lot_objects(lot.manifest)
    sink = io.BytesIO()
    pq.write_table(quarantined, sink)
    shop.pipeline.context.objects.put(item.uri, sink.getvalue())
    target, path = ["-f", shop.target], tmp_path / "all.jsonl"
    shown = run(capsys, "quarantine", "show", "people", lot.lot, *target)
    assert [record["record"] for record in shown["records"]][:2] == texts[:2]
    run(capsys, "quarantine", "export", "people", str(path), lot.lot, *target)
    assert json.loads(path.read_text().splitlines()[2])["record"] == {"id": 123456789012345678901234567890}


@pytest.mark.parametrize("body", [b"", b"PAR1", b"no Parquet at all" * 9])
def test_a_damaged_file_of_the_quarantine_is_named(shop: Shop, body: bytes) -> None:
    lot = next(quarantine._lot_rows(shop.pipeline, "people_quarantine"))
    (item,) = shop.pipeline.context.manifests.lot_objects(lot.manifest)
    shop.pipeline.context.objects.put(item.uri, body)
    with pytest.raises(ObjectUnreadable, match="cannot be read"):
        list(quarantine.records(shop.pipeline, "people"))
    shop.pipeline.context.objects.delete(item.uri)
    with pytest.raises(ObjectUnreadable, match="does not exist"):
        list(quarantine.records(shop.pipeline, "people"))


def test_a_line_that_is_nested_too_deeply_is_no_exported_record(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text('{"lot": "x", "version": "1", "row": 0, "record": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert main(["quarantine", "ingest", "people", str(path), "-f", shop.target]) == 2
    assert "line 1" in capsys.readouterr().err
