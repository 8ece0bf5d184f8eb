"""Measure a gap report over 100,000 lots of one minute, on SQLite: a table and two consecutive arcs.

The first arc has made 99 of 100 lots. The others are running, partial, missing or not started, in consecutive
ranges. The second arc has made all possible lots except a few. So a report of the last table reads the lots
of all three, classifies them and follows causes upstream. The home has no objects: a report that reads one
fails.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from bench.comparison import rounded
from bench.report import Report, at_most
from bench.side import ROOT
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import AnyLot, CompleteLot, MissingLot, PartialLot, RunningLot
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.events import LotEvent
from tidemill.lots.ids import LotId, Unit
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.staging import Interval
from tidemill.lots.states import IntervalState, LotState
from tidemill.pipeline import pipeline_file
from tidemill.pipeline.pipeline import Pipeline
from tidemill.store import Store, Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.terms import Terms

LOTS, QUICK_LOTS = 100_000, 2_000
PAGE = 200  # lots in one transaction
EVERY, STRETCH = 1_000, 10  # of each thousand lots so many are not made
FILE = """
import tidemill as tm

mill = tm.Pipeline("mill", home="home")
clicks = mill.dataset("clicks", "id BIGINT", lots="PT1M")

@mill.arc(reads=clicks, writes="cleaned")
def clean(df):
    return df

@mill.arc(reads="cleaned", writes="summed")
def sum(df):
    return df
"""
UNIT = Unit.parse("PT1M")
CLICKS, CLEANED, SUMMED = DatasetId("clicks"), DatasetId("cleaned"), DatasetId("summed")
CLEAN, SUM = "arc:mill/clean", "arc:mill/sum"


def measure(report: Report, folder: Path) -> None:
    count = QUICK_LOTS if report.quick else LOTS
    (folder / "mill.py").write_text(FILE)
    target = f"{folder / 'mill.py'}:mill"
    with pipeline_file.find(target) as mill:
        report.say(f"filling a home with {count:,} lots of three tables")
        expected = fill(mill, count)
        took = []
        for _ in range(max(3, report.repetitions)):
            began = time.perf_counter()
            coverage = mill.gaps("summed")
            took.append(time.perf_counter() - began)
            (covered,) = coverage.tables
            assert covered.expected == count, covered.expected
            assert len(covered.gaps) == expected, (len(covered.gaps), expected)
        began = time.perf_counter()
        everything = mill.gaps()
        all_s = time.perf_counter() - began
        kinds = {table.table: table.counts for table in everything.tables}
    began = time.perf_counter()
    command = [sys.executable, "-m", "tidemill.cli", "gaps", "summed", "-f", target, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    command_s = time.perf_counter() - began
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, answer["tables"][0]["gaps"]) == (1, expected), done.stderr
    raw = {
        "lots": count,
        "gaps": expected,
        "all": [rounded(seconds) for seconds in took],
        "all_tables_s": rounded(all_s),
        "command_s": rounded(command_s),
        "counts": kinds,
        "objects_read": 0,  # there are none
    }
    report.figure("gaps_100k_s", sorted(took)[len(took) // 2], raw, target=at_most(2.0))


def fill(mill: Pipeline, count: int) -> int:
    """Write the rows of this many lots; return the number of gaps of the last table."""
    site = mill.context
    store, keys = site.store, ArcKeys(site.place.cluster)
    turn = UNIT.at(datetime.fromtimestamp(site.clock.wall(), UTC))
    for _ in range(2):  # nothing is overdue when this has finished
        turn = turn.next()
    ids = _before(turn, count)
    store.run(lambda tx: _declare(tx, keys, turn))
    cleaned = [lot for number, lot in enumerate(ids) if not _is_gap(number)]
    summed = cleaned[:-5]
    for table, there, arc in ((CLICKS, ids, ""), (CLEANED, cleaned, CLEAN), (SUMMED, summed, SUM)):
        _pages(store, keys, table, there, arc)
    rows = {lot: row for number, lot in enumerate(ids) if (row := _unmade(number)) is not None}
    for first in range(0, len(rows), PAGE):
        page = list(rows.items())[first : first + PAGE]
        store.run(partial(_begun, keys=keys, page=page))
    return count - len(summed)


def _before(turn: LotId, count: int) -> list[str]:
    minutes = turn.day * UNIT.per_day + turn.ordinal
    return [
        str(LotId(minute // UNIT.per_day, UNIT, minute % UNIT.per_day))
        for minute in range(minutes - count, minutes)
    ]


def _is_gap(number: int) -> bool:
    return number % EVERY < STRETCH


def _unmade(number: int) -> AnyLot | None:
    """Write the state of a lot that the first arc has not made: in turn running, partial, missing, none."""
    if not _is_gap(number):
        return None
    kinds: Sequence[Callable[[], AnyLot | None]] = (
        lambda: RunningLot(attempt="a" * 26, node="runner-1", node_epoch=1, since=0),
        lambda: PartialLot(attempt="a" * 26, failed=("000",), error="ValueError: no", at=0, tries=3),
        lambda: MissingLot(error="there is no manifest", at=0, tries=1),
        lambda: None,
    )
    return kinds[number // EVERY % len(kinds)]()


def _declare(tx: Tx, keys: ArcKeys, turn: LotId) -> None:
    lots = keys.publish.lots
    for table in (CLICKS, CLEANED, SUMMED):
        row = DatasetRow(name=table.name, unit=UNIT, schema="id BIGINT", fingerprint="bench")
        tx.set(lots.dataset[table.parts], msgspec.msgpack.encode(row))
    tx.set(lots.interval[CLICKS.parts], msgspec.msgpack.encode(Interval(str(turn), IntervalState.OPEN)))
    for arc, source in ((CLEAN, CLICKS), (SUM, CLEANED)):
        subscriptions.subscribe(tx, keys.publish.triggers, lots, arc, Terms(sources=(source,)))


def _pages(store: Store, keys: ArcKeys, table: DatasetId, there: Sequence[str], arc: str) -> None:
    for first in range(0, len(there), PAGE):
        page = list(enumerate(there[first : first + PAGE], first + 1))
        store.run(partial(_published, keys=keys, table=table, page=page, arc=arc))


def _published(tx: Tx, keys: ArcKeys, table: DatasetId, page: Sequence[tuple[int, str]], arc: str) -> None:
    """Write what the publication of lots leaves: row, event, head, and the arc's row."""
    lots, rows = keys.publish.lots, []
    for position, lot in page:
        row = LotRow(
            dataset=table,
            lot=lot,
            state=LotState.EMPTY if position % 7 == 0 else LotState.COMPLETE,
            manifest=f"datasets/name={table.name}/version=1/lot={lot}/state=complete/gen=000000/m.json",
            attempt=f"{position:026}",
            rows=1000,
            size=100_000,
            position=position,
        )
        event = LotEvent(position, lot, 0, row.state, row.attempt, position, position)
        rows.append((lots.lot[(*table.parts, lot)], msgspec.msgpack.encode(row)))
        rows.append((lots.event[(*table.parts, position)], msgspec.msgpack.encode(event)))
        if arc:
            inputs = (InputLot(dataset="input", version="1", lot=lot, generation=0),)
            done = CompleteLot(attempt=row.attempt, inputs=inputs, at=position, tries=1)
            rows.append((keys.lot[arc, lot, 0], msgspec.msgpack.encode(done)))
    rows.append((lots.head[table.parts], msgspec.msgpack.encode(page[-1][0])))
    tx.set_many(rows, quiet=True)


def _begun(tx: Tx, keys: ArcKeys, page: Sequence[tuple[str, AnyLot]]) -> None:
    for lot, row in page:
        tx.set(keys.lot[CLEAN, lot, 0], msgspec.msgpack.encode(row), quiet=True)
        if isinstance(row, RunningLot):
            held = msgspec.msgpack.encode((row.node, row.node_epoch, ""))
            tx.set(keys.running[CLEAN, lot, 0], held, quiet=True)
        else:
            tx.set(keys.trouble[CLEAN, lot, 0], row.state.value.encode(), quiet=True)
