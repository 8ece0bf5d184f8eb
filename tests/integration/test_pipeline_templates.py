"""Templates through a pipeline on Spark: one arc for each table that matches, also for those that come."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill import crash
from tidemill.arcs.events import ArcLotBegan, ArcLotComplete
from tidemill.cli import main
from tidemill.errors import DeclarationError, TemplateChanged
from tidemill.events import Event
from tidemill.obs.lines import Severity, line_of
from tidemill.pipeline.status import status_of, tables_of
from tidemill.triggers import subscriptions, templates
from tidemill.triggers.events import RunFailed, TemplateMatchless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declare(
    home: Path, spark: "SparkSession | None", tables: str = "ab", writes: str = "clean_{name}", **options: Any
) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark)
    for letter in tables:
        shop.dataset(f"raw_{letter}", f"id BIGINT, {letter} STRING")

    @shop.arc(reads="raw_*", writes=writes, **options)
    def clean(df: "DataFrame") -> "DataFrame":
        return df.where("id > 0")

    return shop


def append(pipeline: tm.Pipeline, name: str, *ids: int) -> None:
    table = pipeline[name]
    assert isinstance(table, tm.Dataset)
    table.append([(number, name) for number in ids])


def bag(pipeline: tm.Pipeline, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in pipeline[name].df().collect())


def others(home: Path) -> tm.Pipeline:
    """Another pipeline of the same cluster, as another process has it: it declares what it wants."""
    return tm.Pipeline("others", home=home)


class Then:
    """Listens to a run, and does something once, when a lot of an arc is complete."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.told: list[Event] = []
        self._act: Callable[[], None] | None = act
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.told.append(event)
            act = self._act if isinstance(event, ArcLotComplete) else None
            if act is not None:
                self._act = None
        if act is not None:
            act()


@pytest.mark.rule("HEAP-12")
def test_a_table_that_comes_while_a_runner_runs_gets_an_arc_of_its_own(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"

    def come() -> None:
        with others(home) as strange:
            strange.dataset("raw_c", "id BIGINT, c STRING")
            strange.dataset("raw_k", "id BIGINT, k STRING", key="id")
            append(strange, "raw_c", 0, 7)
            strange["raw_k"].upsert([(1, "k")])  # type: ignore[attr-defined]

    then = Then(come)
    with declare(home, spark) as shop:
        assert shop.names == ["raw_a", "raw_b", "clean_a", "clean_b"], "known before anything is run"
        append(shop, "raw_a", 0, 1)
        append(shop, "raw_b", 2)
        report = shop.run(emit=then)
        assert {arc.arc: arc.complete for arc in report.arcs} == {
            f"clean[raw_{letter}]": 1 for letter in "abc"
        }
        assert bag(shop, "clean_a") == Counter([(1, "raw_a")])
        assert bag(shop, "clean_c") == Counter([(7, "raw_c")])
        # what cannot be read is reported, and holds up nothing else
        assert list(report.failures) == ["arc:shop/clean[raw_k]"]
        failed = [event for event in then.told if isinstance(event, RunFailed)]
        assert all("cannot read raw_k: the table has a key" in event.message for event in failed)
        assert all("test_pipeline_templates.py:" in event.message for event in failed)
        refused = [stage for stage in shop.plan().describe() if stage["status"] == "refused"]
        assert [(stage["name"], stage["where"].split(":")[0][-26:]) for stage in refused] == [
            ("clean[raw_k]", "test_pipeline_templates.py")
        ]
        assert shop.run().arcs == (), "nothing is made twice"
        shown = {run.name: run.state for run in status_of(shop).runs}
        assert {name: shown[f"clean[raw_{name}]"] for name in "abc"} == dict.fromkeys("abc", "waiting")
        assert {table.name: table.kind for table in tables_of(shop)}["clean_c"] == "arc"
        assert shop["clean_c"].lots()[0].rows == 1
        assert shop.gaps("clean_c")

        assert main(["triggers", "--home", str(home), "--json", "--name", "clean"]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert {trigger["name"]: trigger["template"] for trigger in listed["triggers"]} == {
            f"arc:shop/clean[raw_{letter}]": "arc:shop/clean" for letter in "abck"
        }
        assert listed["overview"]["templates"][0]["reads"] == "raw_*"

        # a template's name stands for its children
        assert len(shop.pause("clean")) == 4
        append(shop, "raw_a", 3)
        assert shop.run().arcs == ()
        shop.resume("clean")
        assert {arc.arc: arc.complete for arc in shop.run().arcs} == {"clean[raw_a]": 1}
        shop.replay("clean_a", [shop["clean_a"].lots()[0].lot])
        assert {arc.arc: arc.complete for arc in shop.run().arcs} == {"clean[raw_a]": 1}


@pytest.mark.rule("HEAP-12")
def test_a_template_that_is_gone_is_run_no_more_and_one_that_waits_for_tables_says_so(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    home = tmp_path / "home"
    events: list[Event] = []
    with declare(home, spark, "", enabled=False) as shop:
        assert shop.run(emit=events.append)
        (event,) = [emitted for emitted in events if isinstance(emitted, TemplateMatchless)]
        line = line_of(event)
        assert line is not None
        assert line.severity is Severity.WARNING
        assert line.text.startswith("raw_* matches no table yet (")
        assert "test_pipeline_templates.py:" in line.text
        (stage,) = shop.plan().describe()
        assert (stage["what"], stage["status"]) == ("template", "same")
        assert stage["detail"] == "raw_* -> clean_{name}: matches no table yet"
    with declare(home, spark, "a", enabled=False) as shop:
        append(shop, "raw_a", 1)
        assert shop.run().arcs == (), "it is declared not to run, and so is what it brings forth"
    with declare(home, spark, "a") as shop:
        assert [arc.arc for arc in shop.run().arcs] == ["clean[raw_a]"]
    with declare(home, spark, "a", writes="other_{name}") as shop, pytest.raises(TemplateChanged) as refused:
        shop.run()
    assert "test_pipeline_templates.py:" in refused.value.message
    with tm.Pipeline("shop", home=home, spark=spark) as shop:
        table = shop.dataset("raw_a", "id BIGINT, a STRING")
        removed = {
            (entry["what"], entry["name"]) for entry in shop.plan().describe() if entry["status"] == "removed"
        }
        assert removed == {
            ("template", "clean"),
            ("arc", "clean[raw_a]"),
            ("dataset", "clean_a"),
            ("dataset", "other_a"),
        }
        table.append([(2, "raw_a")])
        assert shop.run().arcs == ()
        keys = shop.context.keys.triggers
        read = shop.context.store.run
        assert read(lambda tx: templates.listed(tx, keys)) == []
        assert read(lambda tx: subscriptions.read(tx, keys, "arc:shop/clean[raw_a]")) is None


def test_a_template_that_cannot_be_is_refused_with_the_line_of_its_declaration(tmp_path: Path) -> None:
    shop = tm.Pipeline("shop", home=tmp_path / "home")
    for reads, writes, words in (
        ("raw_*", "raw_{name}_2", "matches its own pattern"),
        ("*", "clean_{name}", "matches its own pattern"),  # all tables, with those it makes
        ("raw_*_*", "clean_{name}", "invalid dataset pattern"),
        ("raw_*", "clean", "invalid target pattern"),
        (("raw_*", "more_*"), "clean_{name}", "inputs: raw_\\*, more_\\*"),
        (("rates", "raw_*"), "clean_{name}", "inputs: rates, raw_\\*"),
    ):
        with pytest.raises(DeclarationError, match=rf"test_pipeline_templates\.py:\d+: .*{words}"):
            shop.arc(reads=reads, writes=writes, name="t")(lambda df: df)
    shop.arc(reads="raw_*", writes="clean_{name}", name="clean")(lambda df: df)
    with pytest.raises(DeclarationError, match=r"\.py:\d+: .*through 'arc:shop/clean'"):
        shop.arc(reads="clean_*", writes="raw_{name}", name="back")(lambda df: df)
    shop.dataset("raw_a", "id BIGINT")
    shop.dataset("clean_a", "id BIGINT")
    with pytest.raises(DeclarationError, match=r"\.py:\d+: the template clean would write clean_a for raw_a"):
        shop.all_arcs()
    shop.close()


POINTS = (
    ("triggers.wake.after", 2),  # subscriptions are made, and nothing is on the heap
    ("triggers.push.after", 2),
    ("template.child.before", 2),  # of the tables of one child the first is declared
)


@pytest.mark.rule("HEAP-12")
@pytest.mark.rule("HEAP-2")
def test_whoever_dies_in_the_middle_of_a_fan_out_leaves_no_table_behind(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    home = tmp_path / "home"
    with declare(home, spark) as shop, others(home) as strange:
        append(shop, "raw_b", 1)
        with crash.armed("triggers.template.after"), pytest.raises(crash.Crashed):
            shop.run()
        for number, (point, visit) in enumerate(POINTS):

            def come(number: int = number) -> None:
                for letter in "cd":
                    strange.dataset(f"raw_{letter}{number}", "id BIGINT, c STRING")
                    append(strange, f"raw_{letter}{number}", number + 1)

            append(shop, "raw_a", number + 1)
            with crash.armed(point, visit=visit), pytest.raises(crash.Crashed):
                shop.run(emit=Then(come))
            shop.close()  # the next life knows what the home says
            if f"raw_d{number}" not in strange.datasets:
                come()
    with declare(home, spark) as shop:
        assert shop.run().ok
        assert bag(shop, "clean_a") == Counter((n + 1, "raw_a") for n in range(len(POINTS)))
        assert bag(shop, "clean_b") == Counter([(1, "raw_b")])
        for number in range(len(POINTS)):
            for letter in "cd":
                rows = bag(shop, f"clean_{letter}{number}")
                assert rows == Counter([(number + 1, f"raw_{letter}{number}")]), (letter, POINTS[number])


@pytest.mark.rule("HEAP-12")
def test_two_runners_make_each_lot_of_each_child_once(tmp_path: Path, spark: "SparkSession") -> None:
    home, letters = tmp_path / "home", "cdefgh"
    events: list[Event] = []
    with declare(home, spark, letters) as first, declare(home, spark, letters) as second:
        for letter in letters:
            append(first, f"raw_{letter}", 1)
        reports: list[tm.Report] = []
        runners = [
            threading.Thread(
                target=lambda pipeline=pipeline: reports.append(pipeline.run(emit=events.append))
            )
            for pipeline in (first, second)
        ]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        assert all(reports), reports
        made = Counter(arc.arc for report in reports for arc in report.arcs for _ in range(arc.complete))
        assert made == Counter(f"clean[raw_{letter}]" for letter in letters)
        assert len([event for event in events if isinstance(event, ArcLotBegan)]) == len(letters)
        for letter in letters:
            assert bag(first, f"clean_{letter}") == Counter([(1, f"raw_{letter}")])
            assert first[f"clean_{letter}"].position == 1
